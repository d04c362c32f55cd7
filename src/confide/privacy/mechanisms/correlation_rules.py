"""What noise that is correlated over steps goes with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confide.privacy.mechanisms.base import Mechanism


def correlation_errors(
    kind: type[Mechanism], sampling: str, adjacency: str | None
) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each setting that it does not go with, since nothing would account for it."""
    if not kind.correlates:
        yield (
            "privacy.bands",
            f"noise is correlated over steps under uls and dp-sgd, not under {kind.name}",
        )
    if sampling not in ("poisson", "bins"):
        yield (
            "privacy.sampling",
            "noise that is correlated over steps (privacy.bands) needs sampling: poisson or bins",
        )
    if adjacency == "add-or-remove" and sampling != "bins":
        yield (
            "privacy.bands",
            "an add-or-remove claim allows no groups, which move when a unit is added: take sampling: bins",
        )
