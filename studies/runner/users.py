"""What studies of users share: group privacy, example-level and user-level sampling on the same text and compute."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from studies.runner.findings import paired
from studies.runner.grid import Arm, Keys
from studies.runner.study import Row
from studies.runner.tables import losses

GROUP, ELS, ULS = "group privacy", "ELS", "user-wise DP-SGD"
TEXTS = ("newsgroups", "articles")
DEVIATIONS = (
    "stories260K, trained whole, in place of GPT-2 small with LoRA; newsgroup posts and WikiText-2 articles in place "
    "of Enron mail and BookSum; rows of 64 tokens; Poisson draws and this accounting in place of shuffled batches."
)
READS = ("20newsgroups", "wikitext-2")
_MECHANISMS: dict[str, Keys] = {
    GROUP: {"privacy.mechanism": "group", "privacy.selection": "longest"},
    ELS: {"privacy.mechanism": "els", "privacy.selection": "random"},
    ULS: {"privacy.mechanism": "uls", "privacy.selection": "random-chunk"},
}


def keys(steps: int, **more: Any) -> dict[str, Any]:
    """Return the keys of every run: small rows, whole weights, a rate that falls to zero."""
    return {
        "adapter.kind": "full",
        "data.max_length": 64,
        "data.strip_quotes": True,
        "privacy.delta": 1e-5,
        "train.steps": steps,
        "train.schedule": "linear",
        **more,
    }


def arm(
    kind: str, rows: int | None, options: Keys, name: str | None = None, users: int | None = None, **more: Any
) -> Arm:
    """Return an arm of one of the three mechanisms, whose steps ask for `rows` rows.

    Args:
        rows: None for as many as the place's `train.batch` says.
        name: in tables; the mechanism's own by default.
        users: so many users a step, and as many rows as they then give, in place of `rows`.
        more: selection, for another one than the mechanism's own.
    """
    made = dict(_MECHANISMS[kind]) | {f"privacy.{key}": value for key, value in more.items()}
    return Arm(name or kind, made, options, _batch(kind, rows, users))


def _batch(kind: str, rows: int | None, users: int | None) -> Callable[[Keys], Keys]:
    def derived(keys: Keys) -> Keys:
        k, asked = keys["privacy.rows_per_unit"], keys["train.batch"] if rows is None else rows
        batch = asked if kind != ULS else asked / k if users is None else users
        return {**keys, "train.batch": float(batch)}

    return derived


def texts_of(rows: Sequence[Row]) -> list[str]:
    """Return the texts that rows are of."""
    return list(dict.fromkeys(row["text"] for row in rows))


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """Return the values of a config's key at which arms are compared, in order."""
    return sorted({row[key] for row in rows if row["part"] == "test" and row[key] is not None})


def at(rows: Sequence[Row], text: str, arm: str, epsilon: float, **more: Any) -> dict[int, float]:
    """Return the test loss by run key of an arm at an epsilon.

    Args:
        more: other keys at which arms are compared, with `__` for the point.
    """
    columns = {name.replace("__", "."): value for name, value in more.items()}
    return losses(rows, {"text": text, "arm": arm, "privacy.epsilon": epsilon, **columns})


def gap(rows: Sequence[Row], text: str, one: str, other: str, epsilon: float) -> tuple[float, ...]:
    """Return the paired differences of two arms' losses, one - other."""
    return paired(at(rows, text, one, epsilon), at(rows, text, other, epsilon))


def settings(rows: Sequence[Row], text: str, arm: str, epsilon: float) -> str:
    """Write the settings that were chosen for an arm at an epsilon."""
    place = (text, arm, epsilon, "test")
    return chosen(
        [row for row in rows if (row["text"], row["arm"], row["privacy.epsilon"], row["part"]) == place]
    )


def chosen(rows: Sequence[Row]) -> str:
    """Write the settings that rows were made with, each once; with their names where numbers alone would not tell."""
    found = {row["settings"] for row in rows}
    return "; ".join(", ".join(_named(json.loads(each))) for each in sorted(found))


def _named(settings: Keys) -> list[str]:
    values = list(map(_written, settings.values()))
    if len(settings) < 3 and not any(isinstance(value, str) for value in settings.values()):
        return values
    names = (name.split(".", 1)[1].removesuffix(".kind").replace("_", " ") for name in settings)
    return [f"{name} {value}" for name, value in zip(names, values, strict=True)]


def _written(value: float | str | Sequence[float]) -> str:
    if isinstance(value, Sequence):
        return value if isinstance(value, str) else " and ".join(map(_written, value))
    return f"{value:g}"


K = "privacy.rows_per_unit"


def rows_of_unit(rows: Sequence[Row]) -> str:
    """Write how many rows of each user the runs of rows used: what the run says, or its settings if it does not."""
    found = {str(row.get("rows_per_unit") or json.loads(row["settings"]).get(K, "")) for row in rows}
    return " or ".join(sorted(found))


def noise_of(rows: Sequence[Row]) -> str:
    """Write the noise multipliers that the runs of rows had."""
    return " or ".join(f"{value:.4g}" for value in sorted({row["noise_multiplier"] for row in rows}))


ALIKE = (
    "Where both use one row of each user (G = k = 1) with equal noise they are one mechanism, and differ only in which "
    "text of a user is read: ELS reads a row that was fixed before, ULS one that is drawn afresh in each step."
)


def are_alike(els: Sequence[Row], uls: Sequence[Row]) -> bool:
    """Tell whether the runs of both used one row of each user with the same noise, so that they are one mechanism."""
    return rows_of_unit(els) == rows_of_unit(uls) == "1" and noise_of(els) == noise_of(uls)
