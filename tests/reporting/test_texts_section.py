"""The section on text that was written: its source, what the run did not write, and files of one name."""

from types import SimpleNamespace

from confide.reporting.texts import section
from confide.synthesis.remembered import NOT_OWN


def written(path, **asked):
    plain = {"prompts": 0, "temperature": 1.0, "top_p": 1.0, "max_new_tokens": 256}
    return {
        "path": path,
        "documents": 3,
        "drawn": 4,
        "asked": plain | {"counted": False, "bounds": [], "named": []} | asked,
    }


def shown(texts, looked=None):
    measured = None if looked is None else SimpleNamespace(texts=looked)
    return section(SimpleNamespace(texts=texts, measured=measured))


def test_it_says_what_texts_were_computed_from():
    assert "what was released: the model. So" in shown({"a": written("s.jsonl")}).says
    counted = shown({"a": written("s.jsonl", counted=True)}).says
    assert "what was released: the model, and the counts beside it. So" in counted
    assert "prompts" not in counted
    drawn = shown({"a": written("s.jsonl"), "b": written("t.jsonl", bounds=[16, 32])}).says
    assert "and the counts beside it" in drawn


def test_prompts_are_said_to_be_not_covered_and_conditions_are_no_prompts():
    assert "does not cover prompts" in shown({"a": written("s.jsonl", prompts=2)}).says
    kinds = written("s.jsonl", prompts=2, named=[{"topic": "x"}, {"topic": "y"}])
    assert "prompts" not in shown({"a": kinds}).says


def test_files_of_one_name_are_told_apart_by_their_folders():
    found = shown(
        {"a": written("/x/one/s.jsonl"), "b": written("/x/two/s.jsonl"), "c": written("/x/t.jsonl")}
    )
    assert [row[0] for row in found.table.rows] == ["one/s.jsonl", "two/s.jsonl", "t.jsonl"]


def test_what_the_run_did_not_write_is_set_apart():
    found = shown({"a": written("own.jsonl")}, {"a": {"path": "own.jsonl"}, "b": {"path": "foreign.jsonl"}})
    assert [(each.name, each.is_own) for each in found.looked] == [
        ("own.jsonl", True),
        ("foreign.jsonl", False),
    ]
    assert found.looked[1].sentences == (NOT_OWN,)
    assert found.looked[0].sentences == ()
