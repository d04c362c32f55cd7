"""The concentration filter on real text (Chua et al. 2024, section 5.3, Figures 3, 7): noise, nearness of gradients.

Gradients are private, and what is measured of them is covered by no guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from confide.config.loading import check
from confide.config.schema import Config
from confide.planning.nearness import USERS, Nearness, nearness
from confide.privacy.accounting import DominatingPair, replaced
from confide.privacy.accounting.concentration import Filtered
from confide.privacy.mechanisms.base import calibrated
from confide.privacy.mechanisms.group import example_level
from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.chart import Panel, panels_svg
from confide.utils.rounding import at_most
from studies.runner import corpora
from studies.runner.findings import Finding
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work

NOISE, NEARNESS, QUANTILE = "noise", "nearness", "quantile"
STEPS, ROWS = 100, 1024  # of a run; rows that a step of user sampling computes
RATIOS = tuple(2.0**power for power in range(-8, 2))  # tau / clip norm
SHARES = tuple(np.linspace(0.02, 0.98, 25).tolist())
LEAST_RATIO = 0.1
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"documents": 200, "ks": (1,), "epsilons": (3.0,), "drawn_ks": (50,), "seeds": 2},
    Scale.SMALL: {
        "model": "bundled",
        "documents": 4000,
        "ks": (1, 4, 16),  # chunks of each whose gradients are compared
        "epsilons": (1.0, 3.0, 8.0),
        "drawn_ks": (2, 10, 50),  # rows a user in user sampling: ROWS / k users a step
        "seeds": 5,
    },
}
_SIZES = {**_SIZES, Scale.FULL: {**_SIZES[Scale.SMALL], "documents": None, "model": "gpt2"}}


def config(work: Work) -> Config:
    source = work.source("20newsgroups").parent
    size = _SIZES[work.scale]
    documents = {"max_documents": size["documents"]}
    raw: dict[str, Any] = {
        "model": str(stories(work)) if work.scale is Scale.TINY else size["model"],
        "adapter": {"kind": "full"},
        "data": corpora.posts(source, "20newsgroups", 0.05)
        | {name: value for name, value in documents.items() if value is not None},
        "privacy": {
            "mechanism": "concentration",
            "epsilon": 3.0,
            "tau": 1.0,
        },
        "train": {"steps": STEPS, "micro_tokens": 2048},
        "run": str(work.folder / "concentration"),
    }
    return check(raw, "study concentration")


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    job = Job.of(Run(config(work)), work.console)
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    rows: list[Row] = []
    for seed in range(1, size["seeds"] + 1):
        for k in size["ks"]:
            work.console.say(f"{USERS} users' gradients over {k} chunks each, key {seed}")
            found = nearness(job, k, RunKey.from_text(f"study concentration {seed}"))
            rows += [columns | {"key": seed} | row for row in distances(found)]
    users, delta = job.setting.parameters.units, job.setting.delta
    for epsilon in size["epsilons"]:
        rows += [columns | row for row in noises(users, epsilon, delta, size["drawn_ks"])]
    return rows


def distances(found: Nearness) -> list[Row]:
    """Return how far apart gradients are, and quantiles of the distances in units of the median norm."""
    names = ("10%", "50%", "90%")
    facts: Row = {
        "what": NEARNESS,
        "k": found.k,
        "median_norm": found.norm,
        "tau": found.tau,
        "ratio": found.tau / found.norm,
        "clipped_ratio": found.clipped_tau / found.norm,
        **dict(zip(names, found.quantiles(), strict=True)),
    }
    quantiles = found.quantiles(SHARES)
    curve: list[Row] = [
        {"what": QUANTILE, "k": found.k, "share": share, "value": value}
        for share, value in zip(SHARES, quantiles, strict=True)
    ]
    return [facts, *curve]


def noises(users: int, epsilon: float, delta: float, ks: Sequence[int]) -> list[Row]:
    """Noise on the mean gradient: of the filter in units of tau, of user sampling in units of the clip norm."""
    filtered = Filtered(users, STEPS, epsilon, delta)
    common: Row = {
        "what": NOISE,
        "epsilon": epsilon,
        "delta": delta,
        "users": users,
        "proved": filtered.proved(filtered.noise_multiplier),
        "filter": filter_noise(users, STEPS, epsilon, delta),
    }
    found = []
    for k in ks:
        sampling = sampling_noise(users, ROWS / k, STEPS, epsilon, delta)
        found.append(common | {"k": k, "sampling": sampling, "crossing": sampling / common["filter"]})
    return found


def filter_noise(users: int, steps: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise on the mean gradient, in units of tau (Chua et al. 2024, Figure 3)."""
    return Filtered(users, steps, epsilon, delta).noise_multiplier / users


def sampling_noise(
    users: int, drawn: float, steps: int, epsilon: float, delta: float, adjacency: str = "replace-one"
) -> float:
    """That of user sampling with `drawn` of the users a step, in units of the clip norm.

    Over `filter_noise` it is the crossing: the filter adds less noise where tau / clip norm is below it.
    """
    process: DominatingPair = example_level(Sampling("poisson", drawn / users), steps)
    if adjacency == "replace-one":
        process = replaced(process)
    return calibrated(process, epsilon, delta) / drawn  # type: ignore[arg-type]  # frozen values


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    crossings = [row["crossing"] for row in rows if row["what"] == NOISE]
    ratios = [
        *zip(*_by_k(rows, NEARNESS, "clipped_ratio").values(), strict=True)
    ]  # of all k, by sample of users
    found = [
        Finding(
            f"For most k and epsilon the filter has lower noise only where tau is less than {LEAST_RATIO} of the clip "
            "norm.",
            "section 5.3",
            "share of the pairs of k and epsilon of which that is true; k, epsilon and users a step are our choice",
            (sum(crossing < LEAST_RATIO for crossing in crossings) / len(crossings),),
            low=0.5 + 1e-9,
            is_exact=True,
            unit="share",
        ),
        Finding(
            f"At every k and epsilon the filter has lower noise only where tau is less than {LEAST_RATIO} of the clip "
            "norm.",
            "Figures 3 and 7, captions",
            f"tau / clip norm at which the two add as much noise, from the least to the largest; {ROWS:,} / k users a "
            "step are our choice, and the captions name none",
            tuple(crossings),
            high=LEAST_RATIO,
            is_exact=True,
            unit="ratio",
        ),
        Finding(
            "On real text tau / clip norm is around 1.",
            "Figures 3 and 7, captions",
            "tau of gradients clipped at their median norm, in units of it, at the k that has the least; half to twice "
            "counts as around, by our choice, and more than twice cannot be, since clipped gradients are no farther "
            "apart",
            tuple(map(min, ratios)),
            0.5,
            2.0,
            unit="ratio",
        ),
    ]
    found.append(
        Finding(
            "On real text the filter has more noise than user-wise DP-SGD.",
            "section 5.3",
            "its noise as a multiple of that of user-wise DP-SGD, at the epsilon and the k that favour it most",
            tuple(min(each) / max(crossings) for each in ratios),
            low=1.0,
            unit="times",
        )
    )
    return found


def _by_k(rows: Sequence[Row], what: str, column: str) -> dict[int, tuple[float, ...]]:
    """Return a column's values by k, in the order of the rows."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault(row["k"], []).append(row[column])
    return {k: tuple(values) for k, values in found.items()}


# as pictures and tables ----------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    return [_distances(rows), _noises(rows)]


def _distances(rows: Sequence[Row]) -> Table:
    cells = []
    for k in _by_k(rows, NEARNESS, "tau"):
        of_columns = {
            column: _by_k(rows, NEARNESS, column)[k]
            for column in ("median_norm", "10%", "50%", "90%", "tau", "ratio", "clipped_ratio")
        }
        cells.append([str(k), *(_spread(values) for values in of_columns.values())])
    heads = ["chunks a user", "median norm", "distance of a pair / median norm: 10%", "50%", "90%"]
    heads += ["tau", "tau / median norm", "clipped at it"]
    note = (
        f"Gradients are those of {USERS} senders at the base model, each the mean over k random chunks. tau is the "
        "least distance within which 4/5 of all pairs lie, which is what a step of the filter asks for. Clipped at it: "
        "the same of gradients that are clipped at the median norm, in units of it. It is 2 at most, as clipped "
        "gradients are no farther apart, and 1.41 for long ones at right angles. A cell has the mean "
        "and the range over samples of senders. The paper says that tau / C is around 1, and not what C is. Its "
        "Algorithm 3 as printed does not clip: then the column before the last counts. What is measured of private "
        "gradients is covered by no guarantee; `confide plan CONFIG --measure` tells of any config's."
    )
    return Table("How far users' gradients are apart", heads, cells, note)


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3g} (range {min(values):.3g} to {max(values):.3g})"


def _noises(rows: Sequence[Row]) -> Table:
    own = [row for row in rows if row["what"] == NOISE]
    ks = list(_by_k(rows, NOISE, "crossing"))
    cells = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in own):
        by_k = {row["k"]: row for row in own if row["epsilon"] == epsilon}
        first = by_k[ks[0]]
        cells.append(
            [
                at_most(epsilon, 6),
                at_most(first["proved"], 3),
                f"{first['filter']:.3g}",
                *(f"{by_k[k]['sampling']:.3g}" for k in ks),
                *(f"{by_k[k]['crossing']:.3f}" for k in ks),
            ]
        )
    heads = ["epsilon", "proved", "noise of the filter, in tau"]
    heads += [f"of user sampling, in clip norms: k = {k}" for k in ks]
    heads += [f"crossing, tau / clip norm: k = {k}" for k in ks]
    note = (
        f"The standard deviation of the noise on the mean gradient after {STEPS} steps at delta "
        f"{at_most(own[0]['delta'], 2)} with {own[0]['users']:,} users, both mechanisms under replace-one. User "
        f"sampling draws {ROWS:,} / k users a step, the filter takes all, in every step. Proved is the epsilon that "
        "the proof in `privacy/accounting/concentration.py` reaches at the filter's noise: where it is more than "
        "epsilon, a run says that its claim is an estimate. The paper has plots, not numbers."
    )
    return Table("Figures 3 and 7: noise of the filter and of user sampling", heads, cells, note)


def plots(rows: Sequence[Row]) -> list[Plot]:
    own = [row for row in rows if row["what"] == NOISE]
    panels = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in own):
        of_epsilon = [row for row in own if row["epsilon"] == epsilon]
        lines = {"filter": [(ratio, ratio * of_epsilon[0]["filter"]) for ratio in RATIOS]}
        for row in of_epsilon:
            lines[f"uls k={row['k']}"] = [(RATIOS[0], row["sampling"]), (RATIOS[-1], row["sampling"])]
        title = f"epsilon {at_most(epsilon, 6)}, {own[0]['users']:,} users, {STEPS} steps"
        panels.append(Panel(title, "tau / clip norm", "noise / clip norm", lines, log_x=True, log_y=True))
    curves = {}
    for k in _by_k(rows, NEARNESS, "tau"):
        values: dict[float, list[float]] = {}
        for row in rows:
            if row["what"] == QUANTILE and row["k"] == k:
                values.setdefault(row["share"], []).append(row["value"])
        curves[f"k = {k}"] = [(float(np.mean(each)), share) for share, each in values.items()]
    title = "how far users' gradients are apart"
    panels.append(Panel(title, "distance / median norm", "share of pairs below", curves))
    words = "noise of the filter and of user sampling as tau / clip norm grows, and how far users' gradients are apart"
    svg = panels_svg("The concentration filter beside user sampling", panels)
    return [Plot("concentration", words, svg)]


STUDY = Study(
    name="concentration",
    paper="000",
    shows=("Figure 3", "Figure 7"),
    question="Are users' gradients so near each other that the concentration filter needs less noise?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=5,
    deviations="The bundled base model on the first 4,000 posts of 20 Newsgroups, rows of 64 tokens, in place of GPT-2 "
    "small on Enron mail and BookSum. Steps, users and k of the paper's plots are not all stated.",
    reads=("20newsgroups",),
    plots=plots,
)
