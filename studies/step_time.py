"""Seconds of a step: without privacy, group privacy, user-wise DP-SGD (Chua et al. 2024, Table 12, Figure 6).

Every unit takes part in every step, so that all ways compute the same rows. The text is made up.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from confide.config.loading import check
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training.phases import PhaseRunner
from confide.utils.chart import Panel, panels_svg
from studies.runner.findings import Finding, interval, slopes
from studies.runner.rows import device, version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work

NONE, GROUP, ULS = "no privacy", "group privacy", "user-wise DP-SGD"
ARMS: Mapping[str, dict[str, Any]] = {
    NONE: {"mechanism": "none"},
    GROUP: {"mechanism": "group", "noise_multiplier": 1.0, "delta": 1e-5},
    ULS: {"mechanism": "uls", "noise_multiplier": 1.0, "delta": 1e-5},
}
OF_ARMS, OF_K = "by arm", "by k"
LENGTH = 64
PAPER = (
    ("GPT-2 small (paper)", 11.95, 12.70, 12.82),
    ("GPT-2 medium (paper)", 30.90, 32.00, 32.85),
    ("GPT-2 large (paper)", 62.57, 64.80, 68.45),
)
MOST = 1.09
"""The largest ratio of Table 12: "4%-9%" of overhead."""

_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"model": "bundled", "rows": 2, "k": 2, "users": 1, "ks": (1, 4), "turns": 1, "seeds": 2},
    Scale.SMALL: {
        "model": "bundled",
        "rows": 40,  # of a step of each arm
        "k": 10,
        "users": 2,  # of a step whose k is varied
        "ks": (1, 2, 5, 10, 20, 50),
        "turns": 3,
        "seeds": 5,
    },
    Scale.FULL: {
        "model": "gpt2",
        "rows": 1020,
        "k": 10,
        "users": 20,
        "ks": (1, 2, 5, 10, 20, 50),
        "turns": 20,
        "seeds": 5,
    },
}


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    columns = {"study": STUDY.name, "scale": str(work.scale), **version(), "model": size["model"]}
    columns |= {**device(), "threads": torch.get_num_threads()}
    columns |= {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}  # before the first step
    of_arms = {arm: _steps(work, arm, size["rows"] // size["k"], size["k"]) for arm in ARMS}
    found = [
        columns | row | {"what": OF_ARMS, "k": size["k"], "rows": size["rows"]}
        for row in in_turns(of_arms, size["seeds"], size["turns"], "arm")
    ]
    of_arms.clear()
    of_k = {k: _steps(work, ULS, size["users"], k) for k in size["ks"]}
    for row in in_turns(of_k, size["seeds"], size["turns"], "k"):
        found.append(columns | row | {"what": OF_K, "arm": ULS, "rows": size["users"] * row["k"]})
    return found


def in_turns(runners: Mapping[Any, Any], seeds: int, turns: int, column: str) -> list[Row]:
    """Time one step of each in turns, in an order that rotates; `seeds` series of `turns` turns, after one to warm up.

    Args:
        runners: what takes step number n when it is called with n.
        column: what names a runner in the rows.
    """
    names, found = list(runners), []
    for name in names:
        runners[name](0)
    for number in range(seeds * turns):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            _wait()
            began = time.perf_counter()
            runners[name](number + 1)
            _wait()
            seconds = time.perf_counter() - began
            found.append({column: name, "key": number // turns + 1, "turn": number, "seconds": seconds})
    return found


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _steps(work: Work, arm: str, users: int, k: int) -> PhaseRunner:
    """Return the steps of a run in which every user gives k rows to every step."""
    size = _SIZES[work.scale]
    folder = work.folder / "step-time" / f"{arm.replace(' ', '-')}-{users}-{k}"
    by_user = arm == ULS
    raw: dict[str, Any] = {
        "model": size["model"],
        "adapter": {"kind": "lora", "rank": 32} if work.scale is Scale.FULL else {"kind": "full"},
        "data": {
            "train": str(_text(folder / "text.jsonl", users, k)),
            "unit": "user",
            "eval": None,
            "max_length": LENGTH,
            "duplicates": False,
        },
        "privacy": ARMS[arm] | {"rows_per_unit": k, "selection": "random", "published_key": "step-time"},
        "train": {
            "steps": size["seeds"] * size["turns"] + 1,
            "batch": float(users if by_user or arm == NONE else users * k),
            "micro_tokens": 2048,
        },
        "run": str(folder / "run"),
    }
    return Job.of(Run(check(raw, "study step-time")), work.console).phase_runner()


def _text(path: Path, users: int, k: int) -> Path:
    """Write k records of each user, of words that are a token each, so that every record is one row of one length."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    words = ["of", "and", "in", "to", "was", "that", "with", "by"]
    with open(path, "w", encoding="utf-8") as out:
        for user in range(users):
            for _ in range(k):
                text = " the" + " ".join(["", *generator.choice(words, LENGTH - 4)])
                out.write(json.dumps({"user": f"user {user}", "text": text}) + "\n")
    return path


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    first = rows[0]
    where = f"; on {first['device']}" + f", {first['threads']} of {first['cores']} cores" * (
        first["device"] == "CPU"
    )
    where += f", which others kept busy (load {first['load']})" * (first["load"] > first["cores"])
    found = [
        Finding(
            f"A step with {arm} takes at most 9% longer than one without privacy.",
            "Table 12",
            f"seconds as a multiple of those without privacy in the same turn, the median of a series of turns{where}",
            tuple(_ratios(rows, arm).values()),
            high=MOST,
            family="Table 12",
            unit="times",
            over="series of turns",
            is_beyond=True,  # all weights on a processor, where the paper has LoRA on a GPU
        )
        for arm in (GROUP, ULS)
    ]
    seconds = _seconds(rows, OF_K, "k")
    logs = [{key: math.log(value) for key, value in each.items()} for each in seconds.values()]
    found.append(
        Finding(
            "With user-wise DP-SGD, a larger k takes longer, at as many users a step.",
            "Figure 6",
            "slope of the log of seconds a step in the log of k",
            slopes([math.log(k) for k in seconds], logs),
            low=1e-9,
            unit="slope",
            over="series of turns",
            is_check=True,  # more rows take longer
        )
    )
    return found


def _ratios(rows: Sequence[Row], arm: str) -> dict[int, float]:
    """Return the median over turns of a step's time by that without privacy in the same turn, by key."""
    by_turn = {(row["arm"], row["turn"]): row for row in rows if row["what"] == OF_ARMS}
    found: dict[int, list[float]] = {}
    for (name, turn), row in by_turn.items():
        if name == arm:
            found.setdefault(row["key"], []).append(row["seconds"] / by_turn[NONE, turn]["seconds"])
    return {key: statistics.median(values) for key, values in found.items()}


def _seconds(rows: Sequence[Row], what: str, column: str) -> dict[Any, dict[int, float]]:
    """Return the median seconds of a step over turns, by a column and by key."""
    found: dict[Any, dict[int, list[float]]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault(row[column], {}).setdefault(row["key"], []).append(row["seconds"])
    return {
        name: {key: statistics.median(values) for key, values in by_key.items()}
        for name, by_key in found.items()
    }


# as pictures and tables ----------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    first = rows[0]
    seconds = _seconds(rows, OF_ARMS, "arm")
    line = [str(first["model"]), *(f"{statistics.median(seconds[arm].values()):.3f}" for arm in ARMS)]
    for arm in (GROUP, ULS):
        ratios = tuple(_ratios(rows, arm).values())
        low, high = interval(ratios)
        line.append(f"{sum(ratios) / len(ratios):.2f} ({low:.2f} to {high:.2f})")
    cells = [line]
    for name, none, group, uls in PAPER:
        multiples = [f"{each / none:.2f}" for each in (group, uls)]
        cells.append([name, f"{none:.2f}", f"{group:.2f}", f"{uls:.2f}", *multiples])
    quotients = " and ".join(
        f"{statistics.median(seconds[arm].values()) / statistics.median(seconds[NONE].values()):.2f}"
        for arm in (GROUP, ULS)
    )
    of_k = _seconds(rows, OF_K, "k")
    users = next(row["rows"] // row["k"] for row in rows if row["what"] == OF_K)
    many = f"{first['threads']} thread{'' if first['threads'] == 1 else 's'}"
    note = (
        f"{first['rows']} rows of {LENGTH} tokens a step, k = {first['k']}, on {first['device']} with {many}. Steps of "
        "the three are taken in turns. Seconds are the median over series of the median of a series. How many times as "
        "long is taken in each turn, so that what else runs on the machine disturbs both sides alike: of a series it "
        "is the median, and here the mean over series with its 95% interval. Quotients of the seconds are other "
        f"figures ({quotients}), since the medians are of turns with another load. At the beginning the load average "
        f"was {first['load']} on {first['cores']} cores. [Benchmarks](../benchmarks.md) compare with other "
        "trainers and on GPUs. The paper has batches of 1,024 on an A100."
    )
    times = [f"{arm}: times as long as without" for arm in (GROUP, ULS)]
    return [
        Table("Table 12: seconds of a step", ["model", *ARMS, *times], cells, note),
        Table(
            f"Figure 6: seconds of a step of user-wise DP-SGD with {users} user{'' if users == 1 else 's'}",
            ["k", "seconds", "of a row"],
            [
                [str(k), f"{middle:.3f}", f"{middle / (users * k):.4f}"]
                for k, middle in ((k, statistics.median(each.values())) for k, each in of_k.items())
            ],
            "The paper has a plot, of an epoch of BookSum, not numbers.",
        ),
    ]


def plots(rows: Sequence[Row]) -> list[Plot]:
    of_k = _seconds(rows, OF_K, "k")
    points = [(float(k), statistics.median(each.values())) for k, each in of_k.items()]
    panel = Panel("user-wise DP-SGD", "rows of a user, k", "seconds of a step", {ULS: points}, True, True)
    return [
        Plot("step-time", "seconds of a step by the rows of a user", panels_svg("Seconds by k", [panel], 1))
    ]


STUDY = Study(
    name="step-time",
    paper="000",
    shows=("Table 12", "Figure 6"),
    question="How much longer does a private step take, and how does that grow with the rows of a user?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=4,
    deviations="The paper trains GPT-2 with LoRA and 1,024 rows a step on a GPU. Here it is the bundled model, all "
    "weights, on a processor with one thread where OMP_NUM_THREADS is 1; text made up. A series of turns stands for a "
    "run key. Without privacy means confide's own ordinary training. Figure 6 is in steps of as many users: an epoch "
    "is a fixed number of them.",
    plots=plots,
)
