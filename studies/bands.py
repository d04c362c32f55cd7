"""Whether noise that is correlated over steps beats independent noise, where each has a learning rate of its own.

This is beyond the papers. With `privacy.bands` a step takes back part of the noise of earlier ones: a single step has
more noise, the weights hold less. Confide's optimiser divides by the length of gradient and noise together, so
correlated noise asks for a higher learning rate. All arms have the same steps, rows and epsilon, and as many trials.
Users are dealt into groups that have their turns, or into bins that they keep, which needs less noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.privacy.correlated_noise import Banded
from studies.parts import short_runs
from studies.parts.short_runs import HELPDESK, STEPS
from studies.runner import users
from studies.runner.findings import Finding
from studies.runner.grid import Arm, Grid, Keys
from studies.runner.study import Row, Scale, Study, Table, Work

INDEPENDENT, FEW, MOST = "independent noise", "few bands", "most bands"
KEPT = "most bands, bins kept"
ARMS = (INDEPENDENT, FEW, MOST, KEPT)
BASES = dict.fromkeys((FEW, MOST, KEPT), INDEPENDENT)
FIRST = "first_beta"  # what is tried; the second beta stays as it is
FACTORS = (1.0, 1.4, 2.0, 2.8)
"""What is tried, over the rule's rate: in a first search correlated noise did best at the highest factor, 1.4."""
BETAS = (0.3, 0.6)
"""The default of so short runs, and a longer memory."""
_FEW = 4
_MOST = {
    Scale.TINY: dict.fromkeys(("newsgroups", "articles", HELPDESK), 2),
    Scale.SMALL: {"newsgroups": 16, "articles": 7, HELPDESK: 8},
    Scale.FULL: {"newsgroups": 6, "articles": 1, HELPDESK: 6},
}
"""Bands times the rate of drawing is at most 1: on articles and customers, about as many as there are users for."""


def bands(name: str, text: str, scale: Scale) -> int:
    """Return the number of bands of an arm."""
    most = _MOST[scale][text]
    return {INDEPENDENT: 1, FEW: min(_FEW, most), MOST: most, KEPT: most}[name]


def grid(work: Work, text: str) -> Grid:
    size = short_runs.SIZES[work.scale]
    arms = [_arm(name, text, size, bands(name, text, work.scale)) for name in ARMS]
    return short_runs.grid("bands", work, text, size, arms)


def _arm(name: str, text: str, size: Mapping[str, Any], width: int) -> Arm:
    """Return an arm. The rule's rate is for steps that walk at random; of correlated noise only a share does."""
    made = short_runs.arm(name, text, size, factors=FACTORS[: len(size["factors"])])
    sampling = "bins" if name == KEPT else "poisson"
    more: dict[str, Any] = {"privacy.bands": width, "privacy.sampling": sampling} if width > 1 else {}
    if text == HELPDESK:
        more["adapter.kind"] = "matrices"  # as `confide quickstart` has it

    def derived(keys: Keys) -> Keys:
        others = {key: value for key, value in made.derived(keys).items() if key != FIRST}
        longer = Banded(width).walk_share([1.0] * keys[STEPS]) ** -0.5
        rate = others[short_runs.RATE] * longer
        return {**others, short_runs.RATE: rate, "train.betas": (keys[FIRST], 0.999)}

    return replace(made, keys={**made.keys, **more}, options={**made.options, FIRST: BETAS}, derived=derived)


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(short_runs.SIZES[work.scale]["texts"]))
    return [row for text in texts for row in grid(work, text).measured(work)]


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    """Check whether correlated noise beats independent noise by more than the margin, and bins beat groups."""
    return [
        *short_runs.claims(rows, BASES, "independent noise"),
        *short_runs.claims(rows, {KEPT: MOST}, "groups that have their turns"),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    most = ", ".join(f"{count} on {text}" for text, count in _MOST[Scale.SMALL].items())
    note = (
        f"Few bands are {_FEW}; most are {most}. The learning rates of each arm are four factors on the planner's "
        "rule, in which a step of correlated noise counts with the share of its noise that stays in the weights. The "
        "first beta, which stands beside the factor, is 0.3 or 0.6. Both were chosen on validation text. On the "
        "helpdesk, independent noise draws each user once an epoch, and correlated noise in groups does not. In bins "
        "an epoch has a whole number of steps, so that a step has up to 5% more or fewer rows. Intervals are of 95% "
        "over run keys."
    )
    heads = ("noise", "against independent noise")
    return [short_runs.table("Noise that is correlated over steps", rows, ARMS, BASES, heads, note)]


STUDY = Study(
    name="bands",
    paper="",
    shows=(),
    question="Does noise that is correlated over steps beat independent noise, each at a rate of its own?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=40,
    deviations=f"{short_runs.DEVIATIONS} All weights are trained; on the helpdesk all but biases, norms and "
    "positions.",
    reads=users.READS,
    texts=tuple(short_runs.SIZES[Scale.SMALL]["texts"]),
)
