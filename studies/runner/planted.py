"""Documents that a study plants in the training part of a text, so many times each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from confide.utils.files import write_text


def generator(key: str, what: str) -> np.random.Generator:
    """Return the random numbers of a run key for one purpose."""
    return np.random.default_rng(
        int.from_bytes(hashlib.sha256(f"{what} {key}".encode()).digest()[:16], "big")
    )


def planted(source: Path, texts: Iterable[tuple[str, int]], most: int | None = None) -> Path:
    """Write JSON lines with texts planted behind the documents, or find them as they were written.

    Rows are drawn at random, so that it does not matter where a text stands.

    Args:
        source: JSON lines with a field `text`.
        texts: each with the number of documents that hold nothing else.
        most: how many documents of the source are kept; None for all.
    """
    chosen = list(texts)
    asked = hashlib.sha256(json.dumps([chosen, most]).encode()).hexdigest()[:16]
    path = source.with_name(f"{source.stem}-planted-{asked}.jsonl")
    if not path.exists():
        with open(source, encoding="utf-8") as lines:
            kept = "".join(islice(lines, most))
        more = "".join((json.dumps({"text": text}) + "\n") * times for text, times in chosen)
        write_text(path, kept + more)
    return path
