"""How far planted numbers can be told from the model, by method and copies (Wu et al. 2022, Figure 1; 001)."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from confide.auditing import exposure
from confide.auditing.candidates import Candidates
from confide.auditing.trie import Trie
from confide.runs.folder import Run
from confide.runs.loop import Outcome
from confide.utils.chart import Panel, panels_svg
from confide.utils.rounding import at_least, at_most
from studies.runner.findings import Finding, interval, paired
from studies.runner.grid import NOTHING, Arm, Grid, Keys
from studies.runner.models import stories
from studies.runner.planted import generator, planted
from studies.runner.released import released
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.tables import losses, perplexity
from studies.runner.texts import TEXTS

TEMPLATE = "My ID is {}"
BARE, PLAIN, NOMINAL, PRIVATE = "no DP", "DP-SGD", "adaptive, nominal", "adaptive, private"
BIT = 1.0
"""Training without DP must expose a number by this much more, which is twice as many guesses, to count as worse.

The paper has no such bound: it says "significantly better".
"""
FLOOR = 0.1
"""Of the nominal factor. The paper has none; confide needs one, to count an epsilon at all."""

_SMALL: dict[str, Any] = {
    "documents": None,
    "batch": 384.0,
    "steps": 40,
    "rate": 5e-3,
    "noises": (1.0, 5.0),
    "copies": (10, 100, 1000),
    "each": 8,
    "digits": 6,
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "documents": 4,
        "batch": 4.0,
        "steps": 1,
        "noises": (1.0,),
        "copies": (1, 2),
        "each": 2,
        "digits": 2,
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 4096.0, "steps": 8000, "rate": 5e-5},
}


@dataclass(frozen=True)
class Numbers:
    """The numbers of each run key: `each` planted so often, and as many that are not planted.

    All arms of a run key have the same ones, so that exposures are paired by number.
    """

    copies: tuple[int, ...]
    each: int
    digits: int

    def of(self, key: str) -> dict[int, list[str]]:
        """Return the numbers by how often they are planted, 0 for never."""
        times = (0, *self.copies)
        drawn = generator(key, "numbers").choice(10**self.digits, self.each * len(times), replace=False)
        texts = [f"{number:0{self.digits}d}" for number in drawn.tolist()]
        return {
            count: texts[place * self.each : (place + 1) * self.each] for place, count in enumerate(times)
        }

    def texts(self, key: str) -> list[tuple[str, int]]:
        """Return the texts to plant, each with how often."""
        return [
            (TEMPLATE.replace("{}", number), times)
            for times, numbers in self.of(key).items()
            for number in numbers
            if times
        ]

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        """Rank the numbers of a run among all of as many digits, in the trained model."""
        key = run.config.privacy.published_key
        assert key is not None
        by_times = self.of(key)
        candidates = Candidates.digits(TEMPLATE, self.digits)
        numbers = candidates.numbers([number for own in by_times.values() for number in own])
        with released(run) as job:
            found = iter(exposure.exact(job.model, Trie.of(candidates, job.tokenizer), numbers))
        by_count = {times: [next(found).exposure for _ in own] for times, own in by_times.items()}
        return {"exposures": json.dumps(by_count), "chance": exposure.null_mean(candidates.size)}


# what is trained -----------------------------------------------------------------------------------------------
def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    numbers = Numbers(size["copies"], size["each"], size["digits"])
    plants = partial(_with_numbers, work, numbers)
    mechanisms: dict[str, Keys] = {BARE: {"privacy.mechanism": "none"}}
    for noise in size["noises"]:
        stated = {"privacy.noise_multiplier": noise}
        mechanisms |= {
            arm_of(PLAIN, noise): {"privacy.mechanism": "dp-sgd", **stated},
            arm_of(NOMINAL, noise): {
                "privacy.mechanism": "adaptive",
                "adaptive.mode": "nominal",
                "adaptive.floor": FLOOR,
                **stated,
            },
            arm_of(PRIVATE, noise): {"privacy.mechanism": "adaptive", **stated},
        }
    return Grid(
        name="exposure",
        texts=("dialogues",),
        model=stories,
        keys={
            "adapter.kind": "full",
            "data.max_length": 64,
            "data.unit": None,
            "privacy.delta": 1e-5,
            "train.batch": size["batch"],
            "train.steps": size["steps"],
            "train.learning_rate": size["rate"],
            "train.schedule": "linear",
        },
        arms=tuple(Arm(name, keys, derived=plants, look=numbers) for name, keys in mechanisms.items()),
        at={},
        tuned_at={},
        seeds=size["seeds"],
    )


def arm_of(method: str, noise: float) -> str:
    return f"{method}, noise {at_least(noise, 3)}"


def _with_numbers(work: Work, numbers: Numbers, keys: Keys) -> Keys:
    source = TEXTS["dialogues"].parts(work)["train"]
    texts = numbers.texts(keys["privacy.published_key"])
    return {**keys, "data.train": str(planted(source, texts, _SIZES[work.scale]["documents"]))}


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


# what was found ------------------------------------------------------------------------------------------------
def exposures(rows: Sequence[Row], arm: str) -> dict[int, dict[int, list[float]]]:
    """Return the exposures of an arm by copies and run key, in each in the order of the numbers."""
    found: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        if row["arm"] == arm and row.get("exposures"):
            for times, values in json.loads(row["exposures"]).items():
                found.setdefault(int(times), {})[row["key"]] = values
    return dict(sorted(found.items()))


def means(rows: Sequence[Row], arm: str, times: int) -> dict[int, float]:
    """Return the mean exposure by run key: the numbers of one key are in one model, and not independent."""
    return {key: mean(values) for key, values in sorted(exposures(rows, arm)[times].items())}


def _arms(rows: Sequence[Row]) -> list[str]:
    return [arm for arm in dict.fromkeys(row["arm"] for row in rows) if arm != NOTHING]


def _times(rows: Sequence[Row]) -> list[int]:
    return [times for times in exposures(rows, BARE) if times]


def _chance(rows: Sequence[Row]) -> float:
    return float(next(row["chance"] for row in rows if row.get("chance") is not None))


def learnt(rows: Sequence[Row]) -> list[int]:
    """Return the copies at which training without DP exposes a number by more than `BIT` above chance, and the most.

    At others there is nothing to hide, and no way of training could expose less by `BIT`.
    """
    times = _times(rows)
    least = _chance(rows) + BIT
    return [count for count in times if count == times[-1] or mean(means(rows, BARE, count).values()) > least]


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for arm in _arms(rows):
        method, _, noise = arm.rpartition(", noise ")
        if arm == BARE:
            continue
        claims = [(f"{arm}, exposes at least one bit less than training without DP", BARE, -math.inf, -BIT)]
        if method != PLAIN:
            more = f"{arm}, exposes more than DP-SGD at that noise"
            claims.append((more, f"{PLAIN}, noise {noise}", 0.0, math.inf))
        for times in learnt(rows):
            found += [
                Finding(
                    f"{claim[0].upper()}{claim[1:]} ({times:,} copies).",
                    "Figure 1",
                    f"mean exposure of the numbers of a run key, in bits: {arm} less {other}",
                    paired(means(rows, arm, times), means(rows, other, times)),
                    low=low,
                    high=high,
                    family=method,
                    unit="bits",
                    is_beyond=method != NOMINAL,
                )
                for claim, other, low, high in claims
            ]
            if method == NOMINAL:
                found.append(_little_more(rows, arm, f"{PLAIN}, noise {noise}", times))
    return found


def _little_more(rows: Sequence[Row], arm: str, other: str, times: int) -> Finding:
    """Judge what the paper says of the difference: that it is slight."""
    return Finding(
        f"{arm[0].upper()}{arm[1:]}, exposes at most one bit more than DP-SGD at that noise ({times:,} copies).",
        "Figure 1",
        f'mean exposure of the numbers of a run key, in bits: {arm} less {other}; the paper says "slightly", and a bit '
        "counts as that, by our choice",
        paired(means(rows, arm, times), means(rows, other, times)),
        high=BIT,
        family="slightly",
        unit="bits",
        is_late=True,
    )


def tables(rows: Sequence[Row]) -> list[Table]:
    times = [0, *_times(rows)]
    heads = ["training", "epsilon of one row", "test perplexity"]
    heads += ["not planted", *(f"{count:,} copies" for count in times[1:])]
    cells = []
    for arm in _arms(rows):
        epsilons = [row.get("epsilon") for row in rows if row["arm"] == arm and row["part"] == "test"]
        cells.append(
            [
                arm,
                "" if arm == BARE else at_most(max(e for e in epsilons if e is not None), 3),
                perplexity(losses(rows, {"arm": arm})),
                *(_bits(means(rows, arm, count).values()) for count in times),
            ]
        )
    numbers = sum(map(len, exposures(rows, BARE)[0].values()))
    note = (
        f"Mean exposure in bits by how often a number was planted, of {numbers} numbers a cell, with 95% intervals "
        f"over run keys. A model that does not depend on a number exposes it by {_chance(rows):.2f} bits on average. "
        "Claims are judged at the copies at which training without DP exposes more than a bit above that, and at the "
        "most copies. That rule, and one value for each run key in place of one for each number, were made on "
        "2026-11-27, when the figures were known. "
        "Training without DP is no ceiling of what others may expose. "
        f"The epsilon of the nominal variant is an estimate, at the floor of {FLOOR} for its factor; that of one row "
        "says nothing of many copies. The paper has a plot, not numbers."
    )
    return [Table("Figure 1: exposure of planted numbers", heads, cells, note)]


def _bits(found: Collection[float]) -> str:
    values = tuple(found)
    low, high = interval(values)
    return f"{mean(values):.1f} ({max(0.0, low):.1f} to {high:.1f})"


def plots(rows: Sequence[Row]) -> list[Plot]:
    noises = dict.fromkeys(arm.rpartition(", noise ")[2] for arm in _arms(rows) if arm != BARE)
    lines = {
        noise: {
            _short(arm): [(float(times), mean(means(rows, arm, times).values())) for times in _times(rows)]
            for arm in _arms(rows)
            if arm == BARE or arm.endswith(f", noise {noise}")
        }
        for noise in noises
    }
    reach = [bits for panel in lines.values() for line in panel.values() for _, bits in line]
    panels = [
        Panel(
            f"noise multiplier {noise}",
            "copies of a number",
            "mean exposure, bits",
            panel,
            log_x=True,
            decades=True,
            reach=reach,
        )
        for noise, panel in lines.items()
    ]
    words = (
        "mean exposure of planted numbers by copies: no DP, DP-SGD, and adaptive noise, nominal and private"
    )
    return [Plot("exposure", words, panels_svg("Exposure of planted numbers", panels))]


def _short(arm: str) -> str:
    """Return an arm's name as it fits beside three others: its noise is in the title."""
    return arm.partition(", noise ")[0].removeprefix("adaptive, ")


STUDY = Study(
    name="exposure",
    paper="001",
    shows=("Figure 1",),
    question="Does noise that follows the rows hide planted numbers nearly as well as DP-SGD?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K in place of a model of 12 layers from scratch; dialogues of SGD in place of WikiText-103; "
    "rows of 64 tokens, 40 steps of 384 rows in place of 20 epochs; eight numbers of each count in place of one; the "
    "rank among all numbers in place of generated text; normalisation by rank.",
    reads=("20newsgroups", "sgd-dialogues"),
    plots=plots,
)
