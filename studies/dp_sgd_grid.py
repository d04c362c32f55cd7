"""What batch and epochs do to DP-SGD on rows (Shi et al. 2022, Tables 5 and 7; 004)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from confide.config.loading import check
from confide.runs.folder import Run
from confide.runs.job import Job
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired, slopes, unsigned
from studies.runner.grid import NOTHING, Arm, Grid, Keys, nested
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target
from studies.runner.texts import TEXTS

ARM, BATCH, EPOCHS, EPSILON = "DP-SGD", "train.batch", "epochs", 3.0
# Shi et al. 2022, Table 7: perplexity on WikiText-2, GPT-2 small, by (batch, epochs).
PAPER = {(256, 200): 27.04, (512, 200): 27.05, (1024, 200): 27.18, (1024, 600): 27.01, (1024, 10): 28.84}
_SMALL: dict[str, Any] = {
    "documents": 500,
    "batches": (128, 256, 512, 1024),
    "epochs": (1, 3, 9),
    "tuned_epochs": (1, 3, 9),
    "rates": (5e-3, 1.5e-2),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "documents": 10,
        "batches": (16,),
        "epochs": (1, 2),
        "tuned_epochs": (1,),
        "rates": (5e-3,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "documents": None,
        "tuned_epochs": (10, 200),
        "epochs": (10, 100, 200, 600),
        "rates": (5e-4, 1e-3, 5e-3),
    },
}


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    keys = {
        "adapter.kind": "full",
        "data.max_length": 64,
        "privacy.mechanism": "dp-sgd",
        "privacy.clip_norm": 0.1,
        "train.schedule": "linear",
    }
    if size["documents"] is not None:
        keys["data.max_documents"] = size["documents"]
    derived = partial(with_steps, rows=_rows(work, keys))
    return Grid(
        name="dp-sgd-grid",
        texts=("articles",),
        model=stories,
        keys=keys,
        arms=(Arm(ARM, {}, {"train.learning_rate": size["rates"]}, derived),),
        at={"privacy.epsilon": (EPSILON,), EPOCHS: size["epochs"], BATCH: size["batches"]},
        tuned_at={"privacy.epsilon": (EPSILON,), EPOCHS: size["tuned_epochs"], BATCH: size["batches"]},
        seeds=size["seeds"],
    )


def with_steps(keys: Keys, rows: int) -> Keys:
    """Return keys with the steps in which a batch passes over all `rows` as often as `epochs` says, at least one."""
    rest = {name: value for name, value in keys.items() if name != EPOCHS}
    return rest | {"train.steps": max(1, round(keys[EPOCHS] * rows / keys[BATCH]))}


def _rows(work: Work, keys: Keys) -> int:
    """Count the rows that the training text is cut into."""
    text = TEXTS["articles"]
    where = {
        "model": str(stories(work)),
        "run": str(work.folder / "dp-sgd-grid"),
        "data.train": str(text.parts(work)["train"]),
        "data.eval": None,
        "privacy.noise_multiplier": 1.0,
        "data.text": text.template,
        "data.unit": text.unit,
        "data.duplicates": False,
        "train.micro_tokens": 2048,
        "train.batch": 1.0,
    }
    job = Job.of(Run(check(nested({**keys, **where}), "study dp-sgd-grid")), work.console)
    return job.setting.parameters.units


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def _at(rows: Sequence[Row], epochs: float, batch: float) -> dict[int, float]:
    return losses(rows, {"arm": ARM, EPOCHS: epochs, BATCH: batch})


def diminishing(rows: Sequence[Row], batch: float) -> tuple[float, ...]:
    """Return, by run key, the gain a factor e of epochs at the fewest epochs less that at the most, in nats."""
    epochs = users.values(rows, EPOCHS)
    first, second, *_ = epochs
    *_, last_but_one, last = epochs
    at = {each: _at(rows, each, batch) for each in epochs}
    early, late = math.log(second / first), math.log(last / last_but_one)
    keys = sorted(set.intersection(*map(set, at.values())))
    return tuple(
        (at[first][key] - at[second][key]) / early - (at[last_but_one][key] - at[last][key]) / late
        for key in keys
    )


def findings(rows: Sequence[Row]) -> list[Finding]:
    epochs, batches = users.values(rows, EPOCHS), users.values(rows, BATCH)
    of_epochs, of_batches = ([math.log(each) for each in values] for values in (epochs, batches))
    found = []
    for batch in batches:
        found.append(
            Finding(
                f"With {batch:,} rows a step, more epochs help.",
                "Table 7",
                "slope of the loss in the logarithm of epochs",
                slopes(of_epochs, [_at(rows, each, batch) for each in epochs]),
                high=0.0,
                family="epochs",
                unit="nats a factor e",
            )
        )
        if len(epochs) > 2:
            found.append(
                Finding(
                    f"With {batch:,} rows a step, the gain of more epochs saturates.",
                    "Appendix A.2",
                    "gain in loss a factor e of epochs at the fewest epochs less that at the most",
                    diminishing(rows, batch),
                    low=0.0,
                    family="saturation",
                    unit="nats a factor e",
                )
            )
    if len(batches) < 2:
        return found
    found.append(
        Finding(
            "Larger batches help.",
            "Appendix A.2",
            f"slope of the loss in the logarithm of the batch, mean over {_listed(epochs)} epochs",
            slopes(of_batches, [_over_epochs(rows, epochs, batch) for batch in batches]),
            high=0.0,
            unit="nats a factor e",
        )
    )
    found += [_interaction(rows, epochs, batches), _alike(rows, epochs[-1], batches)]
    return found


def _interaction(rows: Sequence[Row], epochs: Sequence[float], batches: Sequence[float]) -> Finding:
    """Judge that what more epochs gain depends on the batch: by the smallest and the largest of both.

    The paper says that the two "can interact", and that there is little to gain once both are large enough.
    """
    of = [
        paired(*(_at(rows, each, batch) for each in (epochs[0], epochs[-1])))
        for batch in (batches[0], batches[-1])
    ]
    return Finding(
        "Batch and epochs interact: what more epochs gain depends on the rows of a step.",
        "Appendix A.2",
        f"what {_passes(int(epochs[-1]))} gain over {_passes(int(epochs[0]))} in loss, with {batches[-1]:,} rows a "
        f"step less with {batches[0]:,}, turned so that its mean is above 0; more than 1% counts, by our choice",
        unsigned([large - small for small, large in zip(*of, strict=True)]),
        low=MARGIN,
        is_late=True,
    )


def _over_epochs(rows: Sequence[Row], epochs: Sequence[float], batch: float) -> dict[int, float]:
    """Return by run key the mean loss over all numbers of epochs."""
    at = [_at(rows, each, batch) for each in epochs]
    return {key: sum(each[key] for each in at) / len(at) for key in at[0]}


def _alike(rows: Sequence[Row], epochs: int, batches: Sequence[int]) -> Finding:
    """Judge the two batches that differ most in the mean: if these are alike, all are."""
    last = {batch: _at(rows, epochs, batch) for batch in batches}
    means = {batch: sum(found.values()) / len(found) for batch, found in last.items()}
    best, worst = min(means, key=lambda each: means[each]), max(means, key=lambda each: means[each])
    return Finding(
        f"After {_passes(epochs)} it hardly matters how many rows a step has.",
        "Table 7",
        f"loss with {worst:,} rows a step, the worst, less that with {best:,}, the best; less than 1% of the "
        "perplexity counts as alike, by us",
        paired(last[worst], last[best]),
        low=-MARGIN,
        high=MARGIN,
    )


def _listed(values: Sequence[float]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _passes(epochs: int) -> str:
    return f"{epochs} epoch{'' if epochs == 1 else 's'}"


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        [
            f"{batch:,}",
            str(epochs),
            perplexity(_at(rows, epochs, batch)),
            _rate(rows, epochs, batch),
        ]
        for batch in users.values(rows, BATCH)
        for epochs in users.values(rows, EPOCHS)
    ]
    cells += [
        [f"{batch:,}", str(epochs), f"{found} (paper, GPT-2 small)", ""]
        for (batch, epochs), found in PAPER.items()
    ]
    before = perplexity(losses(rows, {"arm": NOTHING}))
    note = (
        f"Epsilon {target(EPSILON)}, clip norm 0.1. Before training the perplexity is {before}. {_at_first(rows)}"
        "Rates are chosen on validation text. Intervals are of 95% over run keys."
    )
    return [
        Table(
            "Table 7, articles: test perplexity of DP-SGD",
            ["batch", "epochs", "perplexity", "rate"],
            cells,
            note,
        ),
        _tried(rows),
    ]


def _at_first(rows: Sequence[Row]) -> str:
    """Say what large batches cost after the fewest epochs, where they are few steps."""
    epochs, batches = users.values(rows, EPOCHS)[0], users.values(rows, BATCH)
    if len(batches) < 2:
        return ""
    gaps = paired(_at(rows, epochs, batches[-1]), _at(rows, epochs, batches[0]))
    return (
        f"After {_passes(epochs)} the perplexity with {batches[-1]:,} rows a step, less that with {batches[0]:,}, is "
        f"{change(gaps)}. "
    )


def _tried(rows: Sequence[Row]) -> Table:
    """Show what was tried, beside what the authors tried."""
    cells = [
        ["epsilon", target(EPSILON), "3"],
        ["clip norm", "0.1", "0.1"],
        ["batch", ", ".join(map(str, users.values(rows, BATCH))), "256, 512, 1024"],
        ["learning rate", users.chosen([row for row in rows if row["arm"] == ARM]), "three, as 5 : 10 : 50"],
        ["epochs", ", ".join(map(str, users.values(rows, EPOCHS))), "10, 100, 200, 600"],
    ]
    return Table("Table 5: what is tried", ["setting", "here", "paper"], cells)


def _rate(rows: Sequence[Row], epochs: float, batch: float) -> str:
    place = (epochs, batch, "test", ARM)
    own = [row for row in rows if (row[EPOCHS], row[BATCH], row["part"], row["arm"]) == place]
    return users.chosen(own)


STUDY = Study(
    name="dp-sgd-grid",
    paper="004",
    shows=("Table 5", "Table 7"),
    question="Do larger batches and more epochs help DP-SGD, and where does that end?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K, trained whole, in place of GPT-2 small; the first 500 paragraphs of WikiText-2's "
    "articles, in rows of 64 tokens, in place of all of it; 1, 3 and 9 epochs in place of 10 to 600; Poisson draws. "
    "Two learning rates are tried at each place of the grid.",
    reads=("wikitext-2", "20newsgroups"),
)
