import json

import pytest
import yaml

from confide.cli import starter
from confide.config.loading import check
from confide.utils.errors import InputError


@pytest.mark.parametrize(
    ("record", "text", "unit", "mechanism"),
    [
        ({"from": "a@x.org", "subject": "s", "body": "hello there"}, "{subject}\n{body}", "from", "uls"),
        ({"customer": "c1", "text": "hello", "topic": "t"}, "text", "customer", "uls"),
        ({"title": "t", "words": "much longer than the title is"}, "words", None, "dp-sgd"),
        ({"user": None, "text": "hello"}, "text", None, "dp-sgd"),
        ({"@type": "mail", "text": "hello"}, "text", None, "dp-sgd"),
    ],
)
def test_a_config_that_is_valid_and_guesses_well(tmp_path, record, text, unit, mechanism):
    source = tmp_path / "notes.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for _ in range(3)))
    config = check(yaml.safe_load(starter.write(str(source))))
    assert (config.data.text, config.data.unit, config.privacy.mechanism) == (text, unit, mechanism)
    assert config.run == "runs/notes"


def test_nothing_to_read_is_said(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        starter.write(str(tmp_path / "nowhere"))


def test_a_batch_that_the_data_can_fill(tmp_path):
    source = tmp_path / "notes.jsonl"
    source.write_text("".join(json.dumps({"from": f"u{i % 12}", "text": "hi"}) + "\n" for i in range(60)))
    assert check(yaml.safe_load(starter.write(str(source)))).train.batch == 6


@pytest.mark.parametrize(
    ("names", "messages", "expected"),
    [
        (["USER", "SYSTEM"], "turns", {"SYSTEM": "assistant"}),  # of these two, the system answers
        (["human", "gpt", "system"], "turns", {}),  # known by these names
        (["customer", "agent"], "turns", {"customer": "user", "agent": "assistant"}),
        (
            ["user", "assistant", "asistant"],
            "turns",
            {},
        ),  # a role misspelt once is no reason to learn every side
        (["caller", "desk"], None, {"caller": "caller:", "desk": "desk:"}),  # who answers is not known
        ([f"person {n}" for n in range(9)], None, {}),  # people: their names are data, not roles
    ],
)
def test_dialogues_get_roles_or_prompts_and_no_unit_that_names_nobody(tmp_path, names, messages, expected):
    source = tmp_path / "chats.jsonl"
    turns = [{"speaker": name, "text": "hello"} for name in names]
    source.write_text("".join(json.dumps({"id": f"d{n}", "turns": turns}) + "\n" for n in range(5)))
    config = check(yaml.safe_load(starter.write(str(source))))
    assert (config.data.unit, config.data.speakers) == (None, expected)
    assert (config.data.messages, config.data.text) == (messages, "text" if messages else "turns")


def test_a_misspelt_role_is_said_before_anything_is_read(tmp_path):
    source = tmp_path / "chats.jsonl"
    rows = [
        {
            "customer": f"c{n}",
            "messages": [{"role": role, "content": "hello"} for role in ("user", "asistant")],
        }
        for n in range(5)
    ]
    rows += [{**rows[0], "messages": [{"role": "assistant", "content": "hello"}]}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = starter.write(str(source))
    words = " ".join(line.removeprefix("# WARNING: ") for line in text.splitlines())
    assert "'asistant' is none of the roles" in words
    assert 'speakers: {"asistant": assistant}' in words
    config = check(yaml.safe_load(text))
    assert config.data.messages == "messages"
    assert config.special_tokens == ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(
    "lines",
    [
        "ann@example.org,hello\nbob@example.org,some words\n",
        "ann,hello\nbob,some words\nann,other words\n",
        "1,Hello my order 3201 is late again\n2,some words\n",
    ],
)
def test_a_table_without_column_names_puts_nobodys_text_into_a_config(tmp_path, lines):
    source = tmp_path / "mail.csv"
    source.write_text(lines)
    with pytest.raises(InputError, match="is the line of column names missing"):
        starter.write(str(source))
    source.write_text("from,body\n" + lines.replace("ann,", "ann@example.org,"))
    assert "body" in starter.write(str(source))


def test_a_config_or_a_run_is_no_text(tmp_path):
    config = tmp_path / "mail.yaml"
    config.write_text("data: {train: mail.jsonl, txt: body}\n")  # a fault of its own does not matter
    with pytest.raises(InputError, match=r"mail\.yaml: is a config already"):
        starter.write(str(config))
    config.write_text("- some text\n")
    assert "mail.yaml" in starter.write(str(config))
    run = tmp_path / "run"
    run.mkdir()
    for name in ("ledger.jsonl", "config.yaml"):
        (run / name).write_text("{}\n")
    with pytest.raises(InputError, match=r"run: is a run, and has a config: `confide plan .*run`"):
        starter.write(str(run))
