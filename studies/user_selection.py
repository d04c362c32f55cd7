"""Which rows of a user to take (Chua et al. 2024, Tables 2, 4 and 7; 000)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.runs.job import Job
from confide.training.evaluation import perplexities
from studies.runner import users
from studies.runner.findings import ABOVE, MARGIN, Finding, paired, pooled
from studies.runner.grid import Grid, config
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.training import job_of
from studies.runner.users import GROUP, ULS

EPSILON = "privacy.epsilon"
RULES = ("random", "longest", "shortest", "highest-ppl", "lowest-ppl")
CHUNK = "random-chunk"
# Chua et al. 2024, Tables 2 and 4 (k = 10), at epsilon 1 and 8: Enron mail and BookSum.
PAPER = {
    (GROUP, "random"): ("35.28, 28.51", "27.34, 27.02"),
    (GROUP, "longest"): ("35.00, 28.29", "27.38, 27.05"),
    (GROUP, "shortest"): ("35.31, 28.75", "27.43, 27.04"),
    (GROUP, "highest-ppl"): ("35.30, 28.46", "27.42, 27.06"),
    (GROUP, "lowest-ppl"): ("35.28, 28.59", "27.39, 27.03"),
    (ULS, CHUNK): ("34.01, 29.87", "27.31, 26.93"),
    (ULS, "random"): ("34.22, 30.22", "27.38, 27.01"),
    (ULS, "longest"): ("34.47, 30.54", "27.38, 27.02"),
    (ULS, "shortest"): ("35.68, 31.19", "27.42, 27.02"),
    (ULS, "highest-ppl"): ("34.36, 30.16", "27.41, 27.04"),
    (ULS, "lowest-ppl"): ("35.02, 30.71", "27.39, 27.02"),
}
# Table 7: average length, average perplexity, share shorter than the longest allowed; Enron mail and BookSum.
SELECTED = {
    "random": ("240.67, 214.67, 0.73", "557.49, 34.37, 0.61"),
    "longest": ("274.91, 201.14, 0.69", "817.93, 33.79, 0.30"),
    "shortest": ("222.28, 278.75, 0.76", "338.43, 41.99, 0.80"),
    "highest-ppl": ("233.27, 1123.77, 0.74", "483.79, 50.32, 0.66"),
    "lowest-ppl": ("247.18, 188.92, 0.72", "539.52, 25.94, 0.65"),
}
CHOSEN = "chosen rows"  # the part of measurements that no training is needed for
_SMALL: dict[str, Any] = {
    "texts": users.TEXTS,
    "rules": RULES,
    "rows": 192,
    "steps": 16,
    "k": 10,
    "rates": (2e-3, 5e-3),
    "epsilons": (1.0, 8.0),
    "tuned": (1.0, 8.0),
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("newsgroups",),
        "rules": ("random", "longest"),
        "rows": 8,
        "steps": 1,
        "k": 2,
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "tuned": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"rows": 1024, "steps": 1000, "rates": (1e-3, 2e-3), "epsilons": (1.0, 3.0, 8.0)},
}


def name(kind: str, rule: str) -> str:
    return f"{kind}, {rule}"


def grid(work: Work) -> Grid:
    size = _SIZES[work.scale]
    rates = {"train.learning_rate": size["rates"]}
    chosen = [(GROUP, rule) for rule in size["rules"]] + [(ULS, rule) for rule in (CHUNK, *size["rules"])]
    return Grid(
        name="user-selection",
        texts=size["texts"],
        model=stories,
        keys=users.keys(size["steps"], **{"privacy.rows_per_unit": size["k"]}),
        arms=tuple(
            users.arm(kind, size["rows"], rates, name(kind, rule), selection=rule) for kind, rule in chosen
        ),
        at={EPSILON: size["epsilons"]},
        tuned_at={EPSILON: size["tuned"]},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    found = [row for text in work.chosen(size["texts"]) for row in chosen(work, text)]
    return found + grid(work).measured(work)


def chosen(work: Work, text: str) -> list[Row]:
    """Return statistics of the rows that each rule takes of each user, under the model as it was."""
    jobs = {rule: _job(work, text, rule) for rule in _SIZES[work.scale]["rules"]}
    job = next(iter(jobs.values()))
    losses = perplexities(job.model, job.task, job.prepared.train, job.micro_tokens, job.ranks)
    return [_of_rule(work, text, rule, job, losses) for rule, job in jobs.items()]


def _job(work: Work, text: str, rule: str) -> Job:
    size = _SIZES[work.scale]
    keys = users.keys(1) | {
        "privacy.mechanism": "group",
        "privacy.selection": rule,
        "privacy.rows_per_unit": size["k"],
        "privacy.noise_multiplier": 1.0,
        "train.batch": 1.0,
    }
    raw = config(work, stories(work), text, keys)
    return job_of(raw, work.folder / "user-selection" / f"{text}-{rule}", work)


def _of_rule(work: Work, text: str, rule: str, job: Job, losses: NDArray[np.float64]) -> Row:
    rows = job.sampler(job.phases()[0]).possible_rows()
    assert rows is not None  # group privacy takes the same rows of a user in every step
    lengths = job.prepared.train.lengths_of(rows)
    return {
        "study": "user-selection",
        "scale": str(work.scale),
        "text": text,
        "arm": rule,
        "part": CHOSEN,
        "key": None,
        EPSILON: None,
        "rows": len(rows),
        "length": float(lengths.mean()),
        "perplexity": float(losses[rows].mean()),
        "median": float(np.median(losses[rows])),
        "shorter": float((lengths < job.run.config.data.max_length).mean()),
        **version(),
    }


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    rules = _rules(rows)
    for text in users.texts_of(rows):
        found += _of_chosen(rows, text)
        for epsilon in users.values(rows, EPSILON):
            spread = {
                kind: pooled([users.at(rows, text, name(kind, rule), epsilon) for rule in of_kind])
                for kind, of_kind in ((GROUP, rules), (ULS, [CHUNK, *rules]))
            }

            def against(
                kind: str, one: str, other: str, text: str = text, at: float = epsilon
            ) -> tuple[float, ...]:
                return users.gap(rows, text, name(kind, one), name(kind, other), at)

            if text == "newsgroups":
                for rule in [each for each in rules if each != "longest"]:
                    found.append(
                        Finding(
                            f"Under group privacy, the longest rows do not do worse than {rule} ones at epsilon "
                            f"{target(epsilon)} ({text}, which is like mail).",
                            "Table 2",
                            f"loss with the longest rows less that with {rule} ones",
                            against(GROUP, "longest", rule),
                            high=MARGIN,
                            family=f"{text}, longest",
                            pooled=spread[GROUP],
                        )
                    )
            else:
                for rule in rules[1:]:
                    found.append(
                        Finding(
                            f"Under group privacy, {rule} rows come within 1% of random ones at epsilon "
                            f"{target(epsilon)} ({text}, which is like books).",
                            "Table 2",
                            f"loss with {rule} rows less that with random ones",
                            against(GROUP, rule, "random"),
                            -MARGIN,
                            MARGIN,
                            family=f"{text}, no order",
                            pooled=spread[GROUP],
                        )
                    )
            for rule in rules:
                found.append(
                    Finding(
                        f"Under user-wise DP-SGD, random chunks do not do worse than {rule} rows at epsilon "
                        f"{target(epsilon)} ({text}).",
                        "Table 4",
                        f"loss with random chunks less that with {rule} rows",
                        against(ULS, CHUNK, rule),
                        high=MARGIN,
                        family=f"{text}, chunks",
                        pooled=spread[ULS],
                    )
                )
            found.append(_mechanisms(rows, text, epsilon))
    return found + _more_on_mail(rows, rules)


def _more_on_mail(rows: Sequence[Row], rules: Sequence[str]) -> list[Finding]:
    """Judge that it matters more on mail than on books which rows are taken."""
    mail, *books = users.texts_of(rows)
    found = []
    for epsilon in users.values(rows, EPSILON) if books else ():
        of = []
        for text in (mail, books[0]):
            losses = sorted(
                (users.at(rows, text, name(GROUP, rule), epsilon) for rule in rules),
                key=lambda each: sum(each.values()),
            )
            of.append(paired(losses[-1], losses[0]))
        found.append(
            Finding(
                f"Under group privacy at epsilon {target(epsilon)}, it matters more on {mail} than on {books[0]} which "
                "rows are taken.",
                "section 4.1",
                f"loss of the rule that is worst in the mean less that of the best, on {mail} less on {books[0]}",
                tuple(a - b for a, b in zip(*of, strict=True)),
                low=ABOVE,
                family="more on mail",
                is_late=True,
            )
        )
    return found


def _mechanisms(rows: Sequence[Row], text: str, epsilon: float) -> Finding:
    """Judge the two mechanisms at the paper's k, with one rule for both: in its Table 6 each has its own."""
    return Finding(
        f"With the paper's k of 10 and random rows for both, user-wise DP-SGD does not do worse than group privacy at "
        f"epsilon {target(epsilon)} ({text}).",
        "Tables 2 and 4",
        "loss of user-wise DP-SGD less that of group privacy",
        users.gap(rows, text, name(ULS, "random"), name(GROUP, "random"), epsilon),
        high=MARGIN,
        family=f"{text}, mechanisms",
        is_beyond=True,
    )


def _of_chosen(rows: Sequence[Row], text: str) -> list[Finding]:
    """Judge that the rules take the rows that they are named after, and how much the longest rows fill."""
    of = {row["arm"]: row for row in rows if (row["text"], row["part"]) == (text, CHOSEN)}
    longest, others = of["longest"], [row for rule, row in of.items() if rule != "longest"]
    return [
        Finding(
            f"The longest rows fill the length that is allowed oftener than those of any other rule ({text}).",
            "Table 7",
            "the least share of shorter rows of another rule, less that of the longest",
            (min(row["shorter"] for row in others) - longest["shorter"],),
            low=ABOVE,
            is_exact=True,
            unit="share",
            is_check=True,  # the rule takes a user's full rows before any shorter one
        ),
        Finding(
            f"The longest rows have a lower perplexity than random ones ({text}).",
            "Table 7",
            "median perplexity of the longest rows as a multiple of that of random ones; few rows rule the mean",
            (longest["median"] / of["random"]["median"],),
            high=1.0,
            is_exact=True,
            unit="times",
        ),
    ]


def _rules(rows: Sequence[Row]) -> list[str]:
    """Return the rules that were tried, but for chunks: `random` is the first."""
    return [rule for rule in RULES if any(row["arm"] == name(GROUP, rule) for row in rows)]


def tables(rows: Sequence[Row]) -> list[Table]:
    epsilons = users.values(rows, EPSILON)
    heads = ["mechanism", "rows", *(f"epsilon {target(each)}" for each in epsilons)]
    heads += [
        *(f"against random, epsilon {target(each)}" for each in epsilons),
        "paper: Enron, epsilon 1, 8",
        "paper: BookSum",
    ]
    found = []
    for text in users.texts_of(rows):
        cells = []
        for kind, rules in ((GROUP, _rules(rows)), (ULS, [CHUNK, *_rules(rows)])):
            for rule in rules:
                own = name(kind, rule)
                cells.append(
                    [
                        kind,
                        rule,
                        *(perplexity(users.at(rows, text, own, each)) for each in epsilons),
                        *(
                            change(users.gap(rows, text, own, name(kind, "random"), each))
                            for each in epsilons
                        ),
                        *PAPER[kind, rule],
                    ]
                )
        note = "Intervals are of 95% over run keys; differences are paired by key."
        found.append(Table(f"Tables 2 and 4, {text}: test perplexity", heads, cells, note))
        found.append(_chosen_table(rows, text))
    return found


def _chosen_table(rows: Sequence[Row], text: str) -> Table:
    heads = ["rows", "how many", "mean tokens", "median perplexity", "share shorter than allowed"]
    heads += ["paper: Enron: length, mean perplexity, share", "paper: BookSum"]
    cells = [
        [
            row["arm"],
            f"{row['rows']:,}",
            f"{row['length']:.1f}",
            f"{row['median']:.1f}",
            f"{row['shorter']:.2f}",
            *SELECTED[row["arm"]],
        ]
        for row in rows
        if (row["text"], row["part"]) == (text, CHOSEN)
    ]
    note = (
        "Perplexities of each row under the model before training; a row has 64 tokens at most. A few rows that the "
        "model cannot read have millions and rule a mean, so that the median is shown. Random rows are those of one "
        "draw."
    )
    return Table(f"Table 7, {text}: the rows that are taken", heads, cells, note)


STUDY = Study(
    name="user-selection",
    paper="000",
    shows=("Table 2", "Table 4", "Table 7"),
    question="Which rows of a user should be used?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=80,
    deviations=users.DEVIATIONS,
    reads=users.READS,
    texts=_SMALL["texts"],
)
