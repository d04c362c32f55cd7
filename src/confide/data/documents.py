"""Cleaned documents from a config's sources, and the side of the split that each is on.

A unit's name alone decides whether the unit is held out, so the split is the same in every run and no unit stands on
both sides.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from confide.data.readers import Counts, Document, Record, documents, records
from confide.data.readers.documents import Wording
from confide.data.readers.enron import clean_enron
from confide.data.readers.quotes import strip_quotes
from confide.data.wording import wording_of

if TYPE_CHECKING:
    from confide.config.schema import Config


def training_documents(config: "Config", tokenizer: Any = None) -> Iterator[Document]:
    """Yield the documents that training rows are cut from, as `prepare` reads them: none that is held out.

    `tokenizer` is as for `documents_of`.
    """
    share = config.data.eval if isinstance(config.data.eval, float) else 0.0
    found = documents_of(config, config.data.train, Counts(), tokenizer=tokenizer)
    return (document for document in found if side_of(document.units, share) == "train")


def documents_of(
    config: "Config",
    source: str,
    counts: Counts,
    given: Iterable[Record] | None = None,
    tokenizer: Any = None,
    with_quotes: bool = False,
) -> Iterator[Document]:
    """Yield the cleaned documents of one source of the config, as many as the config allows.

    Args:
        given: records that a program passes; they are read in place of the source.
        tokenizer: that of the model, for a config that `is_worded`.
        with_quotes: leave quotes in, even if the config strips them. Documents that are only quotes then count
            towards `data.max_documents`.
    """
    found = _records(config, source, counts) if given is None else given
    made = _documents(config, found, counts, wording_of(config, tokenizer))
    if config.data.strip_quotes and not with_quotes:
        made = _stripped(made, counts)
    return islice(made, config.data.max_documents)


def _records(config: "Config", source: str, counts: Counts) -> Iterator[Record]:
    data = config.data
    return records(
        source,
        data.format,
        data.split,
        counts=counts,
        delimiter=data.delimiter,
        encoding=data.encoding,
        largest=data.max_document_bytes,
    )


def _documents(
    config: "Config", found: Iterable[Record], counts: Counts, wording: Wording | None
) -> Iterator[Document]:
    data = config.data
    if data.clean == "enron":
        found = clean_enron(found, counts)
    return documents(
        found,
        data.text,
        data.unit,
        data.label,
        counts,
        data.speakers,
        config.detector.spans,
        data.without_unit,
        data.max_document_bytes,
        wording,
    )


def _stripped(found: Iterable[Document], counts: Counts) -> Iterator[Document]:
    for document in found:
        left = without_quotes(document, strip_quotes(document.text), counts)
        if left is not None:
            yield left


def without_quotes(document: Document, text: str, counts: Counts) -> Document | None:
    """Return a document with the text that `strip_quotes` left of it, counted; None if only quotes were there."""
    counts["characters of quotes stripped"] += len(document.text) - len(text)
    if not text.strip():
        counts["documents dropped: only quotes"] += 1
        return None
    return document if text == document.text else replace(document, text=text, given=())


def side_of(units: tuple[str, ...], share: float) -> str | None:
    """Return the side of the split that a document of these units is on; None if it is on both."""
    if share in (0.0, 1.0):
        return "eval" if share else "train"
    held = [_held_out(unit, share) for unit in units]
    if all(held):
        return "eval"
    return None if any(held) else "train"


def _held_out(unit: str, share: float) -> bool:
    digest = hashlib.blake2b(unit.encode(), digest_size=8, person=b"confide-eval").digest()
    return int.from_bytes(digest, "big") < share * 2**64
