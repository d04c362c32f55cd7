"""A mail belongs to its sender and to its recipients: rows bounded greedily, by a program, or for senders alone.

The mechanism `owners` protects whoever owns a row, alone or with others. To bound the rows of all owners leaves fewer
rows than to bound those of senders, which protects no recipient. The linear program is that of Ganesh et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confide.privacy import mechanisms
from confide.privacy.mechanisms.owners import Owners
from confide.privacy.mechanisms.statement import calibrate
from confide.privacy.row_weights import Spread
from confide.utils.errors import InputError
from confide.utils.rounding import at_least
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.graphs import config_of, shape_of
from studies.runner.grid import NOTHING, OWN_OPTIMISER, Arm, Grid, Keys
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target

TEXT, EPSILON, K = "enron", "privacy.epsilon", "privacy.rows_per_unit"
GREEDY, PROGRAM, SENDER = "sender and recipients, greedily", "sender and recipients, program", "sender alone"
SPREAD = "spread"
_ARMS: Mapping[str, dict[str, Any]] = {
    GREEDY: {"data.unit": ["from", "to"], "privacy.bounding": "greedy"},
    PROGRAM: {"data.unit": ["from", "to"], "privacy.bounding": "program"},
    SENDER: {"data.unit": "from", "privacy.bounding": "greedy"},
}
_SMALL: dict[str, Any] = {
    "batch": 96.0,
    "steps": 16,
    "ks": (4, 16, 64),
    "spread_ks": (1, 4, 16, 64, 256),
    "rates": (5e-3, 1.5e-2),
    "epsilons": (1.0, 8.0),
    "seeds": 20,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "batch": 4.0,
        "steps": 1,
        "ks": (4,),
        "spread_ks": (4,),
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 1024.0, "steps": 1000, "rates": (1e-3, 2e-3)},
}


def _shared(work: Work) -> dict[str, Any]:
    size = _SIZES[work.scale]
    own = {**OWN_OPTIMISER, "privacy.mechanism": "owners", "train.batch": size["batch"]}
    return users.keys(size["steps"], **own)


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    options = {K: size["ks"], "train.learning_rate": size["rates"]}
    return Grid(
        name=STUDY.name,
        texts=(TEXT,),
        model=stories,
        keys=_shared(work),
        arms=tuple(Arm(name, keys, options) for name, keys in _ARMS.items()),
        at={EPSILON: size["epsilons"]},
        tuned_at={EPSILON: size["epsilons"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    return spreads(work) + grid(work).measured(work)


def spreads(work: Work) -> list[Row]:
    """Return what each bounding keeps at each k, and the noise that it then needs at each epsilon."""
    size, found = _SIZES[work.scale], []
    columns = {"study": STUDY.name, "scale": str(work.scale), "text": TEXT, "part": SPREAD, **version()}
    for arm, keys in _ARMS.items():
        common: Keys = {"model": str(stories(work)), **_shared(work), **keys}
        where = "owners-senders" if arm == SENDER else "owners-all"
        shape = shape_of(config_of(TEXT, {**common, EPSILON: size["epsilons"][0]}, work, where), work)
        for k in size["spread_ks"]:
            for epsilon in size["epsilons"]:
                config = config_of(TEXT, {**common, K: k, EPSILON: epsilon}, work, where)
                mechanism = mechanisms.build(config)
                assert isinstance(mechanism, Owners)
                spread = Spread.of(mechanism.weights(shape))
                row = columns | {
                    "arm": arm,
                    K: k,
                    EPSILON: epsilon,
                    "rows": shape.rows,
                    "owners": shape.units,
                }
                row |= {"kept": spread.kept, "total": spread.total, "effective": spread.effective}
                try:
                    setting = calibrate(mechanism, shape, epsilon, None, config.privacy.delta)
                    row["noise_multiplier"] = setting.noise_multiplier
                except InputError:  # the batch is more than the rows that are left
                    row["noise_multiplier"] = None
                found.append(row)
    return found


# what was found ------------------------------------------------------------------------------------------------
def _spreads(rows: Sequence[Row], arm: str) -> list[Row]:
    return [row for row in rows if row["part"] == SPREAD and row["arm"] == arm]


def _epsilons(rows: Sequence[Row]) -> list[float]:
    return sorted({row[EPSILON] for row in rows if row["part"] == "test" and row["arm"] != NOTHING})


def _at(rows: Sequence[Row], arm: str, epsilon: float) -> dict[int, float]:
    return losses(rows, {"arm": arm, EPSILON: epsilon})


def kept_ratios(rows: Sequence[Row], one: str, other: str) -> tuple[float, ...]:
    """Return the weight that one bounding keeps as a multiple of another's, at each k."""
    totals = [{row[K]: row["total"] for row in _spreads(rows, arm)} for arm in (one, other)]
    return tuple(totals[0][k] / totals[1][k] for k in sorted(totals[0]))


def findings(rows: Sequence[Row]) -> list[Finding]:
    place = "beyond the papers"
    found = [
        Finding(
            "The program keeps at least as much as greedy bounding.",
            place,
            "sum of the rows' weights by the program as a multiple of the rows kept greedily, over all k",
            kept_ratios(rows, PROGRAM, GREEDY),
            low=1 - 1e-3,
            is_exact=True,
            unit="times",
        ),
        Finding(
            "To bound recipients as well costs rows.",
            place,
            "rows kept greedily for all owners as a share of those kept for senders alone, over all k",
            kept_ratios(rows, GREEDY, SENDER),
            high=1.0,
            is_exact=True,
            unit="share",
        ),
    ]
    for epsilon in _epsilons(rows):
        found.append(
            Finding(
                f"At epsilon {target(epsilon)}, the program does not do worse than greedy bounding.",
                place,
                "loss with the program less that with greedy bounding",
                paired(_at(rows, PROGRAM, epsilon), _at(rows, GREEDY, epsilon)),
                high=MARGIN,
                family="program",
            )
        )
    for epsilon in _epsilons(rows):
        found.append(
            Finding(
                f"At epsilon {target(epsilon)}, it costs to protect recipients as well.",
                place,
                "loss with greedy bounding of all owners less that of senders alone",
                paired(_at(rows, GREEDY, epsilon), _at(rows, SENDER, epsilon)),
                low=MARGIN,
                family="recipients",
            )
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    epsilons = _epsilons(rows)
    cells = []
    for arm in _ARMS:
        own = _spreads(rows, arm)
        for k in sorted({row[K] for row in own}):
            at = {row[EPSILON]: row for row in own if row[K] == k}
            one = next(iter(at.values()))
            noises = [at[epsilon]["noise_multiplier"] for epsilon in epsilons]
            cells.append(
                [
                    arm,
                    str(k),
                    f"{one['kept']:,}",
                    f"{one['total']:,.0f}",
                    f"{one['effective']:,.0f}",
                    *("" if noise is None else at_least(noise, 4) for noise in noises),
                ]
            )
    all_owners, senders = _spreads(rows, GREEDY)[0], _spreads(rows, SENDER)[0]
    heads = ["whose rows are bounded", "k", "rows kept", "sum of weights", "effective rows"]
    heads += [f"noise at epsilon {target(epsilon)}" for epsilon in epsilons]
    note = (
        f"{all_owners['rows']:,} rows of {senders['owners']:,} senders; {all_owners['owners']:,} owners with the "
        "recipients. An empty cell: the rows that are left are fewer than a step asks for."
    )
    found = [Table("What a bound of k rows an owner leaves", heads, cells, note)]
    cells = [
        [
            arm,
            target(epsilon),
            users.settings(rows, TEXT, arm, epsilon),
            perplexity(_at(rows, arm, epsilon)),
            "" if arm == SENDER else change(paired(_at(rows, arm, epsilon), _at(rows, SENDER, epsilon))),
        ]
        for arm in _ARMS
        for epsilon in epsilons
    ]
    heads = [
        "whose rows are bounded",
        "epsilon",
        "k and learning rate",
        "test perplexity",
        "against senders alone",
    ]
    note = (
        "k and the learning rate were chosen on the mail of other senders. Senders alone are what els protects: their "
        "recipients have no guarantee. Intervals are of 95% over run keys."
    )
    return [*found, Table("The price of recipients", heads, cells, note)]


STUDY = Study(
    name="owners",
    paper="",
    shows=(),
    question="What does it cost to protect a mail's recipients as well as its sender?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=10,
    deviations="stories260K, trained whole, on rows of 64 tokens of the first 40 mails of each sender.",
    reads=("enron-sent",),
)
