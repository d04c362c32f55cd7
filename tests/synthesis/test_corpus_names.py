"""Names of a corpus that are refused before anything is sampled."""

from pathlib import Path

import pytest

from confide.synthesis.corpus import kept_seed, synthesize
from confide.utils.errors import InputError


@pytest.mark.parametrize("name", [".", "corpus", "corpus.csv"])
def test_a_name_without_a_format_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="give a name that ends in"):
        kept_seed(Path(name), 1)


def test_a_file_in_the_place_of_the_card_is_kept(tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("a week of work")
    with pytest.raises(InputError, match="its card would replace"):
        synthesize(tmp_path / "release", None, tmp_path / "notes.jsonl", None, None)
    assert notes.read_text() == "a week of work"
