"""Example-level or user-level sampling as epsilon and compute grow (Charles et al. 2024, Figures 3, 4, 14, 15; 003)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from studies.runner import users
from studies.runner.findings import ABOVE, MARGIN, Finding, clarity, paired
from studies.runner.grid import Grid
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.users import ELS, ULS

EPSILON, STEPS = "privacy.epsilon", "train.steps"
POSTS = users.TEXTS[
    0
]  # forum posts, as those of Stack Overflow; the other text are articles, as those of CC-News
_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rows": 192,
    "steps": (5, 16, 48),
    "tuned_steps": (5, 48),
    "ks": (1, 2, 4),
    "rates": (2e-3, 5e-3),
    "epsilons": (1.0, 4.0, 16.0, 64.0),
    "tuned": (1.0, 8.0),
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rows": 8,
        "steps": (1, 2),
        "tuned_steps": (1,),
        "ks": (2,),
        "rates": (5e-3,),
        "epsilons": (1.0, 16.0),
        "tuned": (16.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"rows": 1024, "steps": (100, 400, 1600), "tuned_steps": (100, 1600), "rates": (1e-3, 2e-3)},
}


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    options = {"privacy.rows_per_unit": size["ks"], "train.learning_rate": size["rates"]}
    # Both read whole rows. ULS draws them anew at each step (Algorithm 2).
    rows, selection = size["rows"], "random"
    return Grid(
        name="els-uls",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"][0]),
        arms=tuple(users.arm(kind, rows, options, selection=selection) for kind in (ELS, ULS)),
        at={EPSILON: size["epsilons"], STEPS: size["steps"]},
        tuned_at={EPSILON: size["tuned"], STEPS: size["tuned_steps"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def _at(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> dict[int, float]:
    return users.at(rows, text, arm, epsilon, train__steps=steps)


def _gap(rows: Sequence[Row], text: str, epsilon: float, steps: int) -> tuple[float, ...]:
    return paired(_at(rows, text, ULS, epsilon, steps), _at(rows, text, ELS, epsilon, steps))


def _gain(gaps: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    """Return by how much more ULS gains over ELS in the second place than in the first, by run key."""
    return tuple(one - other for one, other in zip(gaps, others, strict=True))


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for text in users.texts_of(rows):
        found += _in_all_settings(rows, text) if text == POSTS else _in_some_settings(rows, text)
        found += _with_compute(rows, text)
    return found


def _in_all_settings(rows: Sequence[Row], text: str) -> list[Finding]:
    """Judge what the paper finds on Stack Overflow: ULS at least as good everywhere, by most at a small epsilon."""
    epsilons, budget = users.values(rows, EPSILON), users.values(rows, STEPS)[-1]
    near, far = (_gap(rows, text, epsilon, budget) for epsilon in (epsilons[0], epsilons[-1]))
    return [
        *(
            Finding(
                f"With the largest budget, ULS does not do worse than ELS at epsilon {target(epsilon)} ({text}, which "
                "are like Stack Overflow).",
                "Figure 3",
                "loss of ULS less that of ELS" + _said(rows, text, epsilon, budget),
                _gap(rows, text, epsilon, budget),
                high=MARGIN,
                family=f"{text}, largest budget",
            )
            for epsilon in epsilons
        ),
        *(
            Finding(
                f"With {steps} steps, ULS does not do worse than ELS at epsilon {target(epsilon)} ({text}, which are "
                "like Stack Overflow).",
                "Figure 3",
                "loss of ULS less that of ELS" + _said(rows, text, epsilon, steps),
                _gap(rows, text, epsilon, steps),
                high=MARGIN,
                family=f"{text}, smaller budgets",
                is_late=True,
            )
            for steps in users.values(rows, STEPS)[:-1]
            for epsilon in epsilons
        ),
        Finding(
            f"ULS gains more over ELS at epsilon {target(epsilons[0])} than at {target(epsilons[-1])} ({text}).",
            "Figure 3",
            "the gain in loss at the small epsilon less that at the large one, with the largest budget: a quotient of "
            "two quotients of perplexities",
            _gain(far, near),
            low=0.0,
        ),
    ]


def _in_some_settings(rows: Sequence[Row], text: str) -> list[Finding]:
    """Judge what the paper finds on CC-News: ELS is better in some settings, above all at small budgets or epsilons."""
    epsilons, budgets = users.values(rows, EPSILON), users.values(rows, STEPS)
    places = {
        f"the smallest budget and epsilon {target(epsilons[0])}": (epsilons[0], budgets[0]),
        f"the smallest budget and epsilon {target(epsilons[-1])}": (epsilons[-1], budgets[0]),
        f"the largest budget and epsilon {target(epsilons[0])}": (epsilons[0], budgets[-1]),
    }
    corners = [
        Finding(
            f"With {words}, ELS is better than ULS ({text}, which are like CC-News).",
            "Figure 4",
            "loss of ULS less that of ELS" + _said(rows, text, *place),
            _gap(rows, text, *place),
            low=ABOVE,
            family=f"{text}, small budget or epsilon",
            is_beyond=place
            != (epsilons[0], budgets[0]),  # the paper says "in some settings, especially" of these
        )
        for words, place in places.items()
    ]
    return [*corners, _somewhere(rows, text)]


def _somewhere(rows: Sequence[Row], text: str) -> Finding:
    """Judge that ELS is better in some setting: by the one in which it is ahead most clearly, of all that there are.

    If even that one speaks against it, all of them do, as they have the same number of run keys.
    """
    places = list(product(users.values(rows, EPSILON), users.values(rows, STEPS)))
    epsilon, steps = max(places, key=lambda place: clarity(_gap(rows, text, *place)))
    return Finding(
        f"In some setting ELS is better than ULS ({text}, which are like CC-News).",
        "Figure 4",
        f"loss of ULS less that of ELS where ELS is ahead most clearly: at epsilon {target(epsilon)} and with {steps} "
        "steps" + _said(rows, text, epsilon, steps),
        _gap(rows, text, epsilon, steps),
        low=ABOVE,
        of=len(places),
        is_late=True,
    )


def _with_compute(rows: Sequence[Row], text: str) -> list[Finding]:
    """Judge what the paper finds on both: at any epsilon, a larger budget lowers the loss of ULS by more."""
    budgets = users.values(rows, STEPS)
    return [
        Finding(
            f"At epsilon {target(epsilon)}, ULS gains more over ELS with the larger budget ({text}).",
            "Figures 3, 4, 14 and 15",
            "the gain in loss with the largest budget less that with the smallest: a quotient of two quotients of "
            "perplexities",
            _gain(*(_gap(rows, text, epsilon, steps) for steps in (budgets[0], budgets[-1]))),
            low=0.0,
            family=f"{text}, compute",
        )
        for epsilon in users.values(rows, EPSILON)
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    heads = [
        "epsilon",
        "steps",
        "ELS",
        "ULS",
        "ULS against ELS",
        "G of ELS",
        "k of ULS",
        "noise multiplier of ELS",
    ]
    heads += ["of ULS", "one mechanism"]
    found = []
    for text in users.texts_of(rows):
        cells = []
        for epsilon in users.values(rows, EPSILON):
            for steps in users.values(rows, STEPS):
                els, uls = (_runs(rows, text, arm, epsilon, steps) for arm in (ELS, ULS))
                cells.append(
                    [
                        target(epsilon),
                        str(steps),
                        *(perplexity(_at(rows, text, arm, epsilon, steps)) for arm in (ELS, ULS)),
                        change(_gap(rows, text, epsilon, steps)),
                        *map(users.rows_of_unit, (els, uls)),
                        *map(users.noise_of, (els, uls)),
                        "yes" if users.are_alike(els, uls) else "",
                    ]
                )
        alike = sum(line[-1] == "yes" for line in cells)
        note = (
            "ELS: example-level sampling, with at most G rows of each user in use; ULS: user-level sampling, or "
            f"user-wise DP-SGD, with k of each user a step. {users.ALIKE} That is so in {alike} of {len(cells)} lines. "
            "Each step asks for as many rows. The paper has plots, not numbers. Intervals are of 95% over run keys."
        )
        found.append(Table(f"Figures 3 and 4, {text}: test perplexity", heads, cells, note))
    return found


def _said(rows: Sequence[Row], text: str, epsilon: float, steps: int) -> str:
    """Say it where the tuning made one mechanism of both, so that their difference is one of the text that is read."""
    alike = users.are_alike(*(_runs(rows, text, arm, epsilon, steps) for arm in (ELS, ULS)))
    return "; G = k = 1 was chosen for both, so that both are one mechanism" * alike


def _runs(rows: Sequence[Row], text: str, arm: str, epsilon: float, steps: int) -> list[Row]:
    place = (text, arm, epsilon, steps, "test")
    return [row for row in rows if (row["text"], row["arm"], row[EPSILON], row[STEPS], row["part"]) == place]


STUDY = Study(
    name="els-uls",
    paper="003",
    shows=("Figure 3", "Figure 4", "Figure 14", "Figure 15"),
    question="When does user-level sampling beat example-level sampling?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=110,
    deviations="stories260K in place of a model of 350 million weights; newsgroup posts and WikiText-2 articles in "
    "place of Stack Overflow and CC-News; k and G are tuned, in place of the median and Estimate-and-Double; the "
    "number of steps is the compute budget; Poisson draws in place of shuffled batches; one delta of 1e-5 in place of "
    "n^-1.1, where n is the number of rows for ELS and of users for ULS. On CC-News the paper counts its epsilons for "
    "ten times the users that there are, which favours ELS.",
    reads=users.READS,
    texts=_SMALL["texts"],
)
