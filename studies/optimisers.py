"""What moves the weights best under noise: AdamW's first beta by steps, and other optimisers. Beyond the papers.

All arms have the same epsilon, steps, rows a step and number of trials. `studies/parts/noisy_optimisers.py` has the
optimisers, and says why the guarantee is that of any other run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from confide.config.schedule import share_of_peak
from confide.planning.progress import best_rate
from confide.runs.given import Given
from confide.training.optimisation import betas_of
from studies.parts import noisy_optimisers as noisy
from studies.parts.short_runs import EPSILON, HELPDESK, OF_HELPDESK, RATE, STEPS, at, chosen, gap, places
from studies.runner import users
from studies.runner.findings import MARGIN, Finding
from studies.runner.grid import OWN_OPTIMISER, Arm, Grid, Keys
from studies.runner.models import own, stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ULS

SCHEDULE = "train.schedule"
USUAL = 0.9  # torch's own, and that of nearly all who fine-tune
DEFAULT = "AdamW"
PLANNED = f"{DEFAULT}, at the planner's rate"
PLANNED_BEHIND = math.log(1.03)
"""What the planner's rate may lose against the best of as many trials as each arm has: 3% of the perplexity."""
_KEYS = {
    "privacy.rows_per_unit": 1,
    "train.micro_tokens": 8192,  # a step's rows are few: one pass does
}
_POLE = (
    0.5  # of a low-pass filter: 0.9 would outlast what a short run has time for, as a first beta of 0.9 does
)
_SMALL: dict[str, Any] = {
    "steps": {"newsgroups": (32, 96), "articles": (32, 96), HELPDESK: (24,)},  # by text
    "rows": {"newsgroups": 64, "articles": 64, HELPDESK: 192},  # a step; one of each user
    "betas": (USUAL, 0.6, 0.3, 0.0),
    "rates": (2e-3, 4e-3, 8e-3, 16e-3),
    "epsilons": (8.0,),
    "seeds": {"newsgroups": 5, "articles": 5, HELPDESK: 3},  # a run of the bundled model takes minutes
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "steps": {"newsgroups": (2,)},
        "rows": {"newsgroups": 8},
        "betas": (USUAL, 0.3),
        "rates": (4e-3,),
        "epsilons": (8.0,),
        "seeds": {"newsgroups": 1},
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "steps": dict.fromkeys(_SMALL["steps"], (32, 128, 512)),
        "rows": dict.fromkeys(_SMALL["rows"], 1024),
        "rates": (5e-4, 1e-3, 2e-3, 4e-3),
    },
}


@dataclass(frozen=True)
class Candidate:
    """An optimiser that is held against AdamW, whose betas are as confide sets them.

    Attributes:
        name: as in tables.
        kind: its class.
        settings: of the number of steps; besides the rate.
        factor: on the rates that AdamW's are tried with, where one of its steps is longer at the same rate.
        schedule: of the rate, as `train.schedule`.
    """

    name: str
    kind: type[noisy.NoisyOptimiser]
    settings: Callable[[int], Mapping[str, Any]]
    factor: float = 1.0
    schedule: str = "linear"

    def arm(self, rows: int, rates: Sequence[float]) -> Arm:
        made = users.arm(ULS, rows, {RATE: tuple(self.factor * rate for rate in rates)}, self.name)
        return replace(made, keys={**made.keys, SCHEDULE: self.schedule}, given=self.given)

    def given(self, keys: Keys) -> Given:
        """Return the optimiser of a run's keys, and the scheduler that does what `train.schedule` says."""
        steps = keys[STEPS]
        share = partial(share_of_peak, steps=steps, schedule=keys[SCHEDULE])
        return Given(
            optimizer=partial(self.kind, lr=keys[RATE], **self.settings(steps)),
            scheduler=partial(LambdaLR, lr_lambda=share),
        )


TENSOR = "tensor-adamw"  # confide's own, by its name in a config
CANDIDATES = (
    Candidate("bias-corrected AdamW", noisy.BiasCorrectedAdamW, lambda n: {"betas": betas_of(n)}, factor=0.5),
    Candidate("DiSK", noisy.KalmanAdamW, lambda n: {"steps": n, "betas": betas_of(n)}),
    Candidate("low-pass AdamW", noisy.LowPassAdamW, lambda n: {"betas": betas_of(n), "pole": _POLE}),
    Candidate("constant-moment SGD", noisy.ConstantMomentSGD, lambda n: {"momentum": betas_of(n)[0]}),
    Candidate("floored AdamW", noisy.FlooredAdamW, lambda n: {"betas": betas_of(n)}),
    Candidate("Schedule-Free AdamW", noisy.ScheduleFreeAdamW, lambda n: {"steps": n}, schedule="constant"),
)
OTHERS = (TENSOR, *(each.name for each in CANDIDATES))
"""What is held against AdamW."""


def grid(work: Work, text: str) -> Grid:
    size = _SIZES[work.scale]
    steps, rows, rates = size["steps"][text], size["rows"][text], size["rates"]
    places = {EPSILON: size["epsilons"], STEPS: steps}
    return Grid(
        name="optimisers",
        texts=(text,),
        model=own if text == HELPDESK else stories,
        keys={**users.keys(steps[0], **_KEYS), **(OF_HELPDESK if text == HELPDESK else {})},
        arms=(
            *(_with(beta, rows, rates) for beta in size["betas"]),
            _default(rows, rates),
            _tensor(rows, rates),
            *(each.arm(rows, rates) for each in CANDIDATES),
        ),
        at=places,
        tuned_at=places,
        seeds=size["seeds"][text],
    )


def planned(work: Work, text: str) -> Grid:
    """Return the runs at the planner's rate, which have no trials."""
    return replace(grid(work, text), arms=(_planned(_SIZES[work.scale]["rows"][text]),))


def _with(beta: float, rows: int, rates: Sequence[float]) -> Arm:
    made = users.arm(ULS, rows, {RATE: rates}, name_of(beta))
    return replace(made, keys={**made.keys, "train.betas": [beta, 0.999]})


def _default(rows: int, rates: Sequence[float]) -> Arm:
    """Return AdamW. Its betas are stated, so that an arm of a first beta may have the same runs."""
    made = users.arm(ULS, rows, {RATE: rates}, DEFAULT)

    def derived(keys: Keys) -> Keys:
        return made.derived({**keys, "train.betas": list(betas_of(keys[STEPS]))})

    return replace(made, derived=derived)


def _tensor(rows: int, rates: Sequence[float]) -> Arm:
    """Return confide's own optimiser, with the betas of AdamW's arm."""
    made = _default(rows, rates)
    return replace(made, name=TENSOR, keys={**made.keys, **OWN_OPTIMISER})


def _planned(rows: int) -> Arm:
    """Return AdamW at the rate that the planner's rule gives for the steps."""
    made = replace(_default(rows, ()), name=PLANNED, options={})

    def derived(keys: Keys) -> Keys:
        return made.derived({**keys, RATE: best_rate(keys[STEPS], keys[SCHEDULE])})

    return replace(made, derived=derived)


def name_of(beta: float) -> str:
    return f"beta1 {beta:g}"


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(_SIZES[work.scale]["steps"]))
    return [row for text in texts for grids in (grid, planned) for row in grids(work, text).measured(work)]


def _arms(rows: Sequence[Row]) -> list[str]:
    """Return the arms of other first betas than the usual one."""
    found = dict.fromkeys(row["arm"] for row in rows if str(row["arm"]).startswith("beta1 "))
    return [arm for arm in found if arm != name_of(USUAL)]


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Compare the smaller betas with the usual one, and candidates with the default: do they gain more than the margin?

    The betas of a text are one family of claims, and the candidates another. Errors are not pooled over arms: how much
    of the noise reaches the weights is what optimisers differ in, so one variance for all cannot be supposed.
    """
    return [
        *_better(rows, _arms(rows), name_of(USUAL), "first beta", "loss less that of the usual first beta"),
        *_better(rows, OTHERS, DEFAULT, "optimiser", "loss less that of AdamW"),
        *_rates(rows),
    ]


def _rates(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield what the planner's rate loses. Its constant is of another model, and of other numbers of steps."""
    for text, epsilon, steps in places(rows):
        yield Finding(
            f"In {steps} steps at epsilon {target(epsilon)}, the learning rate of the planner's rule, without "
            f"a trial, is at most 3% of the perplexity behind the best of the rates that were tried ({text}).",
            "learning rate",
            "loss less that of AdamW at the rate of its trials",
            gap(rows, text, PLANNED, DEFAULT, epsilon, steps),
            high=PLANNED_BEHIND,
            family=f"{text}, learning rate",
        )


def _better(rows: Sequence[Row], arms: Sequence[str], than: str, place: str, statistic: str) -> list[Finding]:
    return [
        Finding(
            f"In {steps} steps at epsilon {target(epsilon)}, {arm} beats {than} by more than 1% of the perplexity "
            f"({text}).",
            place,
            statistic,
            gap(rows, text, arm, than, epsilon, steps),
            high=-MARGIN,
            family=f"{text}, {place}",
        )
        for text, epsilon, steps in places(rows)
        for arm in arms
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    return [table for text in users.texts_of(rows) for table in (_betas(rows, text), _candidates(rows, text))]


def _betas(rows: Sequence[Row], text: str) -> Table:
    others = _arms(rows)
    usual = name_of(USUAL)
    cells = [
        [
            target(epsilon),
            str(steps),
            perplexity(at(rows, text, usual, epsilon, steps)),
            *(change(gap(rows, text, arm, usual, epsilon, steps)) for arm in others),
        ]
        for epsilon, steps in _places_of(rows, text)
    ]
    heads = ["epsilon", "steps", usual, *(f"{arm}, against it" for arm in others)]
    note = "Each step asks for as many rows, one of each user. Intervals are of 95% over run keys."
    return Table(f"AdamW's first beta, {text}: test perplexity", heads, cells, note)


def _candidates(rows: Sequence[Row], text: str) -> Table:
    cells = [
        [
            target(epsilon),
            str(steps),
            arm,
            _rate(rows, text, arm, epsilon, steps),
            perplexity(at(rows, text, arm, epsilon, steps)),
            change(gap(rows, text, arm, DEFAULT, epsilon, steps)) if arm != DEFAULT else "",
        ]
        for epsilon, steps in _places_of(rows, text)
        for arm in (DEFAULT, PLANNED, *OTHERS)
    ]
    heads = ["epsilon", "steps", "optimiser", "rate", "test perplexity", f"against {DEFAULT}"]
    note = (
        "Rates were chosen on validation text, of as many for each optimiser; that of the planner follows from the "
        "steps, by a rule that was fitted to another model. Intervals are of 95% over run keys."
    )
    return Table(f"Optimisers made for noise, {text}", heads, cells, note)


def _places_of(rows: Sequence[Row], text: str) -> list[tuple[float, int]]:
    return [(epsilon, steps) for own, epsilon, steps in places(rows) if own == text]


def _rate(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> str:
    """Write the learning rate that was chosen for an arm, or that the rule gives."""
    if arm == PLANNED:
        return target(best_rate(steps, users.keys(steps)[SCHEDULE]))
    return chosen(rows, text, arm, epsilon, steps)


STUDY = Study(
    name="optimisers",
    paper="",
    shows=(),
    question="Which first beta of AdamW is best under noise, by steps, and does any other optimiser beat it?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=100,
    deviations=(
        "bias-corrected AdamW (Tang et al. 2024) has a floor of a tenth of the noise's variance in place of a tuned "
        "number; DiSK (Zhang et al. 2024) computes one gradient a step, at the point beyond, with kappa 0.7; the "
        "low-pass filter (DOPPLER, Zhang et al. 2024) is of first order, with a pole of 0.5 that is ours; "
        "Schedule-Free AdamW (Defazio et al. 2024) has no warm-up; tensor-adamw has whole tensors in place of "
        "the blocks of Adam-mini (Zhang et al. 2024); constant-moment SGD and floored AdamW are of no paper. Only "
        "rates are tuned. All have few steps. Posts and articles are learnt by stories260K. The helpdesk is made up; "
        "its mails are learnt by the bundled model, from each customer once an epoch. Both models are trained whole. "
        "The papers train larger models for longer."
    ),
    reads=users.READS,
    texts=tuple(_SMALL["steps"]),
)
