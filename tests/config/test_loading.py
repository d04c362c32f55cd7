from pathlib import Path

import pytest
import yaml

import confide
from confide.config import loading as configs
from confide.config import schema as settings
from confide.privacy import mechanisms
from confide.utils.errors import InputError
from tests.places import ROOT

GOOD = {"data": {"train": "mail.jsonl", "unit": "from"}, "privacy": {"epsilon": 8}}


def write(tmp_path, value):
    path = tmp_path / "config.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def merged(*changes):
    raw = {name: dict(section) for name, section in GOOD.items()}
    for key, value in changes:
        *sections, last = key.split(".")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return raw


def test_a_short_config_is_enough(tmp_path):
    config = configs.load(write(tmp_path, GOOD))
    assert config.privacy.mechanism == "uls"
    assert config.privacy.epsilon == 8.0
    assert config.model == "bundled"


def test_overrides_are_yaml_and_win(tmp_path):
    overrides = ["privacy.epsilon=3", "train.steps=7", "adapter={kind: lora, rank: 4}", "privacy.delta=1e-6"]
    config = configs.load(write(tmp_path, GOOD), overrides)
    assert (config.privacy.epsilon, config.train.steps, config.adapter.rank) == (3.0, 7, 4)
    assert config.privacy.delta == 1e-6


def test_resolved_config_reads_back_as_itself(tmp_path):
    config = configs.load(write(tmp_path, GOOD))
    assert configs.load(write(tmp_path, config.to_yaml())) == config


# (what is wrong, key and value, what the message must say)
BROKEN = [
    ("privacy.epsilom", 3, "privacy.epsilom: no such key, did you mean privacy.epsilon?"),
    ("train.epsilon", 3, "train.epsilon: no such key, did you mean privacy.epsilon?"),
    ("lerning_rate", 3, "lerning_rate: no such key, did you mean train.learning_rate?"),
    ("privcy", {"epsilon": 1}, "privcy: no such key, did you mean privacy?"),
    ("privacy.epsilon", "eight", "privacy.epsilon: 'eight' is not valid, must be a number above 0 or null"),
    ("privacy.epsilon", -1, "privacy.epsilon: -1 is not valid, must be a number above 0"),
    ("privacy.epsilon", 0, "privacy.epsilon: 0 is not valid"),
    ("privacy.epsilon", float("inf"), "privacy.epsilon: .inf is not valid"),
    ("privacy.epsilon", float("nan"), "privacy.epsilon: .nan is not valid"),
    ("privacy.epsilon", None, "privacy.epsilon: say how much privacy"),
    ("privacy.epsilon", [1, 2], "privacy.epsilon: is not valid, must be a number"),
    ("privacy.epsilon", True, "privacy.epsilon: true is not valid"),
    ("privacy.noise_multiplier", 1.0, "privacy.epsilon: epsilon and noise_multiplier are both given"),
    ("privacy.delta", 1, "privacy.delta: 1 is not valid, must be a number above 0 and below 1"),
    ("privacy.delta", 0, "privacy.delta: 0 is not valid"),
    ("privacy.delta", "1e-5x", "privacy.delta: '1e-5x' is not valid"),
    (
        "privacy.mechanism",
        "usl",
        f"privacy.mechanism: 'usl' is not one of {', '.join(mechanisms.NAMES)}, did you mean uls?",
    ),
    ("privacy.mechanism", "none", "privacy.epsilon: mechanism none adds no noise"),
    ("privacy.mechanism", 3, "privacy.mechanism: 3 is not valid, must be one of none"),
    ("privacy.clip_norm", 0, "privacy.clip_norm: 0 is not valid, must be a number above 0"),
    (
        "privacy.rows_per_unit",
        0,
        "privacy.rows_per_unit: 0 is not valid, must be a whole number at least 1 or one of median",
    ),
    ("privacy.rows_per_unit", 2.5, "privacy.rows_per_unit: 2.5 is not valid"),
    ("privacy.selection", "longst", "privacy.selection: 'longst' is not valid"),
    ("privacy.sampling", "poison", "did you mean poisson?"),
    ("privacy.sampling", "truncated", "train.max_batch: sampling: truncated needs"),
    ("privacy.resample", True, "privacy.resample: uls averages"),
    ("privacy.adjacency", "add-or-remove", "train.sampling_rate: an add-or-remove claim needs a literal"),
    ("data.unit", None, "data.unit: mechanism uls protects a unit"),
    ("data.unit", ["from", "to"], "data.unit: user sampling needs rows with one owner each"),
    ("data.eval", 1.5, "data.eval: 1.5 is not valid, must be a number above 0 and below 1 or text or null"),
    ("data.format", "jsnl", "data.format: 'jsnl' is not valid"),
    ("data.max_length", 1, "data.max_length: 1 is not valid, must be a whole number at least 2"),
    ("data.label", "topic", "data.label: task: causal-lm has no classes"),
    ("data.clean", "enrn", "did you mean enron?"),
    ("task", "clm", "task: 'clm' is not valid, must be one of causal-lm, masked-lm, classification"),
    ("task", "classification", "data.label: task: classification needs"),
    ("adapter.kind", "lorra", "did you mean lora?"),
    ("adapter.rank", 0, "adapter.rank: 0 is not valid"),
    ("adapter", "lora", "adapter: 'lora' is not valid, must be a section with keys"),
    ("adapter.kind", "modules", "adapter.targets: kind: modules needs the names"),
    ("train.steps", 0, "train.steps: 0 is not valid"),
    ("train.steps", "many", "train.steps: 'many' is not valid, must be a whole number at least 1"),
    ("train.steps", 10.5, "train.steps: 10.5 is not valid"),
    ("train.batch", -4, "train.batch: -4 is not valid"),
    ("train.max_batch", 500, "train.max_batch: is an option of sampling: truncated"),
    ("train.learning_rate", "fast", "train.learning_rate: 'fast' is not valid, must be a number above 0"),
    ("train.optimizer", "adam", "did you mean adamw?"),
    ("train.precision", "fp16", "train.precision: 'fp16' is not valid, must be one of float32, bf16"),
    ("train.momentum", 0.9, "train.momentum: is an option of sgd, not of tensor-adamw"),
    ("train.warmup", 1000, "train.warmup: 1000 warm-up steps are more than the 500"),
    (
        "trust_remote_code",
        "yes please",
        "trust_remote_code: 'yes please' is not valid, must be true or false",
    ),
    ("run", None, "run: null is not valid, must be text"),
    ("data.train", None, "data.train: null is not valid"),
]


@pytest.mark.parametrize(
    ("key", "value", "message"), BROKEN, ids=[f"{key}={value}" for key, value, _ in BROKEN]
)
def test_a_broken_key_is_named(tmp_path, key, value, message):
    with pytest.raises(InputError) as caught:
        configs.load(write(tmp_path, merged((key, value))))
    assert message in str(caught.value)


FILES = [
    ("", "the file is empty"),
    ("- a\n- b\n", "a config is keys with values, as in `model: bundled`, and this is a list"),
    ("just text", "a config is keys with values, as in `model: bundled`, and this is one value alone"),
    ("data: [unclosed", "not valid YAML"),
    ("data:\n  train: a\n  train: b\n", "key 'train' stands twice, again at line 3"),
    ("privacy: {epsilon: 8}\n", "data: is missing"),
    ("data: {unit: a}\nprivacy: {epsilon: 8}\n", "data.train: is missing (what to read)"),
    ("data:\n\ttrain: a\n", "indent with spaces, not tabs"),
    ("data: {train: a}\nrun:here\nmodel: b\n", " line 2: not valid YAML"),
    ("data: {train: a}\nrun:here\nmodel: b\n", "; a key is followed by a colon and a space"),
    ('run: "here\nmodel: b\n', " line 1: not valid YAML"),
    ('run: "here\nmodel: b\n', "; the quote that opens in this line is not closed"),
    ('run: "C:\\data"\n', "; in double quotes a backslash has a meaning"),
    ("data:\n  text: {subject} {body}\n", "; put text with braces, brackets or quotes in quotes as a whole"),
    ("data:\n  train: a\n   unit: b\n", "line 3: "),
    ("data:\n  train: a\n unit: b\n", "; this line begins further to the right than those of its section"),
]


@pytest.mark.parametrize(("text", "message"), FILES)
def test_a_broken_file_is_named(tmp_path, text, message):
    with pytest.raises(InputError, match=r"config\.yaml") as caught:
        configs.load(write(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.yaml: no such config file"):
        configs.load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(InputError, match="not UTF-8"):
        configs.load(tmp_path / "binary.yaml")


@pytest.mark.parametrize("override", ["privacy.epsilon", "=3", "privacy.epsilon.deep=3", "x=[1"])
def test_a_broken_override_is_named(tmp_path, override):
    with pytest.raises(InputError):
        configs.load(write(tmp_path, GOOD), [override])


def test_an_adapter_to_random_weights_is_refused(tmp_path):
    raw = merged(("model", "tiny/config.json"), ("adapter.kind", "lora"))
    with pytest.raises(InputError, match=r"adapter.kind: an adapter to a model from scratch"):
        configs.load(write(tmp_path, raw))


def test_all_faults_are_reported_at_once(tmp_path):
    """Pitfall 18: unknown keys, wrong types and impossible combinations in one go."""
    raw = merged(("privacy.epsilom", 3), ("train.steps", "many"), ("adapter.kind", "modules"))
    with pytest.raises(InputError) as caught:
        configs.load(write(tmp_path, raw))
    for part in ("3 faults", "privacy.epsilom", "train.steps", "adapter.targets"):
        assert part in str(caught.value)


def test_no_key_is_accepted_and_ignored():
    """Every key is read somewhere in the package beside the config itself."""
    own = {Path(module.__file__) for module in (configs, settings)}
    code = "".join(p.read_text() for p in Path(confide.__file__).parent.rglob("*.py") if p not in own)
    every = configs.keys()
    assert [key for key in every if key.rpartition(".")[2] not in code] == []


def test_the_reference_names_every_key():
    text = configs.reference()
    every = configs.keys()
    for key in every:
        assert f"`{key}`" in text


def test_the_reference_in_the_docs_is_the_one_of_the_schema():

    written = ROOT / "docs" / "config.md"
    assert written.read_text() == configs.reference(), "python -m confide.config.loading > docs/config.md"


def test_adafactor_needs_whole_parameters():
    raw = {"data": {"train": "x", "unit": "u"}, "privacy": {"epsilon": 1.0}}
    train = {"optimizer": "adafactor", "distributed": "fsdp"}
    with pytest.raises(InputError, match=r"train\.optimizer: adafactor needs whole parameters"):
        configs.check(raw | {"train": train})
    configs.check(raw | {"train": train | {"distributed": "ddp"}})


@pytest.mark.parametrize(
    ("override", "said"),
    {
        "steps=3": "steps: no such key, did you mean train.steps?",
        "train.betas=[0.9]": "train.betas: is not valid, must be a list of two numbers",
        'privacy.epsilon="8"': "must be a number above 0 or null; write 8, without quotes",
        "train.steps=1e3": "1000.0 is not valid, must be a whole number at least 1; write 1000",
        "privacy.epsilon=-3.0": "-3.0 is not valid, must be a number above 0 or null$",
        "train.steps=3.5": "3.5 is not valid, must be a whole number at least 1$",
        "data.eval=10%": "'10%' is not valid, .*; write 0.1, without quotes",
        "data.eval=0,1": "'0,1' is not valid, .*; write 0.1, without quotes",
        "data.text=*body": "not valid YAML: .*; text that begins so stands in two pairs of quotes",
        "data.text=[body": "not valid YAML: .*end>'$",
    }.items(),
)
def test_a_fault_says_what_was_probably_meant(override, said, tmp_path):
    with pytest.raises(InputError, match=said):
        configs.load(write(tmp_path, GOOD), [override])


def test_a_held_out_file_may_have_a_number_for_a_name(tmp_path):
    for name in ("2024.jsonl", "'2024'"):
        assert configs.load(write(tmp_path, GOOD), [f"data.eval={name}"]).data.eval == name.strip("'")
