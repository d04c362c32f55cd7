"""Does an audit of the noised sums notice a broken trainer? python benchmarks/audit_power.py [--trials N]

Users of a few rows each, half of them planted by fair coins, under user-level sampling; the model is a tiny GPT-2
whose token embeddings are trained. Each fault is put into the trainer, never into the audit. Printed are the size of
the game, how often it said "violation", and how often it said so of the trainer that keeps the same claim.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from confide.auditing.game import Claim, play
from confide.clipping import ClippedSum
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy.accounting import DominatingPair, MixtureOfGaussians, PrivacyProfile
from confide.privacy.mechanisms.statement import calibrate
from confide.privacy.mechanisms.uls import UnitSampler, UserLevelSampling
from confide.privacy.sampling import Draw
from confide.randomness.seal import Seal
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks.causal_lm import CausalLM
from confide.training.white_box import Readings

ROWS = 4  # of a user
CLIP = 1e-3  # far below the norms of gradients here
DELTA = 1e-5


@dataclass(frozen=True)
class Game:
    """m users, each drawn with probability q in each of T steps; s; r guesses."""

    fault: str
    users: int
    rate: float
    steps: int
    noise: float
    guesses: int


GAMES = (
    Game("no noise", 100, 0.5, 4, 4.0, 33),
    Game("no clipping", 200, 1.0, 4, 8.0, 66),
    Game("clipping by row", 400, 1.0, 4, 8.0, 80),
    Game("sampling understated tenfold", 800, 0.05, 10, 1.0, 80),
    Game("half the noise", 600, 1.0, 4, 2.74, 120),
)


@dataclass(frozen=True)
class ByRow:
    """A sampler's draws, each row a unit of its own."""

    inner: UnitSampler

    def draw(self, step: int) -> Draw:
        draw = self.inner.draw(step)
        assert draw.unit_ids is not None
        alone = np.arange(len(draw.rows))
        return replace(
            draw, group=alone, weight=np.ones(len(alone), np.float32), unit_ids=draw.unit_ids[draw.group]
        )


def tiny(users: int, seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=users + 2,
            n_positions=4,
            n_embd=8,
            n_layer=1,
            n_head=1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name == "transformer.wte.weight"
    return model


@cache
def claimed(process: DominatingPair, noise_multiplier: float) -> PrivacyProfile:
    return process.curve(noise_multiplier)


def trial(game: Game, seed: int, is_broken: bool, folder: Path) -> str:
    """The verdict on one run."""
    key = RunKey.from_text(f"audit power {seed}")
    coins = key.stream("audit", "coins").below(np.full(game.users, 2)) == 0
    with (
        GraphWriter(folder / "graph", game.users + 2) as writer,
        GraphWriter(folder / "contents", game.users + 2) as all_,
    ):
        for user in range(game.users):
            text = np.array([user + 2, (user + 1) % game.users + 2])
            for _ in range(ROWS):
                writer.add(text if coins[user] else text[:1], [f"user {user}"])
            all_.add(text, [f"user {user}"])
    graph, contents = UnitGraph.open(folder / "graph"), UnitGraph.open(folder / "contents")
    mechanism = UserLevelSampling(
        batch=game.rate * game.users, steps=game.steps, clip_norm=CLIP, rows_per_unit=ROWS, selection="random"
    )
    setting = calibrate(mechanism, graph.shape(), None, game.noise, DELTA)
    sampler = mechanism.sampler(graph, key, "main", lambda: np.zeros(0))
    aggregation = mechanism.aggregation(setting.parameters, setting.noise_multiplier)
    broken = game.fault if is_broken else ""
    if broken == "no noise":
        aggregation = replace(aggregation, noise_multiplier=0.0)
    if broken == "half the noise":
        aggregation = replace(aggregation, noise_multiplier=aggregation.noise_multiplier / 2)
    assert isinstance(sampler, UnitSampler)
    if broken.startswith("sampling"):
        sampler = replace(sampler, sampling=replace(setting.parameters.sampling, rate=10 * game.rate))
    model = tiny(game.users, seed)
    task = CausalLM(0, None, game.users + 2, (0,), frozenset(), False, torch.device("cpu"))
    readings = Readings(
        model,
        task,
        folder / "readings.f32",
        game.steps,
        np.arange(game.users),
        contents,
        np.arange(game.users),
        Seal(key),
        aggregation.clip_norm,
        aggregation.noise_scale,
        aggregation.scale,
        game.rate,
    )
    step = PrivateStep(
        model,
        task,
        ByRow(sampler) if broken == "clipping by row" else sampler,
        aggregation,
        Optimisation(game.steps, 1e-3),
        key,
        observer=readings,
    )
    if broken == "no clipping":
        step.gradients.clipped = ClippedSum(model, step.gradients.losses, None)
    for number in range(game.steps):
        step(number)
    curve = claimed(setting.parameters.process, setting.noise_multiplier)
    claim = Claim(mechanism.unit, mechanism.adjacency, curve.epsilon(DELTA), DELTA, curve, one_row=False)
    return play(claim, "steps", readings.scores(game.steps), coins, game.guesses).verdict()


def power(game: Game, trials: int, is_broken: bool) -> float:
    """How often the verdict is "violation"."""
    found = 0
    for seed in range(trials):
        with tempfile.TemporaryDirectory() as folder:
            found += trial(game, seed, is_broken, Path(folder)) == "violation"
    return found / trials


def epsilon(game: Game) -> float:
    return claimed(MixtureOfGaussians.bernoulli(game.rate, game.steps), game.noise).epsilon(DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--fault", help="of this fault alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for game in GAMES:
        if options.fault in (None, game.fault):
            rows.append(
                {
                    "fault": game.fault,
                    "users": game.users,
                    "guesses": game.guesses,
                    "rate": game.rate,
                    "steps": game.steps,
                    "noise": game.noise,
                    "epsilon": round(epsilon(game), 3),
                    "trials": options.trials,
                    "flagged": power(game, options.trials, True),
                    "false alarms": power(game, options.trials, False),
                }
            )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
