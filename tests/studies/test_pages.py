"""The pages of findings: what they say first, what they count, and which tables and texts are missing."""

import math

import pytest
from studies.registry import names, study
from studies.runner import pages, register, store
from studies.runner.findings import Finding, Pooled, judged
from studies.runner.study import Scale
from studies.runner.tables import change, perplexity

from tests.studies.test_runner import ROWS, example


def test_pages_say_first_what_does_not_reproduce(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "names", lambda: ["example"])
    monkeypatch.setattr(pages, "study", lambda name: example(name))
    register.record(example(), Scale.SMALL, ROWS, "2026-01-02", tmp_path / "measured")
    pages.write(tmp_path / "docs", tmp_path / "measured")
    page = (tmp_path / "docs/results.md").read_text()
    assert page.index("| not reproduced |") < page.index("| reproduced |")
    assert "| 1 |  | 1 |  |  |  |" in page
    assert "| example | small |" in page
    assert "| +64.9% to +348.2% |" in page
    paper = (tmp_path / "docs/results/paper-000.md").read_text()
    assert "confide study example --scale small --data data" in paper
    assert "2.77 (2.71 to 2.84)" in paper


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([5.0, None], "at least 5"),
        ([None, 0.0], "at most 0"),
        ([1e-9, None], "above 0"),
        ([0.9, 1.1], "0.9 to 1.1"),
        ([None, None], ""),
    ],
)
def test_a_finding_says_where_its_claim_holds(bounds, words):
    assert pages.holds({"unit": "bits", "holds_between": bounds}) == words


def test_a_finding_says_what_its_values_are_of():
    by_number = Finding(
        "It does.", "Figure 1", "bits", (1.0, 2.0, 3.0), unit="bits", over="numbers of all keys"
    )
    by_key = Finding("It does.", "Figure 1", "bits", (1.0, 2.0, 3.0), unit="bits")
    entries = [
        register.entry(example(), Scale.SMALL, each, ROWS, "2026-01-02")
        for each in judged([by_number, by_key])
    ]
    assert pages.shown(entries[0]) == "2 (-0.4841 to 4.484; 3 numbers of all keys)"
    assert pages.shown(entries[1]) == "2 (-0.4841 to 4.484; 3 run keys)"


def test_a_claim_that_came_after_its_figures_is_marked_and_a_wider_interval_says_how_wide():
    late, own = (
        Finding("It does.", "Figure 1", "bits", (1.0, 2.0, 3.0), unit="bits", family="f", is_late=late)
        for late in (True, False)
    )
    entries = [
        register.entry(example(), Scale.SMALL, each, ROWS, "2026-01-02") for each in judged([late, own])
    ]
    page = pages.section(example(), ROWS, entries)
    assert page.count("It does. †") == 1
    assert "at 97.5%; 3 run keys" in page


def test_a_finding_names_the_freedom_of_a_pooled_error_and_what_goes_beyond_the_paper():
    pooled_one = Finding(
        "It does.", "Figure 1", "bits", (1.0, 2.0), unit="bits", pooled=Pooled(0.5, 8), is_beyond=True
    )
    papers = Finding("It does.", "Figure 1", "bits", (1.0, 2.0), unit="bits")
    beyond, own = (
        register.entry(example(), Scale.SMALL, each, ROWS, "2026-01-02")
        for each in judged([pooled_one, papers])
    )
    assert pages.shown(beyond) == "1.5 (0.347 to 2.653; 2 run keys, 8 degrees of freedom)"
    assert pages._source(beyond).endswith(", beyond Figure 1")
    assert pages._source(own).endswith(", Figure 1")
    assert "beyond" not in pages._source(own)


def test_a_page_names_the_run_keys():
    by_key = Finding("It does.", "Table 6", "gap", (1.0, 1.1, 1.2), high=5.0)
    by_sample = Finding("It does.", "Table 6", "gap", (1.0, 1.1, 1.2), high=5.0, over="samples")
    trial = {"key": 0, "part": "validation", "loss": 1.0}
    for finding, rows, words in (
        (by_key, ROWS, ", run keys 1 to 3."),
        (by_key, [trial, *ROWS], ", run keys 1 to 3; settings were chosen with run key 0."),
        (by_key, [trial | {"part": "test"}, *ROWS], ", run keys 1 to 3."),
        (by_key, ROWS[:1], ", run key 1."),
        (by_sample, ROWS, ", without run keys: what is drawn at random has seeds that stand in the study."),
    ):
        entries = [
            register.entry(example(), Scale.SMALL, each, rows, "2026-01-02") for each in judged([finding])
        ]
        made = next(
            line for line in pages.section(example(), rows, entries).splitlines() if line.startswith("Made")
        )
        assert made.endswith(words)


def test_checks_are_shown_and_not_counted(tmp_path, monkeypatch):
    def found(rows):
        values = tuple(row["loss"] for row in rows)
        yield Finding("Training teaches.", "", "gap", values, high=5.0, is_check=True)
        yield Finding("The model is there.", "", "gap", values, low=5.0, is_check=True)
        yield Finding("It does more.", "Table 6", "gap", values, high=5.0, is_beyond=True)

    chosen = example(findings=found)
    monkeypatch.setattr(pages, "names", lambda: ["example"])
    monkeypatch.setattr(pages, "study", lambda name: chosen)
    register.record(chosen, Scale.SMALL, ROWS, "2026-01-02", tmp_path / "measured")
    pages.write(tmp_path / "docs", tmp_path / "measured")
    page = (tmp_path / "docs/results.md").read_text()
    assert "|  |  |  |  |  | 1 |" in page
    assert "| does not hold | check | The model is there. |" in page
    assert "Training teaches." not in page
    paper = (tmp_path / "docs/results/paper-000.md").read_text()
    assert "| holds | check | Training teaches. |" in paper
    assert "| holds | Chua et al. 2024, beyond Table 6 | It does more. |" in paper


def test_cells_have_means_and_intervals():
    assert perplexity({1: 1.0, 2: 1.0}) == "2.72 (2.72 to 2.72)"
    assert change([math.log(0.9)] * 3) == "-10.0% (-10.0% to -10.0%)"
    assert change([]) == ""


def test_tables_are_listed_in_the_order_of_their_numbers():
    places = ["Table 10", "Figure 2", "appendix B", "Table 9"]
    assert sorted(places, key=pages._order) == ["Figure 2", "Table 9", "Table 10", "appendix B"]


def test_the_list_of_tables_names_the_texts_that_are_missing(tmp_path):
    store.write([{"text": "one", "loss": 1.0}], tmp_path / "example-small.parquet")
    ran = {
        texts: list(pages._ran(example(texts=texts), tmp_path)) for texts in ((), ("one",), ("one", "other"))
    }
    assert ran == {(): ["small"], ("one",): ["small"], ("one", "other"): ["small, not yet on other"]}
    assert list(pages._ran(example(), tmp_path / "empty")) == []


def test_studies_name_the_texts_that_they_were_measured_on():
    for name in names():
        path, texts = register.KEPT / f"{name}-small.parquet", study(name).texts
        if texts and path.exists():
            assert {row["text"] for row in store.read(path)} <= set(texts), name


def test_a_study_of_two_scales_has_two_sections(tmp_path):
    for name in ("synthetic-small", "synthetic-full", "recipe-full"):
        (tmp_path / f"{name}.parquet").touch()
    assert pages._titles(tmp_path, "synthetic") == {"small": "synthetic", "full": "synthetic at full"}
    assert pages._titles(tmp_path, "recipe") == {"full": "recipe"}
