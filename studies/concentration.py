"""The concentration filter on real text (Chua et al. 2024, section 5.3, Figures 3, 7): noise, nearness of gradients.

Gradients are those of the bundled base model on text of 20 Newsgroups. They are private, and what is measured of them
is covered by no guarantee.
"""

from pathlib import Path
from typing import Any

import numpy as np

from confide.config.loading import check
from confide.config.schema import Config
from confide.planning.nearness import USERS, Nearness, nearness
from confide.privacy.accounting import DominatingPair, replaced
from confide.privacy.accounting.concentration import Filtered
from confide.privacy.mechanisms.base import calibrated
from confide.privacy.mechanisms.concentration import Concentration
from confide.privacy.mechanisms.group import example_level
from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.chart import Panel, panels_svg
from confide.utils.console import Console
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies import corpora, main

KEY = RunKey.from_text("study concentration")
DOCUMENTS = 4000  # that are read
KS = (1, 4, 16)  # chunks of each
EPSILONS = (1.0, 3.0, 8.0)
STEPS, ROWS = 100, 1024  # of a run; rows that a step of user sampling computes
DRAWN_KS = (2, 10, 50)  # rows a user in user sampling: ROWS / k users a step
RATIOS = tuple(2.0**power for power in range(-8, 2))  # tau / clip norm


def config(data: Path, folder: Path) -> Config:
    raw: dict[str, Any] = {
        "model": "bundled",
        "adapter": {"kind": "full"},
        "data": corpora.posts(data, "20newsgroups", 0.05) | {"max_documents": DOCUMENTS},
        "privacy": {
            "mechanism": "concentration",
            "epsilon": EPSILONS[1],
            "tau": 1.0,
        },
        "train": {"steps": STEPS},
        "run": str(folder / "run"),
    }
    return check(raw, "study concentration")


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Measure distances, compute noises, draw both, and return facts and two tables."""
    console = Console()
    job = Job.of(Run(config(data, folder)), console)
    measured = []
    for k in KS:
        console.say(f"{USERS} users' gradients over {k} chunks each")
        measured.append(nearness(job, k, KEY))
    noises = [noise(job, epsilon) for epsilon in EPSILONS]
    write_text(folder / "concentration.svg", _picture(measured, noises, job.setting.parameters.units))
    rows = [one.facts() for one in measured]
    return {"distances": rows, "noise": noises, "markdown": _tables(rows, noises)}


def noise(job: Job, epsilon: float) -> dict[str, Any]:
    """Noise on the mean gradient: of the filter in units of tau, of user sampling in units of the clip norm."""
    mechanism = job.mechanism
    assert isinstance(mechanism, Concentration)
    users, delta = job.setting.parameters.units, job.setting.delta
    filtered = Filtered(users, STEPS, epsilon, delta)
    noise_of_filter = filter_noise(users, STEPS, epsilon, delta)
    sampled = {k: sampling_noise(users, ROWS / k, STEPS, epsilon, delta) for k in DRAWN_KS}
    return {
        "epsilon": epsilon,
        "delta": delta,
        "users": users,
        "proved": filtered.proved(filtered.noise_multiplier),
        "filter": noise_of_filter,
        "sampling": sampled,
        "crossing": {k: value / noise_of_filter for k, value in sampled.items()},
    }


def _tables(rows: list[dict[str, Any]], noises: list[dict[str, Any]]) -> str:
    lines = [
        "| chunks a user | median norm | distance of a pair / median norm: 10% | 50% | 90% | tau | tau / median norm | "
        "clipped at it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        quantiles = " | ".join(f"{value:.2f}" for value in row["quantiles"])
        lines.append(
            f"| {row['k']} | {row['median_norm']:.3g} | {quantiles} | {row['tau']:.3g} | {row['ratio']:.2f} | "
            f"{row['clipped_ratio']:.2f} |"
        )
    drawn = " | ".join(f"k = {k}" for k in DRAWN_KS)
    lines += [
        "",
        f"| epsilon | proved | noise of the filter, in tau | of user sampling, in clip norms: {drawn} | "
        f"crossing, tau / clip norm: {drawn} |",
        "|---" * (3 + 2 * len(DRAWN_KS)) + "|",
    ]
    for one in noises:
        sampled = " | ".join(f"{value:.3g}" for value in one["sampling"].values())
        crossings = " | ".join(f"{value:.3f}" for value in one["crossing"].values())
        lines.append(
            f"| {at_most(one['epsilon'], 6)} | {at_most(one['proved'], 3)} | {one['filter']:.3g} | "
            f"{sampled} | {crossings} |"
        )
    return "\n".join(lines)


def _picture(measured: list[Nearness], noises: list[dict[str, Any]], users: int) -> str:
    panels = [
        Panel(
            f"epsilon {at_most(one['epsilon'], 6)}, {users:,} users, {STEPS} steps",
            "tau / clip norm",
            "noise / clip norm",
            {"filter": [(ratio, ratio * one["filter"]) for ratio in RATIOS]}
            | {
                f"uls k={k}": [(RATIOS[0], value), (RATIOS[-1], value)]
                for k, value in one["sampling"].items()
            },
            log_x=True,
            log_y=True,
        )
        for one in noises
    ]
    shares = np.linspace(0.02, 0.98, 25)
    lines = {
        f"k = {one.k}": list(zip(one.quantiles(list(shares)), shares.tolist(), strict=True))
        for one in measured
    }
    panels.append(
        Panel("how far users' gradients are apart", "distance / median norm", "share of pairs below", lines)
    )
    return panels_svg("The concentration filter beside user sampling", panels)


def filter_noise(users: int, steps: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise on the mean gradient, in units of tau (Chua et al. 2024, Figure 3)."""
    return Filtered(users, steps, epsilon, delta).noise_multiplier / users


def sampling_noise(
    users: int, drawn: float, steps: int, epsilon: float, delta: float, adjacency: str = "replace-one"
) -> float:
    """That of user sampling with `drawn` of the users a step, in units of the clip norm.

    Over `filter_noise` it is the crossing: the filter adds less noise where tau / clip norm is below it.
    """
    process: DominatingPair = example_level(users, Sampling("poisson", drawn / users), steps)
    if adjacency == "replace-one":
        process = replaced(process)
    return calibrated(process, epsilon, delta) / drawn  # type: ignore[arg-type]  # frozen values


if __name__ == "__main__":
    main(run)
