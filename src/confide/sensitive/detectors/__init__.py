"""Detectors: they find sensitive spans in text, by patterns or with a language model."""

from __future__ import annotations

from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.choice import asked, detector, kinds
from confide.sensitive.detectors.entities import LEVELS, Entities, is_contextual
from confide.sensitive.detectors.patterns import RECOGNISERS, Recognisers
from confide.sensitive.detectors.sharing import SharedDetector
from confide.sensitive.detectors.spans import Span, SpanFinder

__all__ = [
    "LEVELS",
    "RECOGNISERS",
    "Detector",
    "Entities",
    "Recognisers",
    "SharedDetector",
    "Span",
    "SpanFinder",
    "asked",
    "detector",
    "is_contextual",
    "kinds",
]
