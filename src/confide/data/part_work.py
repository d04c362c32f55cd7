"""What becomes of the records of a source, in order: read and cut into rows by this process or by others.

A source of tables is read part by part (`readers.parts`), by whoever cuts its rows. Any other is read here, and its
texts are sent. Either way the same items come in the same order, and a fault comes in its place among them. What
depends on the documents before, as their number does, is left to whoever takes the items.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
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
from confide.utils.workers import Crew, Job

BATCH = 512  # records that are worked on at a time
BATCH_CHARACTERS = 1 << 22  # characters at which a batch ends, even with few records


@dataclass(frozen=True, slots=True)
class Seen:
    """What a search found in a document, or its fault, which is raised in the place of the document."""

    found: Any = None
    fault: InputError | None = None

    def taken(self) -> Any:
        """Return what was found.

        Raises:
            InputError: the search raised it.
        """
        if self.fault is not None:
            raise self.fault
        return self.found


@dataclass(frozen=True, slots=True)
class Finished:
    """A document with its rows.

    Attributes:
        document: without its number, see `made_of`; if it is `bare`, without text and fields.
        size: characters of its text as it was read.
        seen: what the search found; None if it was not asked for, or the document is not one to train on.
    """

    document: Document
    worked: Worked
    size: int
    seen: Seen | None = None


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


class Search(Job, Protocol):
    """A search of each document by itself: `ready` returns a function from documents to what it found in each.

    Attributes:
        identity: a text that decides, with the documents, what is found.
    """

    @property
    def identity(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent to whoever does the work.

    Attributes:
        documents: those to search, in the places of their texts; None in the place of another text. Empty if nothing
            is searched.
    """

    texts: list[Text]
    documents: list[Document | None]


@dataclass(frozen=True)
class BatchWork:
    """The work on a batch, as a job of `Workers`: that on its texts, then the search of its documents."""

    work: TextWork
    search: Search | None

    def ready(self) -> Callable[[Batch], tuple[list[Worked], list[Seen | None]]]:
        do, search = self.work.ready(), None if self.search is None else self.search.ready()

        def both(batch: Batch) -> tuple[list[Worked], list[Seen | None]]:
            worked = do(batch.texts)
            seen: list[Seen | None] = [None] * len(worked)
            if search is None:
                return worked, seen
            places, documents = [], []
            for at, (document, own) in enumerate(zip(batch.documents, worked, strict=True)):
                if document is not None and not own.is_only_quotes:
                    places.append(at)
                    documents.append(document if own.text is None else with_text(document, own.text))
            for at, found in zip(places, _seen(search, documents), strict=True):
                seen[at] = found
            return worked, seen

        return both


def _seen(search: Callable[[Sequence[Document]], Sequence[Any]], documents: Sequence[Document]) -> list[Seen]:
    """Search documents; one by one if there is a fault, so that each keeps its own."""
    if not documents:
        return []
    try:
        return [Seen(found) for found in search(documents)]
    except InputError as fault:
        if len(documents) == 1:
            return [Seen(fault=fault)]
        return [seen for document in documents for seen in _seen(search, [document])]


@dataclass(frozen=True)
class Finishing:
    """What is made of each record.

    Attributes:
        recipe: how records become documents.
        work: what is done to each text.
        share: of the units that are held out.
        cut: the sides of the split whose rows are wanted.
        bare: whether nobody needs text and fields of a document whose rows are cut.
        limit: how many documents are wanted at most.
        batch: records that are worked on at a time.
        search: what documents to train on are searched for, by whoever cuts rows. Their fields are not kept then.
    """

    recipe: Recipe
    work: TextWork
    share: float
    cut: frozenset[str] = frozenset({"train", "eval"})
    bare: bool = False
    limit: int | None = None
    batch: int = BATCH
    search: Search | None = None

    @property
    def job(self) -> BatchWork:
        """The work on batches, as `sent` returns them."""
        return BatchWork(self.work, self.search)

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

    def sent(self, batch: Sequence[Made | Remarks]) -> Batch:
        """Return what is sent of a batch."""
        documents = [each for each in batch if isinstance(each, Document)]
        return Batch(
            [
                Text(each.text, each.where, each.layout, each.tokens, self._may_be(each, self.cut))
                for each in documents
            ],
            []
            if self.search is None
            else [each if self._may_be(each, {"train"}) else None for each in documents],
        )

    def finished(
        self, batch: Sequence[Made | Remarks], done: tuple[Sequence[Worked], Sequence[Seen | None]]
    ) -> Iterator[Item]:
        """Yield the items of a batch of which the work made `done`."""
        results = zip(*done, strict=True)
        for each in batch:
            if not isinstance(each, Document):
                yield each
                continue
            found, seen = next(results)
            size = len(each.text)
            if self.bare:
                each = Document(
                    "",
                    each.units,
                    each.label,
                    each.where,
                    blank=each.blank,
                    condition=each.condition,
                    absent=each.absent,
                )
                found = found if found.text is None else replace(found, text=found.text.strip()[:1])
            elif found.text is not None:
                each = with_text(each, found.text)
            if self.search is not None:
                each = replace(each, fields={})
            yield Finished(each, found, size, seen)

    def _may_be(self, document: Document, sides: Collection[str]) -> bool:
        """Tell whether a document may be on one of these sides; the unit of one that nobody owns is not known yet."""
        if document.units:
            return side_of(document.units, self.share) in sides
        return ("train" in sides and self.share < 1) or ("eval" in sides and self.share > 0)


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
        do = self.finishing.job.ready()
        return lambda part: Items(self._items(part, do))

    def _items(
        self, part: Part, do: Callable[[Batch], tuple[list[Worked], list[Seen | None]]]
    ) -> Iterator[Item]:
        finishing, heard = self.finishing, _Heard()
        made = finishing.recipe.made(part.records(replace(self.how, counts=heard)), heard)
        kept = 0
        for batch in finishing.batches(made, heard):
            for item in finishing.finished(batch, do(finishing.sent(batch))):
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

    def batches() -> Iterator[Batch]:
        for batch in finishing.batches(made, heard):
            sent.append(batch)
            yield finishing.sent(batch)

    with crew.workers(finishing.job, what) as workers:
        for done in workers.map(batches()):
            yield from finishing.finished(sent.popleft(), done)
