"""Text to unit graphs: rows, units, the split by unit, cutting, counts; twice is the same bytes."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from confide.config.loading import check
from confide.config.schema import Config
from confide.models import loading as models
from confide.runs import preparation
from confide.runs.folder import Run
from confide.runs.preparation import prepared_data
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.command import World, confide, files_below, tiny_model

WORDS = "the printer on floor three is out of paper again and nobody has a key".split()


@pytest.fixture(scope="module")
def tokenizer():
    return models.load_tokenizer(settings(Path("unused.jsonl")))


def settings(train: Path, **changes) -> Config:
    raw = {
        "data": {"train": str(train), "unit": "user", "eval": 0.3, "max_length": 16},
        "privacy": {"noise_multiplier": 1.0, "mechanism": "els"},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (raw.setdefault(section, {}) if section else raw)[key] = value
    return check(raw)


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def people(n: int, longest: int = 60, seed: int = 0) -> list[dict]:
    generator = random.Random(seed)
    return [
        {
            "user": f"u{user}",
            "text": " ".join(generator.choice(WORDS) for _ in range(generator.randint(4, longest))),
        }
        for user in range(n)
        for _ in range(generator.randint(1, 5))
    ]


def units(graph) -> set[str]:
    return {graph.unit_name(unit) for unit in range(graph.n_units)}


def rows_of(graph, name: str) -> list[list[int]]:
    unit = next(u for u in range(graph.n_units) if graph.unit_name(u) == name)
    return [row.tolist() for row in graph.fetch(graph.rows_of(unit))]


def everything(tokenizer, rows: list[dict]) -> dict[str, list[int]]:
    """The tokens of each user, one text after the other, each between start and end."""
    found: dict[str, list[int]] = {}
    for row in rows:
        ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        found.setdefault(row["user"], []).extend([tokenizer.bos_token_id, *ids, tokenizer.eos_token_id])
    return found


def test_every_token_of_every_unit_is_kept_but_tails_of_one(tmp_path, tokenizer):
    rows = people(40)
    config = settings(write(tmp_path / "t.jsonl", rows))
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.held_out is not None
    assert units(found.train) | units(found.held_out) == {row["user"] for row in rows}
    lost = 0
    for graph in (found.train, found.held_out):
        for name in units(graph):
            own = [row for row in rows if row["user"] == name]
            expected = []
            for tokens in (next(iter(everything(tokenizer, [row]).values())) for row in own):
                pieces = [tokens[i : i + 16] for i in range(0, len(tokens), 16)]
                lost += sum(len(piece) == 1 for piece in pieces)
                expected += [piece for piece in pieces if len(piece) > 1]
            assert rows_of(graph, name) == expected
    assert lost, "no text here ends in a tail of one token, so that case was not tested"
    total = sum(map(len, everything(tokenizer, rows).values()))
    assert found.train.n_tokens + found.held_out.n_tokens == total - lost
    facts = found.facts
    assert (facts["rows"], facts["units"], facts["tokens"]) == (
        found.train.n_rows, found.train.n_units, found.train.n_tokens)  # fmt: skip
    assert set(facts["rows_per_unit"]) == {"min", "median", "mean", "max"}
    assert facts["counts"]["records"] == facts["counts"]["documents"] == len(rows)


def test_a_unit_is_on_one_side_in_every_run(tmp_path, tokenizer):
    rows = people(200, longest=6)
    first = preparation.prepare(settings(write(tmp_path / "a.jsonl", rows)), tokenizer, tmp_path / "a")
    random.Random(5).shuffle(rows)
    more = write(
        tmp_path / "b.jsonl", [*rows, *({"user": f"new{i}", "text": "a few more words"} for i in range(50))]
    )
    second = preparation.prepare(settings(more), tokenizer, tmp_path / "b")
    assert first.held_out is not None
    assert second.held_out is not None
    assert not units(first.train) & units(first.held_out)
    assert units(first.held_out) == {name for name in units(second.held_out) if not name.startswith("new")}
    assert 30 <= len(units(first.held_out)) <= 90  # about 0.3 of 200
    fewer = preparation.prepare(settings(more, data__eval=0.1), tokenizer, tmp_path / "c")
    assert fewer.held_out is not None
    assert units(fewer.held_out) < units(second.held_out)  # a smaller share holds out some of the same


def test_rows_with_owners_on_both_sides_are_dropped_and_counted(tmp_path, tokenizer):
    rows = [
        {"user": [f"u{i}", f"u{i + 1}"], "text": "what two people said to each other"} for i in range(100)
    ]
    config = settings(write(tmp_path / "t.jsonl", rows))
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.held_out is not None
    assert not units(found.train) & units(found.held_out)
    dropped = found.facts["counts"]["documents dropped: owners on both sides of the split"]
    assert dropped > 0
    assert found.train.n_rows + found.held_out.n_rows + dropped == 100
    for graph in (found.train, found.held_out):
        assert all(len(graph.owners_of(row)) == 2 for row in range(graph.n_rows))


def test_without_a_unit_each_document_is_its_own(tmp_path, tokenizer):
    rows = people(20)
    config = settings(
        write(tmp_path / "t.jsonl", rows), data__unit=None, data__eval=None, privacy__mechanism="dp-sgd"
    )
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.held_out is None
    assert found.train.n_units == len(rows)


def test_an_evaluation_file(tmp_path, tokenizer):
    held = write(tmp_path / "held.jsonl", people(5, seed=1))
    config = settings(write(tmp_path / "t.jsonl", people(20)), data__eval=str(held))
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.held_out is not None
    assert units(found.held_out) == {f"u{i}" for i in range(5)}
    assert units(found.train) == {f"u{i}" for i in range(20)}
    assert found.facts["eval"]["units"] == 5


def test_quotes_are_stripped_and_counted(tmp_path, tokenizer):
    rows = [
        {"user": "ann", "text": "I agree with the plan.\n\n> shall we meet at nine\n> or at ten\n"},
        {"user": "bob", "text": "> only what others said\n"},
    ]
    config = settings(write(tmp_path / "t.jsonl", rows), data__strip_quotes=True, data__eval=None)
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert units(found.train) == {"ann"}
    text = tokenizer.decode(rows_of(found.train, "ann")[0])
    assert "agree" in text
    assert "nine" not in text
    assert found.facts["counts"]["documents dropped: only quotes"] == 1
    assert found.facts["counts"]["characters of quotes stripped"] > 40


def test_enron_cleaning_is_counted(tmp_path, tokenizer):
    def mail(sender="ann@x.org", to="bob@x.org", subject="lunch", body="shall we have lunch at noon"):
        return {
            "date": "Mon, 14 May 2001 16:39:00 -0700",
            "from": sender,
            "to": to,
            "subject": subject,
            "body": body,
        }

    again = "one two three four five six seven eight nine ten eleven twelve a b c d e f g h "
    rows = [
        mail(),
        mail(to="bob@x.org, cyd@x.org"),
        mail(sender="nobody"),
        mail(subject="Fwd: lunch"),
        mail(body=again * 2),
        mail(body=" "),
    ]
    config = settings(
        write(tmp_path / "t.jsonl", rows),
        data__unit="from", data__text="body", data__clean="enron", data__eval=None,
    )  # fmt: skip
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    wanted = {"read": 6, "unparsable": 1, "empty": 1, "forwarded": 1, "repeated 20-gram": 1,
              "receiver copies added": 1, "kept": 3, "records": 3, "documents": 3}  # fmt: skip
    assert {name: found.facts["counts"][name] for name in wanted} == wanted
    assert units(found.train) == {"ann@x.org"}


def test_classification_keeps_one_row_and_its_class_a_document(tmp_path, tokenizer):
    rows = [row | {"kind": ("good", "bad", 3)[i % 3]} for i, row in enumerate(people(40))]
    config = settings(
        write(tmp_path / "t.jsonl", rows), task="classification", data__label="kind", data__eval=None
    )
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.facts["classes"] == ["good", "bad", "3"]
    assert found.classes == 3
    assert found.train.labels is not None
    assert found.train.labels.tolist() == [i % 3 for i in range(len(rows))]
    assert found.train.n_rows == len(rows)
    assert found.train.row_lengths.max() == 16  # cut off, not cut into rows
    first = tokenizer(rows[0]["text"], truncation=True, max_length=16)["input_ids"]
    assert found.train.fetch(np.array([0]))[0].tolist() == first


def test_masked_lm_keeps_one_row_a_document(tmp_path, tokenizer):
    rows = people(20)
    config = settings(write(tmp_path / "t.jsonl", rows), task="masked-lm", data__eval=None)
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.train.n_rows == len(rows)
    assert found.train.row_lengths.max() == 16
    assert found.train.labels is None


def test_max_documents(tmp_path, tokenizer):
    config = settings(write(tmp_path / "t.jsonl", people(40)), data__max_documents=7, data__eval=None)
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.facts["counts"]["documents"] == 7


def test_duplicates_are_figures_without_text(tmp_path, tokenizer):
    shared = "this very sentence was sent by two people " * 5
    rows = [{"user": "ann", "text": shared}, {"user": "bob", "text": shared}, *people(20, longest=8)]
    config = settings(write(tmp_path / "t.jsonl", rows), data__eval=None)
    found = preparation.prepare(config, tokenizer, tmp_path / "data").facts["duplicates"]
    assert (found["rows_exact"], found["rows_affected"]) == (2, 2)
    assert "sentence was" not in json.dumps(found)
    config = settings(tmp_path / "t.jsonl", data__eval=None, data__duplicates=False)
    assert "duplicates" not in preparation.prepare(config, tokenizer, tmp_path / "other").facts


def test_twice_is_the_same_bytes(tmp_path, tokenizer):
    config = settings(write(tmp_path / "t.jsonl", people(40)))
    preparation.prepare(config, tokenizer, tmp_path / "a")
    first = files_below(tmp_path / "a")
    preparation.prepare(config, tokenizer, tmp_path / "a")
    preparation.prepare(config, tokenizer, tmp_path / "b")
    assert first == files_below(tmp_path / "a") == files_below(tmp_path / "b")
    assert first


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, tokenizer):
    path = write(tmp_path / "t.jsonl", people(40))
    with pytest.raises(InputError, match=r"data\.text"):
        preparation.prepare(settings(path, data__text="body"), tokenizer, tmp_path / "data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]
    preparation.prepare(settings(path), tokenizer, tmp_path / "data")
    before = files_below(tmp_path / "data")
    with open(path, "a") as stream:
        stream.write('{"user": "late", "text": ')
    with pytest.raises(InputError, match="not valid JSON"):
        preparation.prepare(settings(path), tokenizer, tmp_path / "data")
    assert files_below(tmp_path / "data") == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "t.jsonl"]


def made(path: Path, tokenizer, **changes) -> int:
    """Rows of a run on `path` in `path`'s folder, prepared if they are not."""
    run = Run(settings(path, run=str(path.parent / "run"), **changes))
    return prepared_data(run, tokenizer, Console(quiet=True)).train.n_rows


def test_prepared_once_until_config_or_text_changes(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path / "t.jsonl", people(40))
    calls = []
    real = preparation.prepare
    monkeypatch.setattr(preparation, "prepare", lambda *a: calls.append(1) or real(*a))
    rows = made(path, tokenizer)
    assert made(path, tokenizer) == rows
    assert made(path, tokenizer, train__steps=9) == rows  # decides nothing about the rows
    assert len(calls) == 1
    assert made(path, tokenizer, data__max_length=8) > rows
    assert len(calls) == 2
    assert made(path, tokenizer) == rows
    assert len(calls) == 3
    write(path, [row for row in people(40) if row["user"] != "u7"])  # somebody asked to be left out
    assert made(path, tokenizer) < rows
    assert len(calls) == 4


def test_a_run_that_has_begun_goes_on_with_its_rows(tmp_path, tokenizer):
    path = write(tmp_path / "t.jsonl", people(40))
    rows = made(path, tokenizer)
    (tmp_path / "run" / "ledger.jsonl").write_text("{}\n")
    write(path, people(50))
    assert made(path, tokenizer) == rows
    with pytest.raises(InputError, match=r"holds a run on other data \(differs in data\.max_length\)"):
        made(path, tokenizer, data__max_length=8)


def test_a_run_that_has_begun_says_that_its_text_has_changed(tmp_path, tokenizer, capsys):
    path = write(tmp_path / "t.jsonl", people(40))
    run = Run(settings(path, run=str(tmp_path / "run")))
    prepared_data(run, tokenizer, Console())
    (tmp_path / "run" / "ledger.jsonl").write_text("{}\n")
    prepared_data(run, tokenizer, Console())
    assert "have changed" not in capsys.readouterr().err
    write(path, [row for row in people(40) if row["user"] != "u7"])  # somebody asked to be left out
    prepared_data(run, tokenizer, Console())
    assert "the files of the text have changed, moved or gone since this run began" in capsys.readouterr().err


def test_spellings_of_one_name_are_told(tmp_path, tokenizer, capsys):
    rows = people(10)
    path = write(tmp_path / "t.jsonl", rows)
    prepared_data(Run(settings(path, run=str(tmp_path / "run"))), tokenizer, Console())
    assert "names differ from another" not in capsys.readouterr().err
    path = write(tmp_path / "t2.jsonl", [*rows, *({**row, "user": row["user"].upper()} for row in rows[:1])])
    prepared_data(Run(settings(path, run=str(tmp_path / "run2"))), tokenizer, Console())
    assert (
        "data.unit: 2 of 11 names differ from another only in capitals or spaces" in capsys.readouterr().err
    )


def test_the_verb_says_that_the_text_has_changed(tmp_path):
    world = World(tmp_path, tiny_model(tmp_path))
    first = confide("prepare", world.path)
    assert "histogram" in first.out
    assert confide("prepare", world.path).out == first.out
    drawn = (world.run / "data" / "rows_per_unit.svg").read_bytes()
    world.rows(world.text, users=40)
    again = confide("prepare", world.path)
    assert "the text has changed since it was prepared" in again.err
    assert again.out != first.out
    assert (world.run / "data" / "rows_per_unit.svg").read_bytes() != drawn


def test_train_says_that_it_prepares_again_and_draws_the_picture_again(tmp_path):
    world = World(tmp_path, tiny_model(tmp_path)).set(train__steps=1)
    assert confide("prepare", world.path).code == 0
    planted = ("canaries.count=8", "data.max_length=48")
    drawn = (world.run / "data" / "rows_per_unit.svg").read_bytes()
    trained = confide("train", world.path, *planted)
    assert trained.code == 0, trained
    assert "is of other settings of the data" in trained.err
    assert (world.run / "data" / "rows_per_unit.svg").read_bytes() != drawn
    assert "preparing again" not in confide("train", world.path, *planted).err


def test_real_posts(shared, tmp_path, tokenizer):
    source = shared / "data" / "20newsgroups" / "20_newsgroups.jsonl.xz"
    config = settings(
        source,
        data__unit="from",
        data__text="body",
        data__max_documents=300,
        data__max_length=128,
        data__strip_quotes=True,
    )
    found = preparation.prepare(config, tokenizer, tmp_path / "data")
    assert found.held_out is not None
    counts = found.facts["counts"]
    assert counts["documents"] == 300
    assert counts["characters of quotes stripped"] > 10_000
    assert not units(found.train) & units(found.held_out)
    assert all(graph.single_owner for graph in (found.train, found.held_out))
    assert 50 < found.train.n_units + found.held_out.n_units <= 300
    assert found.train.row_lengths.max() == 128
    assert found.train.row_lengths.min() >= 2


def test_a_share_that_holds_out_every_unit_says_to_lower_it(tmp_path, tokenizer):
    path = write(tmp_path / "two.jsonl", [{"user": f"u{n % 2}", "text": "a b c d e f"} for n in range(6)])
    with pytest.raises(InputError, match=r"^data\.eval: a share of 0\.99 held out every unit .*; lower it$"):
        preparation.prepare(settings(path, data__eval=0.99), tokenizer, tmp_path / "out")
