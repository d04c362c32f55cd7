"""What noise that is correlated over steps goes with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from confide.privacy.correlated_noise import correlation_of

if TYPE_CHECKING:
    from confide.privacy.mechanisms.base import Mechanism


class Drawn(Protocol):
    """What decides it, of a mechanism or of its settings."""

    @property
    def sampling(self) -> str: ...

    @property
    def adjacency(self) -> str | None: ...

    @property
    def bands(self) -> int: ...

    @property
    def buffers(self) -> int: ...


def correlation_errors(kind: type[Mechanism], asked: Drawn) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each setting that it does not go with, since nothing would account for it."""
    if correlation_of(asked.bands, asked.buffers).is_independent:
        return
    key = "privacy.buffers" if asked.buffers else "privacy.bands"
    if not kind.correlates:
        yield key, f"noise is correlated over steps under uls and dp-sgd, not under {kind.name}"
    if asked.buffers and asked.bands > 1:
        yield key, "take either buffers or bands: they are two ways of correlating noise over steps"
    if asked.buffers and asked.sampling != "bins":
        yield (
            "privacy.sampling",
            "noise that all later steps take back (privacy.buffers) needs sampling: bins",
        )
    elif asked.sampling not in ("poisson", "bins"):
        yield (
            "privacy.sampling",
            "noise that is correlated over steps (privacy.bands) needs sampling: poisson or bins",
        )
    if asked.adjacency == "add-or-remove" and asked.sampling != "bins":
        yield (
            key,
            "an add-or-remove claim allows no groups, which move when a unit is added: take sampling: bins",
        )
