"""Training text to redacted rows by a config: which graphs, in which form, and what the facts say of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from confide.cli import show
from confide.config.loading import check
from confide.data import documents as reading
from confide.models import loading as models
from confide.runs import data_source, preparation
from confide.sensitive.redaction.rows import Redactor
from confide.utils.errors import InputError
from tests.runs.test_preparation import WORDS, write

NUMBER = re.compile(r"\d[\d ]*\d|\d")
MARK = "xylograph"  # what a person marks


def config(path: Path, mechanism: str = "selective", **changes):
    raw = {
        "data": {"train": str(path), "unit": None, "eval": None, "max_length": 16},
        "privacy": {"noise_multiplier": 1.0, "mechanism": mechanism},
        "detector": {"expressions": {"number": NUMBER.pattern}, "recall": 1.0},
        "redacted": {"span_tokens": 2},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (raw.setdefault(section, {}) if section else raw)[key] = value
    if mechanism == "redacted":
        del raw["privacy"]["noise_multiplier"]
    if mechanism in ("redacted", "crt"):
        del raw["redacted"]
    return check(raw)


def people(n: int = 40, every: int = 2) -> list[dict]:
    """Texts of which every second one holds numbers."""
    return [
        {
            "user": f"u{i}",
            "text": f"{' '.join(WORDS[: i % 9])} call {i * 7919} {MARK if i % 5 == 0 else ''} or {i} now"
            if i % every == 0
            else f"nobody {WORDS[i % 7]} has a key " * (1 + i % 3),
        }
        for i in range(n)
    ]


def prepared(folder: Path, rows: list[dict] | None = None, mechanism: str = "selective", **changes):
    folder.mkdir(exist_ok=True)
    settings = config(write(folder / "t.jsonl", people() if rows is None else rows), mechanism, **changes)
    return preparation.prepare(settings, models.load_tokenizer(settings), folder / "data")


def texts(graph) -> list[str]:
    tokenizer = models.load_tokenizer(config(Path("unused")))
    rows = graph.fetch(np.arange(graph.n_rows))
    return [tokenizer.decode(row.tolist()) for row in rows]


def expected(rows: list[dict], span: int = 2):
    settings = config(Path("unused"))
    redactor = Redactor(models.load_tokenizer(settings), "causal-lm", 16, span)
    found = []
    for row in rows:
        found += redactor.rows(row["text"], [m.span() for m in NUMBER.finditer(row["text"])])
    return found


def same(graph, tokens) -> bool:
    return [row.tolist() for row in graph.fetch(np.arange(graph.n_rows))] == [list(row) for row in tokens]


def test_selective_has_the_original_rows_and_beside_them_the_redacted_ones(tmp_path):
    found, rows = prepared(tmp_path), expected(people())
    assert same(found.train, [row.tokens for row in rows])
    assert same(found.public, [row.masked for row in rows])
    assert found.train.unit_names() == found.public.unit_names()
    assert not re.search(r"\d", "".join(texts(found.public)))
    assert "<mask>" in "".join(texts(found.public))
    assert re.search(r"\d", "".join(texts(found.train)))


def test_redacted_trains_on_redacted_rows_alone(tmp_path):
    found = prepared(tmp_path, mechanism="redacted")
    assert found.public is None
    assert same(found.train, [row.masked for row in expected(people(), span=1)])


def test_crt_sets_rows_without_a_finding_apart_and_drops_duplicates(tmp_path):
    rows = people()
    found = prepared(tmp_path, [*rows, rows[3], rows[4], rows[3]], "crt")
    distinct = list({row["text"]: row for row in rows}.values())
    cut = expected(distinct, span=1)
    assert same(found.train, [row.masked for row in cut if row.has_finding])
    assert same(found.public, [row.masked for row in cut if not row.has_finding])
    dropped = len(rows) + 3 - len(distinct)
    assert found.facts["redaction"]["duplicates_dropped"] == dropped >= 3
    assert found.facts["counts"]["documents dropped: the same text as one before"] == dropped


def test_held_out_documents_are_neither_redacted_nor_looked_at(tmp_path, monkeypatch):
    from confide.sensitive.redaction.policy import Policy

    seen, find = [], Policy.find
    monkeypatch.setattr(Policy, "find", lambda self, d: seen.extend(x.text for x in d) or find(self, d))
    held = people(9)
    found = prepared(tmp_path / "a", data__eval=str(write(tmp_path / "held.jsonl", held)))
    plain = prepared(tmp_path / "b", held, "dp-sgd", detector={}, redacted={})
    assert texts(found.held_out) == texts(plain.train)
    assert sorted(seen) == sorted(row["text"] for row in people())
    seen.clear()
    found = prepared(tmp_path / "c", data__eval=0.3)
    assert re.search(r"\d", "".join(texts(found.held_out)))
    assert 0 < len(seen) < 40
    assert found.facts["redaction"]["documents"] == len(seen)


def test_texts_that_differ_in_what_is_sensitive_make_the_same_public_graph(tmp_path):
    """Whatever its length; the number of training rows and their units are the same as well."""
    rows = people()
    others = [row | {"text": NUMBER.sub("5" * (1 + i % 30), row["text"])} for i, row in enumerate(rows)]
    one, other = prepared(tmp_path / "a", rows), prepared(tmp_path / "b", others)
    assert same(other.public, one.public.fetch(np.arange(one.public.n_rows)))
    assert one.train.n_rows == other.train.n_rows
    assert one.train.unit_names() == other.train.unit_names()
    assert texts(one.train) != texts(other.train)


def test_facts_are_figures_of_the_original_text(tmp_path):
    rows = people()
    facts = prepared(
        tmp_path, rows, detector__expressions={"number": NUMBER.pattern, "call": "call [0-9]+"}
    ).facts
    found = facts["redaction"]
    cut = expected([row | {"text": re.sub(r"call (?=\d)", "1111 ", row["text"])} for row in rows])
    settings = config(Path("unused"))
    tokens = [len(ids) for ids in models.load_tokenizer(settings)([row["text"] for row in rows])["input_ids"]]
    characters = sum(len(m.group()) for row in rows for m in re.finditer(r"call [\d ]*\d|\d+", row["text"]))
    numbers = sum(len(NUMBER.findall(row["text"])) for row in rows)
    assert found["documents"] == 40
    assert found["characters"] == sum(len(row["text"]) for row in rows)
    assert found["characters_masked"] == characters
    assert found["tokens"] == sum(tokens)
    assert found["kinds"]["number"]["spans"] == numbers
    assert found["kinds"]["call"]["spans"] == 20
    assert found["tokens_masked"] <= sum(kind["tokens"] for kind in found["kinds"].values())
    assert found["tokens_masked"] >= max(kind["tokens"] for kind in found["kinds"].values())
    assert found["share"] == found["tokens_masked"] / sum(tokens)
    assert 0.05 < found["share"] < 0.6
    assert found["rows"] == facts["rows"] == facts["public"]["rows"] == len(cut)
    assert found["rows_with_finding"] == sum(row.has_finding for row in cut)
    assert found["duplicates_dropped"] == 0
    assert json.dumps(facts)


def test_what_has_no_room_is_counted(tmp_path):
    rows = [{"user": "u", "text": f"call {'7' * 40} now"}, {"user": "u", "text": "call 7 now"}]
    found = prepared(tmp_path, rows).facts["redaction"]
    assert found["rows_cut_off"] == 1
    assert 20 < found["tokens_cut_off"] < 40


def test_the_table_shows_kinds_and_rows(tmp_path, capsys):
    show.preparation(prepared(tmp_path).facts)
    out = capsys.readouterr().out
    assert re.search(r"^number +\d+ +\d+ +\d+\.\d\d%$", out, re.M)
    assert re.search(r"^public +40 ", out, re.M)
    assert "rows in which something was found" in out


@pytest.mark.parametrize("task", ["masked-lm", "classification"])
def test_one_row_a_document_in_both_forms(tmp_path, task):
    rows = [row | {"kind": "ab"[i % 3 == 0]} for i, row in enumerate(people())]
    label = {"data__label": "kind"} if task == "classification" else {}
    found = prepared(tmp_path, rows, task=task, **label)
    assert found.train.n_rows == found.public.n_rows == len(rows)
    assert not re.search(r"\d", "".join(texts(found.public)))
    if task == "classification":
        assert found.public.labels.tolist() == found.train.labels.tolist() == [i % 3 != 0 for i in range(40)]


@pytest.mark.parametrize("mechanism", ["selective", "redacted", "crt"])
def test_a_detector_that_finds_nothing_is_an_error(tmp_path, mechanism):
    rows = [{"user": "u", "text": "nobody has a key"}, {"user": "u", "text": "nobody has"}]
    with pytest.raises(InputError, match=r"^detector: nothing sensitive was found in .*data\.text"):
        prepared(tmp_path, rows, mechanism)
    assert not (tmp_path / "data").exists()


def test_without_rows_to_set_apart_crt_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"every row of .* has a finding"):
        prepared(tmp_path, [{"user": "u", "text": f"call {i}"} for i in range(4)], "crt")


def test_dialogues_with_annotated_spans(tmp_path):
    rows = [
        {"turns": [{"speaker": "USER", "text": f"I am Ann{i}", "spans": [[5, 8 + len(str(i)), "name"]]},
                   {"speaker": "SYSTEM", "text": "hello", "spans": []}]}
        for i in range(6)
    ]  # fmt: skip
    changes = {
        "data__text": "turns",
        "data__speakers": {"USER": "USR:", "SYSTEM": "SYS:"},
        "special_tokens": ["USR:", "SYS:"],
        "detector": {"spans": "spans", "recall": 1.0},
    }
    found = prepared(tmp_path, rows, **changes)
    tokenizer = models.load_tokenizer(config(Path("unused"), **changes))
    (row,) = {tuple(row.tolist()) for row in found.public.fetch(np.arange(6))}
    assert tokenizer.decode(row) == "<|endoftext|>USR: I am <mask>\nSYS: hello<|endoftext|>"
    assert set(tokenizer.convert_tokens_to_ids(["USR:", "SYS:"])) <= set(row)
    assert found.facts["redaction"]["kinds"].keys() == {"name"}


def test_prepared_again_only_for_what_decides_the_rows(tmp_path):
    path = write(tmp_path / "t.jsonl", people())
    first = config(path)
    preparation.prepare(first, models.load_tokenizer(first), tmp_path / "data")
    for changes in (
        {"privacy__noise_multiplier": 2.0},
        {"detector__recall": None},
        {"redacted__steps": 9},
        {"redacted__batch": 4.0},
        {"redacted__learning_rate": 0.1},
        {"train__steps": 3},
    ):
        assert preparation.load(config(path, **changes), tmp_path / "data") is not None, changes
    for changes in (
        {"mechanism": "redacted"},
        {"mechanism": "crt"},
        {"redacted__span_tokens": 3},
        {"detector__words": "words.txt"},
        {"detector__patterns": ["EMAIL_ADDRESS"]},
        {"detector__expressions": {"number": "[0-9]"}},
        {"special_tokens": ["USR:"]},
    ):
        assert preparation.load(config(path, **changes), tmp_path / "data") is None, changes


def test_files_that_findings_come_from_are_watched(tmp_path):
    words, pipeline = tmp_path / "words.txt", tmp_path / "pipeline"
    words.write_text("ann\n")
    pipeline.mkdir()
    changes = {
        "detector__words": str(words),
        "detector__level": "low-entity",
        "detector__pipeline": str(pipeline),
    }
    settings = config(write(tmp_path / "t.jsonl", people()), **changes)
    before = data_source.files_of(settings)
    assert len(before) == 3
    words.write_text("ann\nbob\n")
    changed = data_source.files_of(settings)
    assert changed != before
    (pipeline / "meta.json").write_text("{}")
    assert data_source.files_of(settings) != changed
    assert len(data_source.files_of(config(tmp_path / "t.jsonl"))) == 1


def screened(folder: Path, share: float = 0.3, **changes):
    """Selective with a sample that a person has screened, who marked MARK."""
    from functools import partial

    from confide.randomness.streams import RunKey
    from confide.sensitive.redaction.policy import Policy
    from confide.sensitive.redaction.screening import sample

    folder.mkdir(exist_ok=True)
    settings = config(write(folder / "t.jsonl", people()), **changes)
    out = folder / "sample.jsonl"
    with Policy.of(settings, folder / "spans.db") as policy:
        read = partial(reading.training_documents, settings)
        sample(read, policy, RunKey.from_text("test"), share, 1, out, lambda *_: None)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines[1:]:
        line |= {"screened": True, "missed": [MARK] if MARK in line["text"] else []}
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    marked = config(
        folder / "t.jsonl",
        redacted__mode="screened",
        redacted__marks=str(out),
        **{"redacted__span_tokens": 2} | changes,
    )
    return marked, [line["document"] for line in lines[1:]]


def test_marks_of_another_run_or_detector_are_refused(tmp_path):
    from confide.randomness.streams import RunKey

    settings, _ = screened(tmp_path)
    tokenizer = models.load_tokenizer(settings)
    preparation.prepare(settings, tokenizer, tmp_path / "own", None, RunKey.from_text("test"))
    with pytest.raises(InputError, match="not a sample of this run"):
        preparation.prepare(settings, tokenizer, tmp_path / "other", None, RunKey.from_text("another"))
    policy = settings.detector.model_copy(update={"expressions": {"number": r"\d+"}})
    changed = settings.model_copy(update={"detector": policy})
    with pytest.raises(InputError, match="have changed since"):
        preparation.prepare(changed, tokenizer, tmp_path / "changed", None, RunKey.from_text("test"))


def test_screened_keeps_public_the_marked_documents_alone_and_masks_what_was_missed(tmp_path):
    settings, numbers = screened(tmp_path)
    assert 1 < len(numbers) < 40
    found = preparation.prepare(settings, models.load_tokenizer(settings), tmp_path / "data")
    rows = people()
    assert any(MARK in rows[number]["text"] for number in numbers)
    assert MARK not in "".join(texts(found.public))
    assert "".join(texts(found.train)).count(MARK) == sum(row["text"].count(MARK) for row in rows)
    assert set(found.public.unit_names()) == {f"row:{number}" for number in numbers}
    spans = [
        [
            *(m.span() for m in NUMBER.finditer(row["text"])),
            *(m.span() for m in re.finditer(MARK, row["text"])),
        ]
        if number in numbers
        else [m.span() for m in NUMBER.finditer(row["text"])]
        for number, row in enumerate(rows)
    ]
    redactor = Redactor(models.load_tokenizer(settings), "causal-lm", 16, 2)
    cut = [redactor.rows(row["text"], sorted(own)) for row, own in zip(rows, spans, strict=True)]
    assert same(found.train, [row.tokens for own in cut for row in own])
    assert same(found.public, [row.masked for number in sorted(numbers) for row in cut[number]])
    assert found.facts["redaction"]["kinds"]["MARKED"]["spans"] == sum(
        MARK in rows[n]["text"] for n in numbers
    )


def test_the_marks_decide_the_rows_and_their_file_is_watched(tmp_path):
    settings, _ = screened(tmp_path)
    preparation.prepare(settings, models.load_tokenizer(settings), tmp_path / "data")
    assert preparation.load(settings, tmp_path / "data") is not None
    assert not preparation.outdated(settings, tmp_path / "data")
    assert preparation.load(config(tmp_path / "t.jsonl"), tmp_path / "data") is None
    with open(tmp_path / "sample.jsonl", "a") as stream:
        stream.write("\n")
    assert preparation.outdated(settings, tmp_path / "data")


def test_marks_of_other_text_are_refused(tmp_path):
    settings, numbers = screened(tmp_path)
    rows = people()
    rows[numbers[0]]["text"] += " and more"
    write(tmp_path / "t.jsonl", rows)
    with pytest.raises(InputError, match="holds another text now"):
        preparation.prepare(settings, models.load_tokenizer(settings), tmp_path / "data")
