"""What becomes of the records of a source, in order: read and cut into rows by this process or by others.

A source of tables is read part by part (`readers.parts`), by whoever cuts its rows. Any other is read here, and its
texts are sent. Either way the same items come in the same order, and a fault comes in its place among them. What
depends on the documents before, as their number does, is left to whoever takes the items.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from confide.data.documents import Recipe, side_of, with_text
from confide.data.readers import Counts, Document, Record
from confide.data.readers.documents import Blank, Made
from confide.data.readers.opening import How
from confide.data.readers.parts import Part, parts_of
from confide.data.readers.readers import Files
from confide.data.readers.remote import File, RemoteFile
from confide.data.text_work import Text, TextWork, Worked
from confide.utils.errors import InputError
from confide.utils.workers import Crew

BATCH = 512  # records that are worked on at a time
BATCH_CHARACTERS = 1 << 22  # characters at which a batch ends, even with few records


@dataclass(frozen=True, slots=True)
class Finished:
    """A document with its rows.

    Attributes:
        document: without its number, see `made_of`; if it is `bare`, without text and fields.
        size: characters of its text as it was read.
    """

    document: Document
    worked: Worked
    size: int


@dataclass(frozen=True, slots=True)
class Remarks:
    """What a reader counted and noted since the item before."""

    counts: Counter[str]
    notes: tuple[tuple[str, str], ...]


Item = Finished | Blank | Remarks


class _Heard(Counts):
    """Counts that keep what is new."""

    def note(self, where: str, what: str) -> None:
        self._new().append((where, what))

    def taken(self) -> Remarks | None:
        """Return what is new since the last call."""
        if not self and not self._new():
            return None
        remarks = Remarks(Counter(self), tuple(self._new()))
        self.clear()
        self._new().clear()
        return remarks

    def _new(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self.__dict__.setdefault("_heard", [])
        return found


@dataclass(frozen=True)
class Finishing:
    """What is made of each record.

    Attributes:
        recipe: how records become documents.
        work: what is done to each text.
        share: of the units that are held out.
        is_redacted: whether rows to train on are made elsewhere, from the text.
        bare: whether nobody needs text and fields of a document whose rows are cut.
        limit: how many documents are wanted at most.
        batch: records that are worked on at a time.
    """

    recipe: Recipe
    work: TextWork
    share: float
    is_redacted: bool = False
    bare: bool = False
    limit: int | None = None
    batch: int = BATCH

    def batches(self, made: Iterator[Made], heard: _Heard) -> Iterator[list[Made | Remarks]]:
        """Yield what was made of the records, some at a time; a fault is raised once those before it were taken."""
        size = min(self.batch, self.limit or self.batch)
        batch: list[Made | Remarks] = []
        records = characters = 0
        fault: Exception | None = None
        while fault is None:
            each: Made | None = None
            try:
                each = next(made, None)
            except Exception as error:
                fault = error
            if remarks := heard.taken():
                batch.append(remarks)
            if each is None:
                break
            batch.append(each)
            records += 1
            characters += len(each.text) if isinstance(each, Document) else 0
            if records == size or characters >= BATCH_CHARACTERS:
                yield batch
                batch, records, characters = [], 0, 0
        if batch:
            yield batch
        if fault is not None:
            raise fault

    def texts(self, batch: Sequence[Made | Remarks]) -> list[Text]:
        """Return the texts of a batch."""
        return [
            Text(each.text, each.where, each.layout, each.tokens, self._is_cut(each))
            for each in batch
            if isinstance(each, Document)
        ]

    def finished(self, batch: Sequence[Made | Remarks], worked: Sequence[Worked]) -> Iterator[Item]:
        """Yield the items of a batch whose texts became `worked`."""
        done = iter(worked)
        for each in batch:
            if not isinstance(each, Document):
                yield each
                continue
            found = next(done)
            size = len(each.text)
            if self.bare:
                each = Document("", each.units, each.label, each.where, blank=each.blank)
                found = found if found.text is None else replace(found, text=found.text.strip()[:1])
            elif found.text is not None:
                each = with_text(each, found.text)
            yield Finished(each, found, size)

    def _is_cut(self, document: Document) -> bool:
        """Tell whether rows of a document are wanted; whoever gets them may still leave them out."""
        if not document.units:
            return not self.is_redacted or self.share > 0
        side = side_of(document.units, self.share)
        return side == "eval" or (side == "train" and not self.is_redacted)


class Items:
    """Items, to be taken once: made as they are taken, or when they are sent."""

    def __init__(self, items: Iterable[Item], fault: InputError | None = None) -> None:
        self._items, self._fault = items, fault

    def __iter__(self) -> Iterator[Item]:
        yield from self._items
        if self._fault is not None:
            raise self._fault

    def __reduce__(self) -> tuple[Any, ...]:
        items: list[Item] = []
        try:
            items.extend(self)
        except InputError as fault:
            return Items, (items, fault)
        return Items, (items,)


@dataclass(frozen=True)
class PartWork:
    """The work on a part of a source, as a job of `Workers`: read it, make documents, cut their rows."""

    finishing: Finishing
    how: How

    def ready(self) -> Callable[[Part], Items]:
        do = self.finishing.work.ready()
        return lambda part: Items(self._items(part, do))

    def _items(self, part: Part, do: Callable[[Sequence[Text]], list[Worked]]) -> Iterator[Item]:
        finishing, heard = self.finishing, _Heard()
        made = finishing.recipe.made(part.records(replace(self.how, counts=heard)), heard)
        kept = 0
        for batch in finishing.batches(made, heard):
            for item in finishing.finished(batch, do(finishing.texts(batch))):
                kept += isinstance(item, Finished) and self._stays(item)
                yield item
            if finishing.limit is not None and kept >= finishing.limit:
                return

    def _stays(self, item: Finished) -> bool:
        """Tell whether an item is sure to count towards the limit."""
        data = self.finishing.recipe.data
        is_owned = bool(item.document.units) or data.unit is None or data.without_unit == "own"
        return is_owned and not item.worked.is_only_quotes


class Store(Protocol):
    """Where finished parts are kept, so that whoever was interrupted can go on."""

    def job(self, work: PartWork, crew: Crew) -> Any:
        """Return the job to do in place of `work`."""

    def has(self, part: Part) -> bool:
        """Tell whether a part is there, undamaged."""

    def items(self, part: Part, result: Any) -> Iterable[Item]:
        """Return the items of a part that is there, or of which the job has this result."""


def items_of(
    finishing: Finishing,
    source: str,
    crew: Crew,
    given: Iterable[Record] | None = None,
    store: Callable[[PartWork, Sequence[Part]], Store | None] | None = None,
) -> Generator[Item, None, None]:
    """Yield the items of a source.

    Args:
        given: records that are read in its place.
        store: returns where finished parts of the source are kept; None if they are not.

    Raises:
        InputError: the source, or a record in its place among the items.
    """
    what = f"{source}: a process that cuts it into rows"
    if given is None:
        heard = _Heard()
        found = finishing.recipe.source(source, heard)
        if isinstance(found, Files) and found.reader.takes_urls and not finishing.recipe.needs_order:
            parts = parts_of(found.reader, found.paths, found.how)
            if reads_itself(crew, found):
                work = PartWork(finishing, replace(found.how, counts=Counts()))
                kept = None if store is None else store(work, parts)
                if kept is not None or _are_enough(crew, parts):
                    yield from _by_part(work, parts, crew, what, kept)
                    return
            given = (record for part in parts for record in part.records(found.how))
        else:
            given = iter(found)
    else:
        heard = _Heard()
    yield from _by_text(finishing, given, heard, crew, what)


def reads_itself(crew: Crew, files: Files) -> bool:
    """Tell whether whoever does the work can read the files."""
    return not crew.is_several or all(_reaches(crew, path, files.is_everywhere) for path in files.paths)


def _are_enough(crew: Crew, parts: Sequence[Part]) -> bool:
    """Tell whether parts keep everybody at work. A compressed file is one part, but its texts are many."""
    return not crew.is_several or len(parts) >= 2 * max(2, crew.processes)


def _reaches(crew: Crew, path: File, is_everywhere: bool) -> bool:
    if isinstance(path, RemoteFile):
        return path.is_shared
    # A process of Ray has a working folder of its own.
    return crew.cluster is None or (path.is_absolute() and (is_everywhere or crew.cluster == "local"))


def _by_part(
    work: PartWork, parts: Sequence[Part], crew: Crew, what: str, store: Store | None
) -> Iterator[Item]:
    left = [part for part in parts if store is None or not store.has(part)]
    waiting = {part.number for part in left}
    job = work if store is None else store.job(work, crew)
    with crew.workers(job, what) as workers:
        results = workers.map(left)
        for part in parts:
            result: Any = next(results) if part.number in waiting else None
            yield from result if store is None else store.items(part, result)


def _by_text(
    finishing: Finishing, records: Iterable[Record], heard: _Heard, crew: Crew, what: str
) -> Iterator[Item]:
    sent: deque[list[Made | Remarks]] = deque()  # batches that are worked on
    made = finishing.recipe.made(records, heard)

    def texts() -> Iterator[list[Text]]:
        for batch in finishing.batches(made, heard):
            sent.append(batch)
            yield finishing.texts(batch)

    with crew.workers(finishing.work, what) as workers:
        for worked in workers.map(texts()):
            yield from finishing.finished(sent.popleft(), worked)
