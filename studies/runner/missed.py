"""Texts whose detector misses something, how much it misses, and the person who screens a sample.

On the articles what the pipeline finds at the level of entities counts as all that is sensitive, and the detector is
made to miss a fifth of its words, each wherever it stands. On the dialogues the pipeline is the detector, and what the
data's own annotation marks besides is what it misses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confide.config.loading import check
from confide.data.documents import training_documents
from confide.runs.folder import Run
from confide.sensitive.redaction.policy import Policy
from confide.sensitive.redaction.screening import Marks, sample
from confide.utils.files import write_text
from studies.runner.grid import Keys, nested
from studies.runner.marked import marked
from studies.runner.study import Work
from studies.runner.twice import ENTITIES

FOUND, TRUTH = "found", "truth"
"""The fields of a document: the spans that the detector finds, and all that are sensitive."""

_MISSED = 0.2  # of the words on the articles

Spans = Sequence[Sequence[Any]]


def with_misses(work: Work, text: str) -> Path:
    """Return the training part of a text as JSON lines, with the fields `FOUND` and `TRUTH`."""
    source = marked(work, text)
    path = source.with_name("train-missed.jsonl")
    if not path.exists():
        lines = []
        for document in map(json.loads, source.read_text("utf-8").splitlines()):
            entities = document[ENTITIES]
            if "annotated" in document:
                both = {FOUND: entities, TRUTH: sorted([*entities, *document["annotated"]])}
            else:
                both = {FOUND: found_of(entities, document["text"]), TRUTH: entities}
            lines.append(json.dumps(document | both) + "\n")
        write_text(path, "".join(lines))
    return path


def first(path: Path, count: int) -> Path:
    """Return a file of the first documents of a text. (`data.max_documents` would also cut what is held out.)"""
    some = path.with_name(f"{path.stem}-{count}.jsonl")
    if not some.exists():
        write_text(some, "".join(path.read_text("utf-8").splitlines(keepends=True)[:count]))
    return some


def found_of(spans: Spans, text: str) -> list[Sequence[Any]]:
    """Return the spans that a detector finds which misses a fifth of the words: a word always, or never."""
    return [span for span in spans if _place(text[span[0] : span[1]]) >= _MISSED]


def _place(word: str) -> float:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") / 2**32


def recall(documents: Iterable[dict[str, Any]]) -> float:
    """Return the share of the sensitive characters that the detector finds."""
    all_of, seen = 0, 0
    for document in documents:
        truth = _characters(document[TRUTH])
        all_of += len(truth)
        seen += len(truth & _characters(document[FOUND]))
    return seen / all_of if all_of else 1.0


def _characters(spans: Spans) -> set[int]:
    return {place for start, end, *_ in spans for place in range(start, end)}


def screened(keys: Keys, share: float, draws: int, path: Path) -> Marks:
    """Return a sample of the documents of a run, in which a person has marked all that its detector missed.

    Args:
        keys: of the run, its key among them.
    """
    if not path.exists():
        config = check(nested({**keys, "run": str(path.with_suffix(""))}), "a sample to screen")
        drawn = path.with_suffix(".drawn")
        drawn.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with Policy.of(config) as policy:
            sample(lambda: training_documents(config), policy, Run(config).key(), share, draws, drawn, _quiet)
        header, *lines = drawn.read_text("utf-8").splitlines()
        records = {record["document"]: record for record in map(json.loads, lines)}
        for document in training_documents(config):
            if document.number in records:
                record, truth = records[document.number], document.fields[TRUTH]
                record |= {"screened": True, "missed": missed(document.text, record["spans"], truth)}
        write_text(path, "\n".join([header, *map(json.dumps, records.values())]) + "\n")
        drawn.unlink()
    return Marks.load(path)


def missed(text: str, found: Spans, truth: Spans) -> list[str]:
    """Return the sensitive words of which some character was not found."""
    seen = _characters(found)
    return sorted({text[start:end] for start, end, *_ in truth if not seen.issuperset(range(start, end))})


def _quiet(advance: int = 1, note: str = "") -> None:
    """Show nothing."""
