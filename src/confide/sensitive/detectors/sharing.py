"""Share a detector's work among several processes, each with its own pipeline and recognisers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from confide.config import registry
from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.choice import asked, fingerprint, kinds_of, made
from confide.sensitive.detectors.spans import Span
from confide.utils.workers import Crew, Workers

# Numbers of characters; the first is for a pipeline, the second for patterns alone. `_ALONE`: what one process searches
# in the time that it takes to start the others (some seconds). `_CHUNK`: what a process receives at a time.
_ALONE = (150_000, 4_000_000)
_CHUNK = (20_000, 250_000)


class SharedDetector:
    """The detector that a config section asks for, run by a crew: by default on every processor of this process.

    This process searches the first texts itself. It starts others once there is enough text to make that worthwhile.

    Attributes:
        fingerprint: hex digest of everything that the findings depend on besides the text.

    Raises:
        InputError: as `detector` raises it, or a process ended too early.
    """

    def __init__(self, section: DetectorSection, key: str, crew: Crew | None = None) -> None:
        parts = asked(section)
        self._key, self._crew = key, crew or Crew(len(os.sched_getaffinity(0)))
        self._own = made(parts, key)
        self._kinds = kinds_of(parts)
        self._job = _Search(tuple((each.name, settings.model_dump()) for each, settings in parts), key)
        self._workers: Workers[Sequence[str], Found] | None = None
        fast = not any(each.is_slow for each, _ in parts)
        self._alone, self._chunk = (size[fast] for size in (_ALONE, _CHUNK))
        self._seen = 0
        self.fingerprint = fingerprint(parts, self._own)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
        self._seen += sum(map(len, texts))
        if not self._crew.is_several or self._seen < self._alone:
            return self._own.find(texts)
        if self._workers is None:
            self._workers = self._crew.workers(
                self._job, f"{self._key}: a process that looks for sensitive text"
            )
        try:
            chunks = _chunks(texts, self._chunk)
            return [spans for found in self._workers.map(chunks) for spans in self._spans(found)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes at once."""
        if self._workers is not None:
            self._workers.close()
        self._workers = None

    def __enter__(self) -> SharedDetector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spans(self, found: Found) -> list[list[Span]]:
        bounds, starts, ends, numbers = (column.tolist() for column in found)
        spans = list(map(Span, starts, ends, (self._kinds[number] for number in numbers)))
        return [spans[start:end] for start, end in pairwise(bounds)]


Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""The bounds of each text's spans in the other three arrays: the start, the end and the number of the kind of each."""


@dataclass(frozen=True)
class _Search:
    """The job of a process: find the spans of texts.

    Attributes:
        parts: the name of each detector, and its settings.
        key: begins an error sentence.
    """

    parts: tuple[tuple[str, dict[str, Any]], ...]
    key: str

    def ready(self) -> Callable[[Sequence[str]], Found]:
        parts = [_asked_for(name, settings) for name, settings in self.parts]
        numbers = {kind: number for number, kind in enumerate(kinds_of(parts))}
        own = made(parts, self.key)

        def find(texts: Sequence[str]) -> Found:
            found = own.find(texts)
            spans = [span for each in found for span in each]
            return (
                np.cumsum([0, *map(len, found)], dtype=np.int64),
                np.array([span.start for span in spans], np.int64),
                np.array([span.end for span in spans], np.int64),
                np.array([numbers[span.kind] for span in spans], np.int64),
            )

        return find


def _chunks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield runs of texts that together have at least `size` characters; the last run may be shorter."""
    first = length = 0
    for number, text in enumerate(texts, 1):
        length += len(text)
        if length >= size:
            yield texts[first:number]
            first, length = number, 0
    if first < len(texts):
        yield texts[first:]


def _asked_for(name: str, settings: dict[str, Any]) -> tuple[type[Detector], Section]:
    each: type[Detector] = registry.detectors.get(name, Detector)
    return each, each.Settings.model_validate(settings)
