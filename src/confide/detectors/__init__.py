"""Detectors: where text holds something of a kind that is sensitive, by patterns or by a model of entities."""

from __future__ import annotations

from collections.abc import Sequence

from confide.detectors.entities import LEVELS, Entities
from confide.detectors.patterns import RECOGNISERS, Recognisers
from confide.detectors.spans import Detector, Span
from confide.errors import InputError
from confide.settings import Detector as Settings

__all__ = ["LEVELS", "RECOGNISERS", "Detector", "Entities", "Recognisers", "Span", "detector", "kinds"]


class _Several:
    """What any of several detectors finds."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = detectors

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self._detectors:
            for spans, more in zip(found, detector.find(texts), strict=True):
                spans += more
        return [sorted(spans) for spans in found]


def detector(settings: Settings, key: str = "secrets.detector") -> Detector:
    """The detector that a config section asks for.

    Raises InputError, naming the key, for an unknown recogniser, a missing package or pipeline, or none at all.
    """
    made: list[Detector] = []
    if settings.level is not None:
        made.append(Entities(settings.pipeline, settings.level, f"{key}.pipeline"))
    if settings.patterns:
        made.append(Recognisers(settings.patterns, f"{key}.patterns"))
    if not made:
        raise InputError(f"{key}: names neither a level of entities nor patterns")
    return made[0] if len(made) == 1 else _Several(made)


def kinds(settings: Settings) -> tuple[str, ...]:
    """The kinds that the detector of a config section may report."""
    entities = LEVELS[settings.level] if settings.level is not None else ()
    patterns = tuple(RECOGNISERS) if settings.patterns == "all" else tuple(settings.patterns or ())
    return (*entities, *patterns)
