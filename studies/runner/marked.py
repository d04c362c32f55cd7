"""Texts in which a pipeline has marked what is sensitive, at each level of Shi et al. 2022, section 4.

The pipeline reads a text once, for all runs and studies; runs then read its marks as spans of the data. Text to choose
by and to report on is never marked, as in the paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from confide.sensitive.detectors.entities import LEVELS, Entities, Level
from confide.sensitive.detectors.spans import Span
from confide.utils.files import write_text
from studies.runner.study import Scale, Work
from studies.runner.texts import TEXTS

STRICTEST: Level = "high-contextual"
_TINY = 24  # documents
_AT_ONCE = 256
_PIPELINE = "en_core_web_sm"  # unless a smaller one lies beside the data


def marked(work: Work, text: str) -> Path:
    """Return the training part of a text as JSON lines, with a field of spans for each level."""
    source = TEXTS[text].parts(work)["train"]
    path = source.with_name("train-marked.jsonl")
    if not path.exists():
        lines = source.read_text("utf-8").splitlines()
        documents = [json.loads(line) for line in lines[: _TINY if work.scale is Scale.TINY else None]]
        work.console.say(f"marking what is sensitive in {len(documents):,} documents")
        found = with_marks(documents, pipeline(work))
        write_text(path, "".join(json.dumps(each) + "\n" for each in found))
    return path


def pipeline(work: Work) -> str:
    """Return the spaCy pipeline: the folder beside the data, or the name of the paper's."""
    folder = None if work.data is None else work.data.parent / "models" / "en_confide_sm"
    return _PIPELINE if folder is None or work.scale is Scale.FULL or not folder.exists() else str(folder)


def with_marks(documents: Sequence[dict[str, Any]], pipeline: str) -> Iterator[dict[str, Any]]:
    """Yield documents with the spans of every level, which the pipeline finds in one go."""
    detector = Entities(pipeline, STRICTEST)
    for start in range(0, len(documents), _AT_ONCE):
        some = documents[start : start + _AT_ONCE]
        for document, spans in zip(some, detector.find([each["text"] for each in some]), strict=True):
            yield document | by_level(spans)


def by_level(spans: Sequence[Span]) -> dict[str, list[list[Any]]]:
    """Return the spans of each level, of those of the strictest: `[start, end, kind]`."""
    return {
        level: [[span.start, span.end, span.kind] for span in spans if span.kind in kinds]
        for level, kinds in LEVELS.items()
    }
