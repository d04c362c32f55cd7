"""What recorded studies kept of the gain without privacy, by the noise of a step: what the verdict of a plan rests on.

    python benchmarks/verdict.py

Nothing is trained: the runs lie in `studies/measured`. The gain is that of the best training without privacy of the
same study and text. Where all of these had settings that were chosen with privacy, the share is too large.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from studies.runner import store, users
from studies.runner.register import KEPT
from studies.runner.study import Row, Scale, Work
from studies.runner.twins import EPSILON, TUNED, best_twin, gained

from confide.config.loading import check
from confide.models import loading as models
from confide.models.names import BUNDLED
from confide.planning.cost import Size
from confide.planning.progress import gradients_in_noise, lengths_of_thumb
from confide.planning.verdict import expected
from studies import recipe, user_level, users_needed


@dataclass(frozen=True)
class Kept:
    """What a way of training with privacy kept.

    Attributes:
        text: that it was trained on.
        way: as in the study's table.
        noise: of a step, in lengths of the gradient.
        share: of the gain in loss without privacy.
        is_tuned: whether some training without privacy had settings of its own.
    """

    study: str
    text: str
    way: str
    epsilon: float
    noise: float
    share: float
    is_tuned: bool


def kept(size: Size) -> list[Kept]:
    """Return what was kept, the least noise first.

    Args:
        size: of the model of these studies.
    """
    return sorted([*_of_grids(size), *_of_users_needed()], key=lambda each: each.noise)


def _of_grids(size: Size) -> Iterator[Kept]:
    for study in (recipe, user_level):
        rows = store.read(KEPT / f"{study.STUDY.name}-full.parquet")
        for grid in study.grids(Work(None, Path(), Scale.FULL)):
            (text,) = grid.texts
            twin = best_twin(rows, text)
            is_tuned = any(row["text"] == text and str(row["arm"]).endswith(TUNED) for row in rows)
            for arm in grid.arms:
                for epsilon in users.values(rows, EPSILON):
                    shares = gained(rows, text, arm.name, epsilon, twin) if math.isfinite(epsilon) else {}
                    if not shares:
                        continue
                    noise = _noise(rows, text, arm.name, epsilon, {**grid.keys, **arm.keys}, size)
                    share = mean(shares.values())
                    yield Kept(study.STUDY.name, text, arm.name, epsilon, noise, share, is_tuned)


def _noise(
    rows: list[Row], text: str, arm: str, epsilon: float, keys: Mapping[str, Any], size: Size
) -> float:
    """Return the noise of a step of `uls`, in lengths of the gradient."""
    place = (text, arm, epsilon, "test")
    row = next(row for row in rows if (row["text"], row["arm"], row[EPSILON], row["part"]) == place)
    drawn = keys.get("train.batch") or ENRON * keys["train.sampling_rate"]
    left = lengths_of_thumb(1) / lengths_of_thumb(keys["privacy.rows_per_unit"])
    return math.sqrt(gradients_in_noise(row["noise_multiplier"] / drawn, left, size))


ENRON = 97
"""Senders of the one text whose steps draw a share of them, as `confide study user-level` reports."""


def _of_users_needed() -> Iterator[Kept]:
    rows = store.read(KEPT / "users-needed-small.parquet")
    for text in users.texts_of(rows):
        for arm in (users_needed.SEARCHED, users_needed.SUGGESTED):
            for row in rows:
                if (row["text"], row["arm"], row["part"], row["key"]) == (text, arm, "test", 1):
                    shares = gained(rows, text, arm, row[EPSILON], users_needed.BARE)
                    noise, share = row[users_needed.LENGTH], mean(shares.values())
                    yield Kept(users_needed.STUDY.name, text, arm, row[EPSILON], noise, share, True)


def main() -> None:
    size = Size.of(
        models.load_model(
            check({"model": BUNDLED, "data": {"train": __file__}, "privacy": {"mechanism": "none"}}), None, 0
        )
    )
    print(
        "| noise over gradient | the plan expects | share kept | without privacy, tuned | study | text | way |"
    )
    print("|---|---|---|---|---|---|---|")
    for each in kept(size):
        own = "for itself" if each.is_tuned else "for privacy"
        print(
            f"| {each.noise:.2g} | {expected(each.noise)} | {each.share:.0%} | {own} | {each.study} | {each.text} | "
            f"{each.way}, epsilon {each.epsilon:g} |"
        )


if __name__ == "__main__":
    main()
