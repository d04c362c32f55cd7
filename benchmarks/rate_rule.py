"""How well the learning rate that `plan --suggest` names does in recorded trials that it was not fitted to.

    python benchmarks/rate_rule.py

Of each way with privacy, the rate that was tried nearest to the rule's is held against the best that was tried, by the
loss on validation text. Nothing is trained: the trials lie in `studies/measured`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from studies.runner import store
from studies.runner.register import KEPT
from studies.runner.study import Scale, Work

from confide.planning.progress import best_rate
from studies import recipe, synthetic, user_level

RATE, SCHEDULE, STEPS, EPSILON = "train.learning_rate", "train.schedule", "train.steps", "privacy.epsilon"


def lines() -> list[tuple[str, str, int, str, float, float, float, float]]:
    """Return for each way: study, way, steps, schedule, rate by the rule, nearest tried, best tried, what is lost."""
    found = []
    for study in (recipe, user_level, synthetic):
        rows = store.read(KEPT / f"{study.STUDY.name}-full.parquet")
        for grid in study.grids(Work(None, Path(), Scale.FULL)):
            for arm in grid.arms:
                trials = [
                    (json.loads(row["settings"]), row["loss"])
                    for row in rows
                    if (row["text"], row["arm"], row["part"]) == (grid.texts[0], arm.name, "validation")
                    and math.isfinite(row[EPSILON])
                ]
                if not trials:
                    continue
                keys = {**grid.keys, **arm.keys}
                for schedule in sorted({each.get(SCHEDULE, keys.get(SCHEDULE)) for each, _ in trials}):
                    by_rate: dict[float, float] = {}
                    for each, loss in trials:
                        if each.get(SCHEDULE, schedule) == schedule:
                            by_rate[each[RATE]] = min(loss, by_rate.get(each[RATE], math.inf))
                    rule = best_rate(keys[STEPS], schedule)
                    nearest = min(by_rate, key=lambda rate: abs(math.log(rate / rule)))
                    best = min(by_rate, key=lambda rate: by_rate[rate])
                    lost = math.expm1(by_rate[nearest] - by_rate[best])
                    found.append(
                        (study.STUDY.name, arm.name, keys[STEPS], schedule, rule, nearest, best, lost)
                    )
    return found


if __name__ == "__main__":
    print(
        "| study | way | steps | schedule | the rule's rate | nearest tried | best tried | exp of the loss, more |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for study, way, steps, schedule, rule, nearest, best, lost in lines():
        print(
            f"| {study} | {way} | {steps} | {schedule} | {rule:.2g} | {nearest:g} | {best:g} | {lost:.1%} |"
        )
