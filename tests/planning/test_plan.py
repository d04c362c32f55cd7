"""A plan shows what a config would do and what its neighbours would, before a gradient."""

import json
import subprocess
import sys

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.models import loading as models
from confide.planning import cost
from confide.planning import plan as planning
from confide.planning.memory import memory
from confide.privacy import mechanisms
from confide.privacy.mechanisms import base
from confide.privacy.mechanisms.statement import calibrate
from confide.utils.errors import InputError
from tests import small
from tests.command import World, confide, tiny_model

COUNTS = np.array([1, 2, 3, 8, 5, 1, 9, 4, 4, 2] * 3)
SHAPE = Shape(COUNTS, int(COUNTS.sum()), 10 * int(COUNTS.sum()), True)
SIZE = cost.Size(1000, 500, 2, 16, 100)


def config(mechanism="uls", task="causal-lm", **changes):
    privacy = {"mechanism": mechanism} | ({"epsilon": 4.0} if mechanism != "none" else {})
    train = {"batch": 6.0, "steps": 4}
    for key, value in changes.items():
        if key in ("batch", "steps", "max_batch", "sampling_rate", "divisor", "micro_tokens", "optimizer"):
            train[key] = value
        else:
            privacy[key] = value
    if "noise_multiplier" in changes:
        privacy.pop("epsilon")
    data = {"train": "x", "unit": "user"} | ({"label": "l"} if task == "classification" else {})
    return check({"task": task, "data": data, "privacy": privacy, "train": train})


@pytest.fixture
def cheap(monkeypatch):
    """Calibration by a formula of the right kind, so that what is tested here is the plan; counts its calls."""
    calls = []

    def noise(process, epsilon, delta):
        calls.append(process)
        return 5.0 / epsilon

    monkeypatch.setattr(base, "calibrated", noise)
    return calls


def changes_of(found):
    return {row["change"]: row for row in found["neighbours"]}


def test_the_chosen_row_is_the_setting_that_training_uses_and_all_meet_the_target():
    """With the real accountant; each process is calibrated once, and a second plan costs no calibration."""
    base.calibrated.cache_clear()
    settings = config()
    found = planning.plan(settings, SHAPE, SIZE).to_json()
    mechanism = mechanisms.build(settings)
    setting = calibrate(mechanism, SHAPE, 4.0, None, None)
    chosen = found["chosen"]
    assert chosen["noise_multiplier"] == setting.noise_multiplier
    assert chosen["noise_per_gradient"] == setting.noise_multiplier / setting.parameters.divisor
    assert chosen["epsilon"] == setting.curve().epsilon(setting.delta) <= 4.0
    assert chosen["delta"] == setting.delta
    others = [other.mechanism for other in planning.alternatives(mechanism, SHAPE, settings)]
    assert len(others) == len(found["neighbours"]) == 8
    for row, other in zip(found["neighbours"], others, strict=True):
        parameters = other.parameters(SHAPE)
        reached = parameters.process.curve(row["noise_multiplier"]).epsilon(setting.delta)
        assert 3.9 < reached <= 4.0, row["change"]
        assert row["noise_per_gradient"] == row["noise_multiplier"] / parameters.divisor
        assert row["epsilon"] == 4.0
    # 9 settings, but other rows per unit leave the process of user sampling as it is.
    assert base.calibrated.cache_info().misses == 7
    json.dumps(found, allow_nan=False)
    planning.plan(settings, SHAPE, SIZE).to_json()
    assert base.calibrated.cache_info().misses == 7


@pytest.mark.parametrize("mechanism", ["uls", "els", "group"])
def test_the_other_user_level_mechanisms_stand_beside_it_at_equal_rows(cheap, mechanism):
    found = planning.plan(config(mechanism, rows_per_unit=3), SHAPE, SIZE).to_json()
    rows = changes_of(found)
    names = {"uls", "els", "group"} - {mechanism}
    assert {rows[f"{name}, as many rows a step"]["mechanism"] for name in names} == names
    for name in names:
        row = rows[f"{name}, as many rows a step"]
        assert row["rows_per_step"] == pytest.approx(found["chosen"]["rows_per_step"])
        assert row["relative_compute"] == pytest.approx(1.0)


@pytest.mark.parametrize("mechanism", ["uls", "els", "group", "dp-sgd"])
def test_rows_per_unit_batch_and_steps_are_halved_and_doubled(cheap, mechanism):
    changes = {} if mechanism == "dp-sgd" else {"rows_per_unit": 4}
    found = planning.plan(config(mechanism, **changes), SHAPE, SIZE).to_json()
    rows, chosen = changes_of(found), found["chosen"]
    for change, key, value in (
        ("batch 3", "batch", 3.0),
        ("batch 12", "batch", 12.0),
        ("steps 2", "steps", 2),
        ("steps 8", "steps", 8),
    ):
        assert rows[change][key] == value
        assert rows[change]["relative_compute"] == pytest.approx(value / chosen[key])
    if mechanism == "dp-sgd":
        assert not any("rows_per_unit" in change for change in rows)
    else:
        assert [rows[f"rows_per_unit {k}"]["rows_per_unit"] for k in (2, 8)] == [2, 8]


def test_the_median_is_halved_and_doubled_too(cheap):
    found = planning.plan(config("els", rows_per_unit="median"), SHAPE, SIZE).to_json()
    median = int(np.median(COUNTS))
    assert found["chosen"]["rows_per_unit"] == median
    assert {f"rows_per_unit {median // 2}", f"rows_per_unit {2 * median}"} <= set(changes_of(found))


def test_what_is_impossible_is_said_and_not_dropped(cheap):
    rows = changes_of(planning.plan(config(batch=20.0, rows_per_unit=1, steps=1), SHAPE, SIZE).to_json())
    assert "more than the 30 there are" in rows["batch 40"]["impossible"]
    assert "1 already" in rows["rows_per_unit halved"]["impossible"]
    assert "1 already" in rows["steps halved"]["impossible"]
    assert "noise_multiplier" in rows["batch 10"]
    rows = changes_of(planning.plan(config(batch=29.0, rows_per_unit=8), SHAPE, SIZE).to_json())
    assert "rows a step are more than" in rows["els, as many rows a step"]["impossible"]
    # Fewer users than the rows that a step holds: asked in units, such a batch must not stop the plan.
    rows = changes_of(planning.plan(config("els", batch=60.0), SHAPE, SIZE).to_json())
    assert rows["uls, as many rows a step"]["batch"] == pytest.approx(15.0)


def test_truncated_draws_keep_their_cap_in_proportion_and_cost_nothing(cheap):
    settings = config(sampling="truncated", max_batch=9, rows_per_unit=2)
    found = planning.plan(settings, SHAPE, SIZE, times_users=(0.5,)).to_json()
    rows = changes_of(found)
    assert "impossible" not in rows["els, as many rows a step"]
    plain = planning.plan(config(rows_per_unit=2), SHAPE, SIZE, times_users=(0.5,)).to_json()
    assert found["chosen"]["noise_multiplier"] == plain["chosen"]["noise_multiplier"]
    assert found["what_if"] == plain["what_if"]
    settings = config(sampling="truncated", max_batch=9, rows_per_unit=2)
    found = planning.alternatives(mechanisms.build(settings), SHAPE, settings)
    made = {each.change: each.mechanism for each in found}
    assert made["batch 12"].max_batch == 18
    assert made["group, as many rows a step"].max_batch == 18


def test_literal_constants_move_with_the_batch(cheap):
    """Else a doubled batch would be the same draw, and noise per gradient that of another divisor."""
    settings = config(sampling_rate=0.2, divisor=6.0, noise_multiplier=1.0, delta=1e-3)
    found = planning.alternatives(mechanisms.build(settings), SHAPE, settings)
    made = {each.change: each.mechanism for each in found}
    doubled = made["batch 12"].parameters(SHAPE)
    assert (doubled.sampling.rate, doubled.divisor) == (0.4, 12.0)
    other = made["els, as many rows a step"].parameters(SHAPE)
    assert other.divisor == pytest.approx(other.expected_batch)


def test_given_noise_the_neighbours_meet_the_epsilon_that_it_gives(cheap):
    found = planning.plan(config(noise_multiplier=1.3), SHAPE, SIZE).to_json()
    epsilon = (
        calibrate(mechanisms.build(config()), SHAPE, None, 1.3).curve().epsilon(found["chosen"]["delta"])
    )
    assert found["chosen"]["noise_multiplier"] == 1.3
    assert found["chosen"]["epsilon"] == pytest.approx(epsilon)
    assert {row["epsilon"] for row in found["neighbours"]} == {found["chosen"]["epsilon"]}


@pytest.mark.parametrize(("mechanism", "changes"), [("none", {}), ("uls", {"noise_multiplier": 0.0})])
def test_without_protection_there_is_no_target_to_compare_at(cheap, mechanism, changes):
    found = planning.plan(config(mechanism, **changes), SHAPE, SIZE).to_json()
    assert found["neighbours"] == []
    assert cheap == []
    assert found["chosen"]["epsilon"] == (None if mechanism == "none" else "inf")
    assert found["guarantee"]["notion"] == "none"
    assert found["chosen"]["noise_per_gradient"] == 0.0
    json.dumps(found, allow_nan=False)


def test_the_guarantee_is_whole_and_says_that_nothing_was_trained_yet(cheap):
    found = planning.plan(config("els", sampling="shuffle"), SHAPE, SIZE).to_json()["guarantee"]
    for key in (
        "notion",
        "theorem",
        "unit",
        "adjacency",
        "epsilon",
        "delta",
        "noise_multiplier",
        "clip_norm",
    ):
        assert key in found
    for key in ("steps", "sampling", "rows_per_unit", "accountant", "not_covered"):
        assert key in found
    assert found["theorem"] is False
    assert found["steps"] == 4
    assert "planned" in found["provenance"]["state"]


def test_compute_counts_tokens_of_all_steps(cheap):
    chosen = planning.plan(config("dp-sgd"), SHAPE, SIZE).to_json()["chosen"]
    assert chosen["tokens"] == 6 * 4 * 10
    assert chosen["operations"] == 6 * 1000 * 6 * 4 * 10


def test_the_memory_of_what_is_not_trained_or_kept_is_less():
    size = cost.Size(10**8, 10**8, 12, 768, 50_000)
    adapter = cost.Size(10**8, 10**6, 12, 768, 50_000)
    full = memory(config(), size).whole
    assert memory(config(), adapter).whole < full
    assert memory(config(optimizer="sgd"), size).whole == full - 4 * 10**8
    assert memory(config(optimizer="adamw"), size).whole == full + 4 * 10**8
    assert memory(config(micro_tokens=1024), size).whole < full
    assert memory(config(task="classification", selection="random"), size).whole < full


def test_sizes_are_those_of_the_model(tmp_path):
    for kind in small.FAMILIES:
        path = small.saved(tmp_path / kind, kind, "classification")
        data = {"train": "x", "unit": "u", "label": "l", "max_length": 16}
        raw = {"model": str(path), "task": "classification", "data": data, "privacy": {"epsilon": 1.0}}
        size = cost.Size.of(models.load_model(check(raw | {"adapter": {"kind": "lora", "rank": 1}}), 2))
        assert (size.layers, size.width, size.vocabulary) == (2, 16, small.TOKENS)
        assert 0 < size.trainable < size.parameters


_PEAK = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from confide.models import loading as models
from confide.planning import cost
from confide.planning.memory import kept, memory
from confide.config.loading import check
from confide.utils.allocator import keep_freed_memory
from confide.utils.errors import InputError
from confide.privacy.mechanisms.values import Aggregation
from confide.randomness.streams import RunKey
from confide.privacy.sampling import Draw
from confide.training.tasks.causal_lm import CausalLM
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep

settings = check(json.loads(sys.argv[1]))
model = models.load_model(settings)
size = cost.Size.of(model)
task = CausalLM.of(model, models.load_tokenizer(settings))
found = kept(model, task, 128) if settings.adapter.kind == 'lora' else None
rows = [np.random.default_rng(i).integers(2, 8192, 128) for i in range(2 * settings.train.micro_tokens // 128)]

class Sampler:
    def draw(self, step):
        n = len(rows) if step else 1
        return Draw(rows[:n], np.arange(n) // 4, np.full(n, 0.25, np.float32))

def status(name):
    return [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name)][0]

keep_freed_memory()
before = status("VmRSS") - 4 * size.parameters
key, tokens = RunKey.from_text("x"), settings.train.micro_tokens
aggregation, optimisation = Aggregation(1.0, 1.0, 1.0), Optimisation(5, 1e-3)
step = PrivateStep(model, task, Sampler(), aggregation, optimisation, key, "main", "fast", tokens)
step(1)
print(json.dumps([status("VmHWM") - before, memory(settings, size, found, on_cpu=True).whole]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("adapter", [{}, {"kind": "lora"}])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_memory_estimate_is_near_a_measured_peak(adapter, checkpointing):
    """On the bundled model, in a process of its own that keeps freed memory, as a run does."""
    train = {"micro_tokens": 2048, "gradient_checkpointing": checkpointing}
    raw = {
        "data": {"train": "x", "unit": "u"},
        "privacy": {"epsilon": 1.0},
        "adapter": adapter,
        "train": train,
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PEAK, json.dumps(raw)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, estimate = json.loads(done.stdout.splitlines()[-1])
    assert 0.85 < estimate / peak < 1.4, (peak, estimate)


def test_a_plan_without_noise_has_no_neighbours_and_one_in_two_phases_names_its_stages():
    shape = Shape(np.ones(50, dtype=np.int64), 50, 1000, True)
    detector = {"patterns": ["EMAIL_ADDRESS"], "recall": 1.0}
    raw = {"data": {"train": "x"}, "detector": detector, "train": {"steps": 20, "batch": 8}}
    redacted = planning.plan(check(raw | {"privacy": {"mechanism": "redacted"}}), shape, SIZE).to_json()
    assert (redacted["chosen"]["epsilon"], redacted["neighbours"]) == (0.0, [])
    twice = raw | {"privacy": {"mechanism": "selective", "epsilon": 3.0}, "redacted": {"steps": 30}}
    found = planning.plan(check(twice), shape, SIZE).to_json()
    assert [(phase["name"], phase["steps"]) for phase in found["stages"]] == [("redacted", 30), ("main", 20)]
    assert len(found["neighbours"]) == 4


def test_more_users_need_less_noise_and_nobody_may_claim_it():
    found = planning.plan(config(), SHAPE, SIZE, times_users=(10.0, 100.0)).to_json()
    ten, hundred = found["what_if"]
    assert found["chosen"]["noise_multiplier"] > ten["noise_multiplier"] > hundred["noise_multiplier"]
    assert (ten["times_users"], ten["units"], hundred["units"]) == (10, 300, 3000)
    assert ten["epsilon"] == pytest.approx(4.0, rel=2e-3)
    assert ten["delta"] < found["chosen"]["delta"]
    assert "no run may claim" in ten["note"]
    assert found["guarantee"]["noise_multiplier"] == found["chosen"]["noise_multiplier"]


@pytest.mark.parametrize(
    ("settings", "times", "words"),
    [
        (config(), 0.0, "above 0"),
        (config(), -1.0, "above 0"),
        (config(), 1e-3, "no number of people"),
        (config(), float("inf"), "no number of people"),
        (config(epsilon=None, noise_multiplier=0.0), 10.0, "without noise"),
        (config("none"), 10.0, "no rate"),
    ],
)
def test_a_what_if_needs_a_factor_and_a_rate(settings, times, words):
    with pytest.raises(InputError, match=words):
        planning.plan(settings, SHAPE, SIZE, times_users=(times,)).to_json()


def test_a_unit_that_the_mechanism_does_not_protect_is_said_to_be_none(tmp_path):
    """Whoever names customers, and then rows are protected, must not take epsilon for theirs."""
    world = World(tmp_path, tiny_model(tmp_path))
    told = confide("plan", world.set(privacy__mechanism="dp-sgd", privacy__rows_per_unit=4).path).out
    assert "data.unit: user is not what dp-sgd protects: one unit is " in told
    assert told.splitlines()[1].startswith("  one unit is ")
    told = confide("plan", world.set(privacy__mechanism="uls").path).out
    assert "is not what" not in told
