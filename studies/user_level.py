"""User-level fine-tuning on real text (000 and 003): base, private and non-private on the same draws.

20 Newsgroups has thousands of senders, Enron 124: the same target costs very different amounts of noise,
which is the point. The run keys are published here so that the numbers can be repeated; the guarantee of
each run says so.
"""

from pathlib import Path
from typing import Any

from confide.config.loading import check
from confide.config.schema import Config
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.training.metrics import gap_closed
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most
from studies import corpora, main

_SHARED: dict[str, Any] = {
    "model": "bundled",
    "adapter": {"kind": "full"},
    "privacy": {"mechanism": "uls", "epsilon": 8.0, "rows_per_unit": 4, "selection": "random-chunk"},
}
_TRAIN = {"steps": 60, "learning_rate": 2e-3, "schedule": "linear", "precision": "bf16"}
# By data set: the share of senders held out, and users a step.
_DATA = {"20newsgroups": (0.05, 400.0), "enron-sent": (0.1, 60.0)}


def config(name: str, data: Path, folder: Path) -> Config:
    """The config of one data set of the study."""
    held_out, batch = _DATA[name]
    raw = _SHARED | {
        "data": corpora.posts(data, name, held_out),
        "train": _TRAIN | {"batch": batch},
        "run": str(folder / name),
    }
    raw["privacy"] = raw["privacy"] | {"published_key": f"study user-level {name}"}
    return check(raw, f"study user-level, {name}")


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train both twins on both data sets, or resume, and compare them on held-out users."""
    console, rows = Console(), []
    for name in _DATA:
        settings = config(name, data, folder)
        console.say(f"{name}: with user-level privacy")
        private = fine_tune(Run(settings), console)
        console.say(f"{name}: the non-private twin")
        twin = fine_tune(Run(settings, twin=True), console)
        if not (private.finished and twin.finished):
            raise KeyboardInterrupt
        rows.append(_facts(name, settings, private, twin))
    return {"rows": rows, "markdown": _table(rows)}


def _facts(name: str, settings: Config, private: Outcome, twin: Outcome) -> dict[str, Any]:
    base, ours, theirs, guarantee = private.base, private.final, twin.final, private.guarantee
    assert base
    assert ours
    assert theirs
    return {
        "data": name,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "noise_multiplier": guarantee.noise_multiplier,
        "sampling_probability": guarantee.sampling_probability[0],
        "steps": guarantee.steps,
        "users_a_step": settings.train.batch,
        "base": base,
        "private": ours,
        "nonprivate": theirs,
        "gap_closed": gap_closed(base["loss"], ours["loss"], theirs["loss"]),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| data | users a step | q | steps | noise multiplier | epsilon, delta | loss: base | private | "
        "not private | perplexity: base | private | not private | share of the gain |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        sides = [row["base"], row["private"], row["nonprivate"]]
        losses = " | ".join(f"{side['loss']:.3f}" for side in sides)
        perplexities = " | ".join(f"{side['perplexity']:.0f}" for side in sides)
        lines.append(
            f"| {row['data']} | {row['users_a_step']:g} | "
            f"{at_most(row['sampling_probability'], places=4)} | {row['steps']} | "
            f"{at_least(row['noise_multiplier'], 5)} | {at_most(row['epsilon'], 3)}, "
            f"{at_most(row['delta'], 2)} | {losses} | {perplexities} | "
            f"{row['gap_closed']:.0%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
