"""A detector that several processes share finds what one finds."""

import pytest

from confide.config.schema import Detector, Policy
from confide.sensitive.detectors import SharedDetector, sharing
from confide.utils.errors import InputError
from confide.utils.workers import Crew

pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")

TEXTS = [f"{n}: https://ann:word{n}@b.org and ftp://bob:{n}@c.de {'b' * (n % 90)}" for n in range(600)] + [
    "",
    "é" * 50,
]
SETTINGS = Detector(patterns=["PRIVATE_KEY", "URL_PASSWORD"])  # which need no large package
ALONE, TWO = Crew(1), Crew(2)


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "section", [SETTINGS, Policy(**SETTINGS.model_dump(), recall=1.0)], ids=["detector", "policy"]
)
def test_processes_find_what_one_finds_in_the_same_order(section, monkeypatch):
    monkeypatch.setattr(sharing, "_ALONE", (0, 0))
    monkeypatch.setattr(sharing, "_CHUNK", (2_000, 2_000))
    one = SharedDetector(SETTINGS, "detector", ALONE)
    expected = one.find(TEXTS)
    assert sum(map(len, expected)) > 1000
    assert one._workers is None
    with SharedDetector(section, "detector", TWO) as several:
        assert several.find(TEXTS) == expected
        assert several.find(TEXTS[:3]) == expected[:3]
        assert several.find([]) == []
        assert several._workers is not None
        several.close()
        assert several.find(TEXTS[:3]) == expected[:3]  # they start again


def test_small_work_starts_none():
    with SharedDetector(SETTINGS, "detector", TWO) as made:
        made.find(TEXTS)
        assert made._workers is None


@pytest.mark.subprocess
def test_an_error_in_a_process_is_told(monkeypatch):
    monkeypatch.setattr(sharing, "_ALONE", (0, 0))
    with SharedDetector(SETTINGS, "detector", TWO) as several:
        [(name, settings)] = several._job.parts
        several._job = sharing._Search(((name, settings | {"patterns": ["NONE"]}),), "detector")
        with pytest.raises(InputError, match=r"detector\.patterns: no recogniser 'NONE'"):
            several.find(TEXTS)
        assert several._workers is None


@pytest.mark.parametrize(
    ("sizes", "bounds"), [([3, 3, 9, 1], [(0, 2), (2, 3), (3, 4)]), ([], []), ([0], [(0, 1)])]
)
def test_chunks_are_of_a_size(sizes, bounds):
    texts = ["x" * size for size in sizes]
    assert list(sharing._chunks(texts, 6)) == [texts[first:last] for first, last in bounds]


def test_the_fingerprint_tells_settings_apart():
    prints = {
        SharedDetector(Detector(patterns=patterns), "detector", ALONE).fingerprint
        for patterns in (["PRIVATE_KEY"], ["URL_PASSWORD"], ["PRIVATE_KEY", "URL_PASSWORD"])
    }
    assert len(prints) == 3
    again = SharedDetector(Detector(patterns=["URL_PASSWORD"]), "other.key", ALONE).fingerprint
    assert again in prints
