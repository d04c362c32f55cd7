"""Cleaned documents from a config's sources, and the side of the split that each is on.

A unit's name alone decides whether the unit is held out, so the split is the same in every run and no unit stands on
both sides.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from confide.data.conditions import Conditions
from confide.data.readers import Counts, Document, Record
from confide.data.readers.documents import Made, Numbering, made_of, numbered
from confide.data.readers.enron import clean_enron
from confide.data.readers.opening import How
from confide.data.readers.quotes import strip_quotes
from confide.data.readers.readers import Files, found
from confide.data.wording import is_worded, loss_on, read_key, wording_of
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.data_section import Data
    from confide.config.schema import Config

STRIPPED = "characters of quotes stripped"
ONLY_QUOTES = "documents dropped: only quotes"
UNLISTED = "documents without a condition of the list"


def training_documents(config: "Config", tokenizer: Any = None) -> Iterator[Document]:
    """Yield the documents that training rows are cut from, as `prepare` reads them: none that is held out.

    `tokenizer` is as for `documents_of`.
    """
    share = config.data.eval if isinstance(config.data.eval, float) else 0.0
    documents = documents_of(config, config.data.train, Counts(), tokenizer=tokenizer)
    return (document for document in documents if side_of(document.units, share) == "train")


def documents_of(
    config: "Config",
    source: str,
    counts: Counts,
    given: Iterable[Record] | None = None,
    tokenizer: Any = None,
) -> Iterator[Document]:
    """Yield the cleaned documents of one source of the config, as many as the config allows.

    Args:
        given: records that a program passes; they are read in place of the source.
        tokenizer: that of the model, for a config that `is_worded`.
    """
    recipe = Recipe.of(config, tokenizer)
    read = recipe.source(source, counts) if given is None else given
    made = numbered(recipe.made(read, counts), recipe.numbering(counts))
    if config.data.strip_quotes:
        made = _stripped(made, counts)
    return islice(made, config.data.max_documents)


@dataclass(frozen=True)
class Recipe:
    """How a config makes documents of records. It may be sent to other processes.

    Attributes:
        data: the config's section.
        spans: `detector.spans`.
        loss_on: what is predicted.
        tokenizer: that of the model; None if the config needs none.
        conditions: what stands in front of texts; None if nothing does.
    """

    data: "Data"
    spans: str | None
    loss_on: str
    tokenizer: Any
    conditions: Conditions | None = None

    @classmethod
    def of(cls, config: "Config", tokenizer: Any = None) -> "Recipe":
        return cls(
            config.data,
            config.detector.spans,
            loss_on(config),
            tokenizer if is_worded(config) else None,
            Conditions.of(config.data, "conditions" in config.privacy.histograms.of),
        )

    @property
    def needs_order(self) -> bool:
        """True if what becomes of a record depends on those before it."""
        return self.data.clean != "none"

    def source(self, source: str, counts: Counts) -> Files | Iterator[Record]:
        """Return the files of a source, or its records."""
        return found(source, self.data.format, how_of(self.data, counts))

    def made(self, records: Iterable[Record], counts: Counts) -> Iterator[Made]:
        """Yield what becomes of each record before its place among the others is known."""
        data = self.data
        return made_of(
            clean_enron(records, counts) if data.clean == "enron" else records,
            data.text,
            data.unit,
            data.label,
            data.speakers,
            self.spans,
            data.without_unit,
            data.max_document_bytes,
            wording_of(data, self.spans, self.loss_on, self.tokenizer),
            None if self.conditions is None else partial(_before, self.conditions, counts),
        )

    def numbering(self, counts: Counts) -> Numbering:
        return Numbering(read_key(self.data), self.data.unit, self.data.without_unit, counts)


def how_of(data: "Data", counts: Counts) -> How:
    """Return how the files of a config are read."""
    return How(data.delimiter, data.encoding, data.max_document_bytes, counts, data.split)


def _before(conditions: Conditions, counts: Counts, record: Record) -> tuple[str, int]:
    """Write the condition of a record, return it with its number, and count the records that have none of the list.

    Raises:
        InputError: the record comes as tokens, or lacks a field.
    """
    if record.tokens is not None:
        raise InputError(f"{record.where}: comes as tokens, and data.condition writes in front of text")
    number = conditions.number_of(record.fields, record.where)
    if not number:
        counts[UNLISTED] += 1
        return "", 0
    return conditions.prefix(conditions.listed[number - 1]), number


def _stripped(documents: Iterable[Document], counts: Counts) -> Iterator[Document]:
    for document in documents:
        text = strip_quotes(document.text)
        counts[STRIPPED] += len(document.text) - len(text)
        if text.strip():
            yield with_text(document, text)
        else:
            counts[ONLY_QUOTES] += 1


def with_text(document: Document, text: str) -> Document:
    """Return a document with the text that `strip_quotes` left of it."""
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
