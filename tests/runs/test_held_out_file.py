"""Held-out text in a file of its own: whose it may be where its losses decide about what is released."""

import json
import random

import pytest

from tests.command import WORDS, World, confide, refused, tiny_model

LISTED = ("--space", "train.learning_rate=0.01,0.02")
PATIENT = {"train__eval_every": 1, "train__patience": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model) -> World:
    """Sixteen people train. The file of held-out text is of 5 people, of whom 3 train."""
    made = World(tmp_path, model)
    return made.set(data__eval=str(held_out(made, [2, 3, 5, 16, 17])))


def held_out(world: World, people: list[int], name: str = "held.jsonl", **fields):
    generator, path = random.Random(7), world.folder / name
    rows = [
        {"user": f"person{person}", "text": " ".join(generator.choice(WORDS) for _ in range(12))} | fields
        for person in people
        for _ in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# what is refused ---------------------------------------------------------------------------------------------
OVERLAP = (
    r"data\.eval: 3 of its 5 units also train, and {} their losses, which no noise covers: leave them out"
)


@pytest.mark.parametrize("verb", ["train", "plan"])
@pytest.mark.parametrize("mechanism", ["uls", "els", "group", "dp-sgd", "owners"])
def test_no_run_ends_by_the_losses_of_people_who_train(world, mechanism, verb):
    unit = ["user"] if mechanism == "owners" else "user"
    world.set(**PATIENT, privacy__mechanism=mechanism, data__unit=unit)
    said = confide(verb, world.path)
    refused(said, OVERLAP.format("train.patience ends the run by"))
    assert ("set data.unit: null" in said.err) == (mechanism == "dp-sgd")
    assert not (world.run / "ledger.jsonl").exists()  # the folder is free for another config
    assert confide("train", world.path, "train.patience=0").code == 0


@pytest.mark.parametrize("more", [(), ("--optuna",), ("--plan",)], ids=["counted", "optuna", "plan"])
def test_no_sweep_chooses_by_the_losses_of_people_who_train(world, more):
    refused(confide("tune", world.path, *LISTED, *more), OVERLAP.format("a sweep releases a trial by"))
    assert not (world.run / "trials").exists()
    assert not (world.run / "ledger.jsonl").exists()


def test_one_file_for_both_sides_is_refused_whoever_owns_its_documents(world):
    world.set(**PATIENT, privacy__mechanism="dp-sgd", data__unit=None, data__eval=str(world.text))
    refused(confide("train", world.path), r"data\.eval: \d+ of its \d+ units also train")


def test_rows_without_a_finding_train_too(world):
    """Under crt they lie in a graph of their own."""
    path = held_out(world, [2, 3, 5, 16, 17], "other.jsonl")
    people = {f"person{number}" for number in (2, 3, 5)}
    lines = [json.loads(line) for line in world.text.read_text().splitlines()]
    for line in lines:
        line["text"] += " nothing" if line["user"] in people else " 555-1234"
    world.write("".join(json.dumps(line) + "\n" for line in lines))
    world.set(
        data__eval=str(path),
        data__max_length=64,
        privacy__mechanism="crt",
        detector={"expressions": {"phone": r"\d{3}-\d{4}"}, "recall": 1.0},
        redacted={"steps": 2},
    )
    refused(confide("tune", world.path, *LISTED), OVERLAP.format("a sweep releases a trial by"))


def of_secrets(world: World) -> World:
    """Mechanism secret, on text of which every third document holds one of two secrets."""
    lines = [json.loads(line) for line in world.text.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["text"] += f" 555-000{number % 2}" if number % 3 == 0 else ""
    world.write("".join(json.dumps(line) + "\n" for line in lines))
    world.raw["privacy"] = {"mechanism": "secret"}
    world.raw["secrets"] = {
        "patterns": {"phone": r"\d{3}-\d{4}"},
        "prior": 1e-3,
        "posterior": 2e-3,
        "recall": 1.0,
    }
    return world.set(data__eval=0.3, data__unit=None, data__max_length=64)


def test_held_out_text_may_hold_the_secrets_that_train(world):
    of_secrets(world).set(**PATIENT)
    said = r"train\.patience: mechanism secret does not look for secrets in data\.eval"
    for verb in ("prepare", "plan", "train"):
        refused(confide(verb, world.path), said)
    assert not world.run.exists()
    for more in ((), ("--optuna",)):
        swept = confide("tune", world.path, "train.patience=0", *LISTED, *more)
        refused(swept, r"privacy\.mechanism: mechanism secret does not look for secrets in data\.eval")
    assert confide("train", world.path, "train.patience=0").code == 0


# what is not -------------------------------------------------------------------------------------------------
def test_without_a_choice_the_file_is_taken_and_said_to_be_no_text_of_others(world):
    found = confide("prepare", world.path)
    assert found.code == 0
    assert "warning: data.eval: 3 of its 5 units also train" in found.err
    assert confide("train", world.path).code == 0
    assert confide("eval", world.run).code == 0


def test_a_file_of_others_may_decide(world):
    world.set(**PATIENT, data__eval=str(held_out(world, [16, 17, 18])))
    found = confide("train", world.path)
    assert found.code == 0, found.err
    assert "also train" not in found.err
    swept = confide("tune", world.path, f"run={world.folder / 'sweep'}", *LISTED, "--trials", 2)
    assert swept.code == 0, swept.err


def test_where_nobody_is_protected_any_text_may_decide(world):
    del world.raw["privacy"]["noise_multiplier"], world.raw["privacy"]["delta"]
    found = confide("train", world.set(**PATIENT, privacy__mechanism="none").path)
    assert found.code == 0, found.err
    assert "3 of its 5 units also train" in found.err


def test_names_of_secrets_are_no_names_of_people(world):
    of_secrets(world).set(data__unit="user", data__eval=str(held_out(world, [2, 3, 5])))
    found = confide("prepare", world.path, "--json")
    assert found.code == 0, found.err
    assert not any("also train" in note for note in json.loads(found.out)["notes"])


def test_no_attack_takes_them_for_rows_of_others(world):
    assert confide("train", world.path).code == 0
    found = json.loads(confide("audit", world.run, "--attacks", "membership,users", "--json").out)
    assert found["left_out"].keys() == {"membership", "users"}
    assert all("3 units in training (data.eval)" in reason for reason in found["left_out"].values())
