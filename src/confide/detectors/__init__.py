"""Detectors: where text holds something of a kind that is sensitive, by patterns or by a model of language."""

from __future__ import annotations

from confide.detectors.choice import detector, kinds
from confide.detectors.entities import LEVELS, Entities, is_contextual
from confide.detectors.patterns import RECOGNISERS, Recognisers
from confide.detectors.processes import Processes
from confide.detectors.spans import Detector, Span

__all__ = [
    "LEVELS",
    "RECOGNISERS",
    "Detector",
    "Entities",
    "Processes",
    "Recognisers",
    "Span",
    "detector",
    "is_contextual",
    "kinds",
]
