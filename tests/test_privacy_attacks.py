"""Attacks on the claims: each test is one way in which a stated guarantee was, or could be, false."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from confide.clipping import ClippedSum
from confide.config.loading import check
from confide.config.schema import Config
from confide.data.shape import Shape
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.models import loading as models
from confide.privacy import mechanisms
from confide.privacy.accounting import GroupOf, MixtureOfGaussians
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.randomness.streams import FastStream, RunKey, add_noise
from confide.runs import preparation
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.errors import InputError
from tests import small

LITERAL = {"sampling_rate": 0.25, "divisor": 5.0, "steps": 20}  # what an add-or-remove claim asks for


def config(mechanism: str = "els", train: dict | None = None, data: dict | None = None, **privacy) -> Config:
    raw = {
        "data": {"train": "x", "unit": "from"} | (data or {}),
        "privacy": {"mechanism": mechanism, "noise_multiplier": 2.0} | privacy,
        "train": {"steps": 20, "batch": 5.0} | (train or {}),
    }
    return check(raw)


def added(mechanism: str, **privacy) -> Config:
    return config(mechanism, LITERAL, {"eval": None}, adjacency="add-or-remove", delta=1e-5, **privacy)


def shape(counts: list[int]) -> Shape:
    return Shape(np.array(counts), sum(counts), 10 * sum(counts), True)


def guarantee(settings: Config, counts: list[int]) -> dict:
    setting = calibrate(mechanisms.build(settings), shape(counts), None, 2.0, settings.privacy.delta)
    return state_guarantee(setting, 20, False, settings, {"date": "today"}).to_json()


# add-or-remove: the claim holds for every unit that might be added, and tells nothing of those there ----------
@pytest.mark.parametrize("mechanism", ["els", "group"])
def test_a_unit_that_is_added_may_have_as_many_rows_as_the_cap(mechanism):
    settings = added(mechanism, rows_per_unit=4)
    process = mechanisms.build(settings).parameters(shape([1, 1, 2, 1])).process
    one = MixtureOfGaussians.bernoulli(0.25, 20)
    assert process == (MixtureOfGaussians.binomial(4, 0.25, 20) if mechanism == "els" else GroupOf(one, 4))


@pytest.mark.parametrize("mechanism", ["uls", "els", "group", "dp-sgd"])
def test_an_add_or_remove_claim_is_the_same_with_and_without_a_unit(mechanism):
    # It is published with the model: a number of units or rows in it is an exact statistic of the data.
    settings = added(mechanism)
    assert guarantee(settings, [3, 1, 2]) == guarantee(settings, [3, 1, 2, 4])


def test_an_add_or_remove_claim_does_not_call_the_unit_graph_public():
    # Whether the unit is there at all is what it promises to hide.
    assert not any("number of units" in fact for fact in guarantee(added("uls"), [3, 1, 2])["public_facts"])


def sides(folder: Path, settings: dict, rows: list[dict]) -> dict[str, str]:
    """Text of each document -> the side of the split it came to, with its class."""
    folder.mkdir()
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = config("dp-sgd", LITERAL, {"train": str(source)} | settings, adjacency="add-or-remove", delta=1e-5)
    tokenizer = models.load_tokenizer(made)
    prepared = preparation.prepare(made, tokenizer, folder / "data")
    graphs = {"train": prepared.train, "eval": prepared.held_out}
    return {
        tokenizer.decode(row.tolist(), skip_special_tokens=True): name
        for name, graph in graphs.items()
        if graph is not None
        for row in graph.fetch(np.arange(graph.n_rows))
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"unit": None, "eval": 0.5, "duplicates": False},  # units are numbered, and the split goes by number
        {"unit": "user", "eval": None, "max_documents": 6, "duplicates": False},
        {
            "unit": "user",
            "without_unit": "own",
            "eval": 0.5,
            "duplicates": False,
        },  # those of nobody are numbered
    ],
    ids=["split by number", "first documents", "documents of nobody"],
)
def test_adding_a_document_moves_no_other_one(tmp_path, settings):
    nobody = "without_unit" in settings
    rows = [
        {"user": None if nobody and i % 9 else f"u{i}", "text": f"document number {i} of all"}
        for i in range(10)
    ]
    try:
        without, whole = sides(tmp_path / "a", settings, rows[1:]), sides(tmp_path / "b", settings, rows)
    except InputError:
        return  # refused, which is sound
    whole.pop(next((text for text in whole if "number 0 " in text), ""), None)
    assert whole == without


# held-out text: what is released may not hang on the losses of a unit that trains ------------------------------
def ended(folder: Path, held_out: list[tuple[str, str]], **settings) -> int | None:
    """After how many steps a run ends by its held-out losses; None if it is refused."""
    made, held = tiny(folder, steps=8).model_dump(exclude_defaults=True), folder / "held.jsonl"
    held.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in held_out))
    made["data"] |= {"eval": str(held)}
    made["privacy"] |= settings | {"published_key": "ended"}
    made["train"] |= {"eval_every": 1, "patience": 2, "learning_rate": 0.01}
    try:
        return fine_tune(Run(check(made))).steps
    except InputError as refused:
        assert "also train" in str(refused)  # noqa: PT017
        return None


@pytest.mark.parametrize("mechanism", ["uls", "els"])
def test_no_text_of_a_unit_that_trains_decides_when_a_run_ends(tmp_path, mechanism):
    others = [("v", f"say {i} and {i * i}") for i in range(4)]
    own = [("u0", "say " * (i % 9 + 1)) for i in range(60)]
    without = ended(tmp_path / "a", others, mechanism=mechanism)
    assert without is not None
    assert ended(tmp_path / "b", others + own, mechanism=mechanism) in (None, without)
    # Text of somebody else decides, and so the line above can fail.
    same_text = [("w", text) for _, text in own]
    assert ended(tmp_path / "c", others + same_text, mechanism=mechanism) not in (None, without)


# streams: two trainings that differ never share their noise --------------------------------------------------
def tiny(folder: Path, **train) -> Config:
    common = folder / "common"
    if not common.exists():
        common.mkdir(parents=True)
        (common / "text.jsonl").write_text(
            "".join(
                json.dumps({"user": f"u{i % 12}", "text": f"say {i * i} and {i}"}) + "\n" for i in range(48)
            )
        )
        small.saved(common / "model", "gpt2")
    return check(
        {
            "model": str(common / "model"),
            "tokenizer": "bundled",
            "data": {"train": str(common / "text.jsonl"), "unit": "user", "eval": None, "max_length": 16},
            "privacy": {"noise_multiplier": 30.0, "rows_per_unit": 2},
            "train": {"steps": 1, "batch": 6.0, "learning_rate": 1.0, "optimizer": "sgd"} | train,
            "run": str(folder / "run"),
        }
    )


def moved(settings: Config) -> torch.Tensor:
    """How the weights moved in a run of one step: the noised gradient."""
    before = load_file(Path(settings.model) / "model.safetensors")
    fine_tune(Run(settings))
    after = load_file(Run(settings).release / "model.safetensors")
    return torch.cat([(after[name] - before[name]).double().flatten() for name in sorted(after)])


def forget(run: Run, *names: str) -> None:
    for name in names:
        path = run.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("wiped", [("checkpoints",), ("checkpoints", "ledger.jsonl")], ids=str)
def test_another_base_model_in_the_same_folder_does_not_meet_the_same_noise(tmp_path, wiped):
    # The name in the config stays while its weights change, as those of a hub model do.
    settings = tiny(tmp_path)
    first = moved(settings)
    weights = Path(settings.model) / "model.safetensors"
    save_file({k: v * 1.5 for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    forget(Run(settings), *wiped)
    try:
        second = moved(settings)
    except InputError:
        return  # refused, which is sound
    assert float((first - second).norm()) > float(first.norm())  # independent noise: 1.4 times


@pytest.mark.parametrize("change", [{"learning_rate": 0.5}, {"weight_decay": 0.1}], ids=str)
def test_another_config_in_a_partly_wiped_run_folder_does_not_meet_the_same_noise(tmp_path, change):
    settings, other = tiny(tmp_path), tiny(tmp_path, **change)
    first = moved(settings) / settings.train.learning_rate
    forget(Run(settings), "checkpoints", "ledger.jsonl")
    with pytest.raises(InputError, match="holds a release and no ledger"):
        moved(other)
    forget(Run(settings), "release")
    second = moved(other) / other.train.learning_rate
    assert float((first - second).norm()) > float(first.norm())


def test_steps_that_the_ledger_does_not_know_are_not_released_under_a_new_claim(tmp_path):
    settings = tiny(tmp_path)
    fine_tune(Run(settings))
    forget(Run(settings), "ledger.jsonl")
    stronger = settings.model_copy(
        update={"privacy": settings.privacy.model_copy(update={"noise_multiplier": 1000.0})}
    )
    with pytest.raises(InputError, match="ledger"):
        fine_tune(Run(stronger))


# fast noise --------------------------------------------------------------------------------------------------
def test_noise_of_few_bits_is_no_theorem():
    key = RunKey.from_text("x")
    stream = key.stream("main", "noise")
    seed = int(stream.uint64(1)[0] >> np.uint64(1))
    low = torch.Generator().manual_seed(seed % 2**32)
    every_bit_counts = not torch.equal(FastStream(stream).normal(64), torch.randn(64, generator=low))
    settings = config("uls", noise="fast")
    setting = calibrate(mechanisms.build(settings), shape([3, 1, 2, 4, 1, 1]), None, 2.0, 1e-3)
    claimed = state_guarantee(setting, 20, False, settings, {"date": "today"})
    assert every_bit_counts or not claimed.theorem


# sensitivity -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("positions", [32, 64])
@pytest.mark.parametrize("size", [1e5, 1e6])
def test_a_unit_whose_positions_cancel_is_clipped_all_the_same(positions, size):
    # From Gram matrices the squared norm carries an error of 1e-7 of the squares that cancel in it: where
    # it comes out as 0, the unit is not clipped at all.
    worst = 0.0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        left = torch.randn(positions, 256, generator=generator, dtype=torch.float64)
        left -= left.mean(0)
        left *= size / left.norm()
        left[0] += size * 1e-4 * nn.functional.normalize(torch.randn(256, generator=generator), dim=0)
        batch = {"x": torch.full((1, positions, 256), 1 / 16), "left": left.float()[None]}
        model = nn.Linear(256, 256, bias=False)
        clipped = ClippedSum(model, lambda m, b: (m(b["x"]) * b["left"]).sum((1, 2)), 1.0)
        clipped.add(batch, torch.zeros(1, dtype=torch.long), torch.ones(1))
        worst = max(worst, float(clipped.take()["weight"].double().norm()))
    assert worst <= 1.001


# the whole chain: the output of a training whose distribution is known -----------------------------------------
@pytest.mark.parametrize("mechanism", ["uls", "els"])
def test_no_test_on_the_output_beats_the_claimed_curve(tmp_path, mechanism):
    # Two steps on a single weight, which one unit moves and nobody else: the best test knows both laws.
    with GraphWriter(tmp_path / "g", vocabulary=10) as writer:
        for owner, rows in enumerate([3, 1, 2, 1, 2, 1]):
            for _ in range(rows):
                writer.add([int(owner == 0)] * 3, [f"u{owner}"])
    graph = UnitGraph.open(tmp_path / "g")
    s, trials = 0.7, 3000
    settings = config(
        mechanism, {"batch": 3.0, "steps": 2}, noise_multiplier=s, rows_per_unit=2, clip_norm=0.5
    )
    made = mechanisms.build(settings)
    setting = calibrate(made, graph.shape(), None, s, 1e-3)
    aggregation, rate = made.aggregation(setting.parameters, s), setting.parameters.sampling.rate
    worlds = [np.zeros((trials, 2)), np.zeros((trials, 2))]
    for world, trial in np.ndindex(2, trials):
        key = RunKey.from_text(f"{mechanism} {world} {trial}")
        sampler = made.sampler(graph, key, "main", lambda: np.zeros(graph.n_rows))
        for step in range(2):
            draw = sampler.draw(step)
            groups = {int(group) for group, row in zip(draw.group, draw.rows, strict=True) if row.max() == 1}
            noise = torch.zeros(1)
            add_noise([(noise, key.stream("main", "noise", step, "w"), 0)], aggregation.noise_scale)
            total = (1 - world) * len(groups) * settings.privacy.clip_norm + float(noise)
            worlds[world][trial, step] = total * aggregation.scale * setting.parameters.divisor
    law = [1 - rate, rate] if mechanism == "uls" else [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    losses = [
        np.log(sum(w * np.exp((2 * x * v - v * v) / (2 * s * s)) for v, w in enumerate(law))).sum(1)
        for x in worlds
    ]
    curve = setting.curve()
    for epsilon in (-0.5, 0.0, 0.3, 0.8):
        for direction, (p, q) in (
            (curve.removal, losses),
            (curve.addition, [-loss for loss in losses[::-1]]),
        ):
            a, b = p > epsilon, q > epsilon
            found = a.mean() - math.exp(epsilon) * b.mean()
            error = math.sqrt((a.var() + math.exp(2 * epsilon) * b.var()) / trials)
            assert found == pytest.approx(float(direction.delta(epsilon)), abs=4.5 * error + 1e-3)


def made_in_float32(one, other):
    """Which pairs Box-Muller in float32 can give: float32[n] each, bool[n]."""

    def near(x):
        up = down = x.astype(np.float32)
        found = [up]
        for _ in range(3):
            up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))
            found += [up, down]
        return found

    radius, angle = np.hypot(one.astype(float), other), np.arctan2(other.astype(float), one)
    can = np.zeros(len(one), bool)
    for a in near(angle):
        for r in near(radius):
            can |= (np.cos(a) * r == one) & (np.sin(a) * r == other)
    return can


def test_no_sum_is_told_from_another_by_what_float32_cannot_give():
    """Mironov 2012: an attacker who knows all but one unit asks whether what is left can be noise."""
    key = RunKey(b"\7" * 32)
    told = []
    for unit in (0.0, 0.01):  # of the unit that may be there
        left = torch.full((16 * 512,), unit)
        add_noise([(left, key.stream("main", "noise", 0, f"{unit}"), 0)], 1.0)
        pairs = left.numpy().reshape(-1, 2, 256)
        told.append(made_in_float32(pairs[:, 0].ravel(), pairs[:, 1].ravel()).mean())
    assert abs(told[0] - told[1]) < 0.05
