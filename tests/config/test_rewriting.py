"""A config with other values is otherwise as its owner wrote it."""

import pytest

from confide.config.loading import load
from confide.config.rewriting import rewritten
from confide.tuning.space import altered

CHANGES = {
    "privacy.mechanism": "els",
    "privacy.rows_per_unit": 8,
    "privacy.delta": 1e-5,
    "train.batch": 140,
    "train.steps": 45,
}

MINE = """\
# my notes on Müller's mails
data:
    train: mail.jsonl   # the export
    unit: from

privacy:
    epsilon: 8          # agreed with the works council
    mechanism: uls      # or els?
    delta:
train: {batch: 64.5, learning_rate: 1e-3}   # a first guess
run: "runs/mail"  # keep
"""

DATA = "data: {train: a, unit: b}\n"


def changed(tmp_path, text: str, **values):
    path = tmp_path / "c.yaml"
    path.write_text(text, "utf-8")
    config = altered(load(path), CHANGES | values)
    return rewritten(path, config), config


def test_only_what_differs_is_written(tmp_path):
    text, config = changed(tmp_path, MINE)
    expected = (
        MINE.replace("mechanism: uls ", "mechanism: els ")
        .replace("    delta:\n", "    delta: 1.0e-05\n    rows_per_unit: 8\n")
        .replace("{batch: 64.5, learning_rate: 1e-3}", "{batch: 140.0, learning_rate: 1e-3, steps: 45}")
    )
    assert text == expected
    (tmp_path / "d.yaml").write_text(text, "utf-8")
    assert load(tmp_path / "d.yaml") == config


@pytest.mark.parametrize(
    "text",
    [
        DATA + "privacy: {epsilon: 8}",  # no section for the rest, no end of line
        DATA + "privacy:\n  epsilon: 8\ntrain:\n  batch: 3\n",
        DATA + 'privacy: {epsilon: 8}\n"train":\n  "batch": 3\n\n\n# the end\n',
        "data:\n  train: a\n  unit: b\n  speakers:\n    A: x\n    B: y  # z\nprivacy: {epsilon: 8}\ntrain:\n  steps: 9",
        "{data: {train: a, unit: b}, privacy: {epsilon: 8}, train: {steps: 3}}\n",
        DATA.replace("\n", "\r\n") + "privacy:\r\n  epsilon: 8\r\ntrain:\r\n  steps: 3\r\n",
        "---\n" + DATA + "privacy: {epsilon: 8}\ntrain: {}\n...\n",  # nothing to add to: all of it is written
        DATA + "privacy: &p {mechanism: uls, epsilon: 8}\ntrain: {steps: 3}\n",
        DATA + "privacy:\n  epsilon: 8\n  mechanism: |-\n    uls\n",
    ],
    ids=range(9),
)
def test_whatever_the_notation_the_values_are_those_that_were_asked_for(tmp_path, text):
    found, config = changed(tmp_path, text)
    (tmp_path / "d.yaml").write_text(found, "utf-8")
    assert load(tmp_path / "d.yaml") == config


@pytest.mark.parametrize("own", ["", "\n  scales: {}", "\n  scales:\n    embeddings: 3.0"])
def test_words_that_yaml_would_read_otherwise_are_quoted(tmp_path, own):
    """A star begins the name of an anchor: without quotes the text would be no YAML, and its comments would be lost."""
    scales = {"embeddings": 2.0, "*attn": 0.5}
    text = f"{DATA}privacy:\n  epsilon: 8  # agreed{own}\ntrain: {{steps: 3}}\n"
    found, config = changed(tmp_path, text, **{"privacy.scales": scales})
    assert "epsilon: 8  # agreed" in found
    (tmp_path / "d.yaml").write_text(found, "utf-8")
    assert load(tmp_path / "d.yaml") == config
    assert config.privacy.scales == scales


def test_what_was_overridden_is_written_too(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(MINE, "utf-8")
    found = rewritten(path, load(path, ["privacy.epsilon=3", "train.warmup=2"]))
    assert "epsilon: 3.0          # agreed" in found
    assert "learning_rate: 1e-3, warmup: 2}   # a first guess" in found
