"""Take the documents that a config uses from the items of a source, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from confide.data.documents import ONLY_QUOTES, STRIPPED
from confide.data.part_work import Finished, Item, Remarks
from confide.data.readers import Counts
from confide.data.readers.documents import Blank, Numbering
from confide.data.wording import read_key

if TYPE_CHECKING:
    from confide.config.data_section import Data


def taken(items: Iterable[Item], data: Data, counts: Counts, after: Counter[str]) -> Iterator[Finished]:
    """Yield the documents that are used, as many as the config allows, each with its number and its units.

    Args:
        items: of a source, see `part_work.items_of`.
        data: the section of the config.
        counts: counts what was read, and keeps the notes of readers.
        after: counts what became of it.

    Raises:
        InputError: nobody owns a document, and such documents are refused; or there is no record, or no document.
    """
    made = _heard(items, counts)
    rest = (each if isinstance(each, Blank) else each.document for each in made)
    numbering = Numbering(read_key(data), data.unit, data.without_unit, counts)
    kept = 0
    while data.max_documents is None or kept < data.max_documents:
        each = next(made, None)
        if each is None:
            numbering.check_end()
            return
        document = numbering.take(each if isinstance(each, Blank) else each.document, rest)
        if document is None or isinstance(each, Blank):
            continue
        if data.strip_quotes:
            after[STRIPPED] += each.worked.stripped
            after[ONLY_QUOTES] += each.worked.is_only_quotes
        if not each.worked.is_only_quotes:
            kept += 1
            yield replace(each, document=document)
    numbering.check_fields()


def _heard(items: Iterable[Item], counts: Counts) -> Iterator[Finished | Blank]:
    """Yield the items without the remarks of readers, which are counted and noted."""
    for item in items:
        if isinstance(item, Remarks):
            counts.update(item.counts)
            for where, what in item.notes:
                counts.note(where, what)
        else:
            yield item
