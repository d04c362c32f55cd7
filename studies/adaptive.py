"""Adaptive DP at small scale (Wu et al. 2022, Table 1): test loss without privacy, by DP-SGD, with adaptive noise.

WikiText-2 in place of WikiText-103, and stories260K, which has read children's stories alone, in place of a model from
scratch; it gives the perplexities too. At the paper's two noise multipliers, and at one epsilon. Run keys are
published, so that the numbers can be repeated: every guarantee says so.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from confide.config.loading import check
from confide.config.schema import Config
from confide.privacy.accounting import MixtureOfGaussians, compose
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most
from studies import corpora, main
from studies.attacked import is_estimate

SIGMAS = (1.0, 5.0)
EPSILON = 3.0
STEPS = 25
PIECES = 512  # in the vocabulary of stories260K
FLOOR = 0.25  # of nominal, for which the paper has none


@dataclass(frozen=True)
class Row:
    """One line of the table.

    sigma: the noise multiplier s; gamma: what it is multiplied by, on average over the steps; epsilon: as claimed, None
    without privacy; public: epsilon with the gammas that came out, as if they were public; loss, perplexity: held out.
    """

    method: str
    sigma: float
    steps: int
    gamma: float
    epsilon: float | None
    is_theorem: bool
    public: float | None
    loss: float
    perplexity: float


@dataclass(frozen=True)
class _Study:
    data: Path
    folder: Path
    console: Console

    def config(self, name: str, privacy: dict[str, Any], adaptive: dict[str, Any]) -> Config:
        texts = self.folder / "data"
        raw = {
            "model": str(corpora.stories(self.data, self.folder / "stories260K")),
            "data": {
                "train": str(
                    corpora.written(corpora.wikitext(self.data, "train"), texts / "train.jsonl", 2000)
                ),
                "eval": str(
                    corpora.written(corpora.wikitext(self.data, "valid"), texts / "valid.jsonl", 300)
                ),
                "max_length": 64,
                "duplicates": False,
            },
            "privacy": privacy | {"published_key": f"study adaptive {name}"},
            "adaptive": adaptive,
            "train": {"steps": STEPS, "batch": 192.0, "learning_rate": 2e-3},
            "run": str(self.folder / name),
        }
        return check(raw, f"study adaptive, {name}")

    def train(
        self, method: str, name: str, adaptive: dict[str, Any] | None = None, **privacy: Any
    ) -> tuple[Row, Outcome]:
        """Train, or resume, and tell of the held-out rows."""
        self.console.say(f"{method}: {name}")
        run = Run(self.config(name, privacy, adaptive or {}))
        outcome = fine_tune(run, self.console)
        if not outcome.finished:
            raise KeyboardInterrupt
        assert outcome.final
        guarantee = outcome.guarantee
        is_private, sigma = guarantee.notion != "none", guarantee.noise_multiplier
        noises = _noises(run)
        is_nominal = run.config.privacy.mechanism == "adaptive" and run.config.adaptive.mode == "nominal"
        row = Row(
            method,
            sigma,
            outcome.steps,
            float(np.mean(noises) / sigma) if sigma and noises else 1.0,
            guarantee.epsilon if is_private else None,
            not is_estimate(guarantee),
            _public(noises, sigma, guarantee.sampling_probability[1], guarantee.delta)
            if is_nominal
            else None,
            float(outcome.final["loss"]),
            float(outcome.final["perplexity"]),
        )
        return row, outcome

    def rows(self) -> Iterator[Row]:
        bare, outcome = self.train("no DP", "none", mechanism="none")
        yield bare
        gamma = 1.0
        for sigma in SIGMAS:
            stated: dict[str, Any] = {"mechanism": "adaptive", "noise_multiplier": sigma}
            yield self.train("DP-SGD", f"dp-sgd-{sigma:g}", **stated | {"mechanism": "dp-sgd"})[0]
            nominal = self._nominal(f"nominal-{sigma:g}", sigma)
            gamma = nominal.gamma
            yield nominal
            yield self.train("adaptive, private", f"private-{sigma:g}", **stated)[0]
        plain = self.train("DP-SGD", "dp-sgd-equal", mechanism="dp-sgd", epsilon=EPSILON)[0]
        yield plain
        yield self._nominal("nominal-equal", round(plain.sigma / gamma, 4))
        yield self.train("adaptive, private", "private-equal", mechanism="adaptive", epsilon=EPSILON)[0]
        assert outcome.base
        floor = math.floor(100 * outcome.base["loss"] / math.log(PIECES)) / 100
        yield self.train(
            f"adaptive, private, floor {floor:g} (of the held-out text)",
            "private-floor",
            {"floor": min(1.0, floor)},
            mechanism="adaptive",
            epsilon=EPSILON,
        )[0]

    def _nominal(self, name: str, sigma: float) -> Row:
        adaptive = {"mode": "nominal", "floor": FLOOR}
        return self.train(
            "adaptive, nominal (001)", name, adaptive, mechanism="adaptive", noise_multiplier=sigma
        )[0]


def _noises(run: Run) -> list[float]:
    """The noise multiplier of every step that was taken."""
    entries = map(json.loads, run.ledger_path.read_text("utf-8").splitlines()[1:])
    return [entry["noise_multiplier"] for entry in entries if "noise_multiplier" in entry]


def _public(noises: list[float], sigma: float, q: float, delta: float) -> float:
    """Epsilon of steps with these noises, had they been fixed beforehand: what they tell of the rows is left out.

    Rounded up: gammas count as the next multiple of 1/50 below them.
    """
    gammas = Counter(math.floor(50 * noise / sigma) / 50 for noise in noises)
    curves = [
        MixtureOfGaussians.bernoulli(q, steps).curve(gamma * sigma, 1e-3) for gamma, steps in gammas.items()
    ]
    return compose(curves).epsilon(delta)


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, and make the table."""
    rows = list(_Study(data, folder, Console()).rows())
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _table(rows: list[Row]) -> str:
    lines = [
        "| method | noise multiplier | steps | mean gamma | epsilon | which is | epsilon, gammas as if public | "
        "test loss | perplexity |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kind = "" if row.epsilon is None else "proved" if row.is_theorem else "an estimate, at the floor"
        cells = [
            row.method,
            at_least(row.sigma, 5) if row.sigma else "",
            str(row.steps),
            f"{row.gamma:.3f}" if row.sigma else "",
            "inf" if row.epsilon is None else at_most(row.epsilon, 3),
            kind,
            "" if row.public is None else at_most(row.public, 3),
            f"{row.loss:.3f}",
            f"{row.perplexity:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
