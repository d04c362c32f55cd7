"""Records as they are read, documents as they are used, and the step between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from confide.data.layout import Layout, Place
from confide.data.readers.dialogues import Dialogue, is_dialogue
from confide.data.readers.fields import Template, clean_text, label_of, lookup, owners_of
from confide.utils.errors import InputError
from confide.utils.sentences import many

LARGEST = 1 << 27
"""The default limit of a document, in bytes: a book has a million."""

WithoutUnit = Literal["refuse", "drop", "own"]
DROPPED = "documents dropped: without a unit"
OWN = "documents without a unit, each one of its own"
_COUNTED = 1_000_000  # records that are read on to count those without a unit


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields as a reader found them, and their place ("mail.jsonl line 17").

    Attributes:
        tokens: the text as token ids, if a calling program has tokenised it.
    """

    fields: Mapping[str, Any] = field(repr=False)
    where: str
    tokens: Sequence[int] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its owners. The text is left out of `repr`, so that no log or traceback shows it.

    Attributes:
        fields: the fields of its record.
        number: the number of the record in its source, counted from 0.
        given: characters [start, end) that come from the config, not from the record, and are therefore never
            sensitive.
        layout: where turns begin and what is predicted; None for a text that is one piece and all learnt.
        tokens: the token ids, if the text came with them; it is then not tokenised.
        blank: the unit fields that were blank, of a document that others own.
        condition: the number of its condition in the public list, counted from 1; 0 if it has none.
        absent: unit fields that its record does not have, each with a sentence about it.
    """

    text: str = field(repr=False)
    units: tuple[str, ...]
    label: str | int | None
    where: str
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    number: int = 0
    given: tuple[Place, ...] = ()
    layout: Layout | None = None
    tokens: Sequence[int] | None = field(default=None, repr=False)
    blank: tuple[str, ...] = ()
    condition: int = 0
    absent: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Blank:
    """A record without a text."""

    where: str


Made = Document | Blank


@dataclass(frozen=True, slots=True)
class Worded:
    """The text of a record, as a rule other than a template writes it.

    Attributes:
        given, layout: as of `Document`.
        spans: the record's sensitive spans, counted in the text; None if it lists none.
    """

    text: str = field(repr=False)
    given: tuple[Place, ...] = ()
    layout: Layout | None = None
    spans: list[list[Any]] | None = None


Wording = Callable[[Record], Worded]
Before = Callable[[Record], tuple[str, int]]


class Counts(Counter[str]):
    """Named counts in the order in which they were declared; filled while a stream is consumed."""

    def declare(self, *names: str) -> Counts:
        """Fix the order of names, so that a count of zero is shown as well."""
        for name in names:
            self.setdefault(name, 0)
        return self

    def note(self, where: str, what: str) -> None:
        """Keep a remark about a file; a remark about several files is shown once."""
        told = self._told()
        first, last, number = told.get(what, (where, "", 0))
        told[what] = (first, where, number + (where != last))

    def notes(self) -> list[str]:
        """Return the remarks, one sentence each: "a.csv and 3 more: read as cp1252"."""
        return [
            f"{first}{f' and {number - 1:,} more' if number > 1 else ''}: {what}"
            for what, (first, _, number) in self._told().items()
        ]

    def _told(self) -> dict[str, tuple[str, str, int]]:
        """Return for each remark the first file, the last file and the number of files."""
        found: dict[str, tuple[str, str, int]] = self.__dict__.setdefault("_notes", {})
        return found

    def sentence(self) -> str:
        """Describe the counts for people: "6,153 records, 12 empty texts, 6,141 documents"."""
        return ", ".join(f"{number:,} {name}" for name, number in self.items())


def documents(
    records: Iterable[Record],
    text: str,
    unit: str | Sequence[str] | None,
    label: str | None = None,
    counts: Counts | None = None,
    speakers: Mapping[str, str] | None = None,
    spans: str | None = None,
    without_unit: WithoutUnit = "refuse",
    largest: int = LARGEST,
    wording: Wording | None = None,
) -> Iterator[Document]:
    r"""Turn records into documents, one at a time.

    `text` is a field or a template such as "{subject}\n{body}"; `unit` a field or several (then each names
    owners); a field that holds a list gives several owners. Mail addresses become lower-case `name@host`,
    owners are de-duplicated in order. Without `unit` each document is its own unit, "row:0", "row:1" ...,
    numbered as documents come out.

    A `text` field that holds a list of turns is a dialogue, `dialogues.Dialogue`, with the prompts of `speakers`.
    `spans` names the field of each turn that lists its spans: of the document, this field then holds all of them,
    counted in the whole text.

    With `wording`, this makes the text of each record, and `text` and `speakers` are not used.

    Only carriage returns, NUL characters and lone surrogates are touched in a text. Blank texts are skipped
    and counted. Counts: `records`, `empty texts`, `documents`, and `without <field>` where one of several
    unit fields was blank.

    A document that nobody owns is refused, with the number of them all; or dropped and counted; or made a unit of
    its own and counted, by `without_unit`. Its own unit's name begins with a blank, as no name in the data does.

    Raises InputError, naming the record, for a missing field, a document that nobody owns, a label that is
    none, a text larger than `largest` bytes; and at the end if there was no record or no text at all. A bad template
    is refused at once.
    """
    made = made_of(records, text, unit, label, speakers, spans, without_unit, largest, wording)
    numbering = Numbering(f"data.text ({text!r})", unit, without_unit, Counts() if counts is None else counts)
    return numbered(made, numbering)


def numbered(made: Iterator[Made], numbering: Numbering) -> Iterator[Document]:
    """Yield the documents that `numbering` takes."""
    for each in made:
        document = numbering.take(each, made)
        if document is not None:
            yield document
    numbering.check_end()


def made_of(
    records: Iterable[Record],
    text: str,
    unit: str | Sequence[str] | None,
    label: str | None = None,
    speakers: Mapping[str, str] | None = None,
    spans: str | None = None,
    without_unit: WithoutUnit = "refuse",
    largest: int = LARGEST,
    wording: Wording | None = None,
    before: Before | None = None,
) -> Iterator[Made]:
    """Do the part of `documents` that needs no other record; see there for the arguments.

    `before` makes what stands in front of each text that is not blank, and the number of its condition; it comes from
    the config.

    A document has no number yet, and if nobody owns it, or nobody can, it has no units. `Numbering` gives it both.
    """
    template = Template(text)
    names = [unit] if isinstance(unit, str) else unit
    return _made(
        records, template, names, label, speakers or {}, spans, without_unit, largest, wording, before
    )


def _made(
    records: Iterable[Record],
    template: Template,
    names: Sequence[str] | None,
    label: str | None,
    speakers: Mapping[str, str],
    spans: str | None,
    without_unit: WithoutUnit,
    largest: int,
    wording: Wording | None,
    before: Before | None,
) -> Iterator[Made]:
    for record in records:
        where, fields = record.where, record.fields
        if (
            record.tokens is not None
        ):  # words of a language of their own, so that repeated text is still found
            worded = Worded(" ".join(map(str, record.tokens)))
        else:
            worded = _by_template(record, template, speakers, spans) if wording is None else wording(record)
        content = worded.text
        if spans is not None and worded.spans is not None:
            fields = {**fields, spans: worded.spans}
        if not content or content.isspace():
            yield Blank(where)
            continue
        given, condition = worded.given, 0
        if before is not None:
            written, condition = before(record)
            places = ((start + len(written), end + len(written)) for start, end in given)
            content = written + content
            given = ((0, len(written)), *places) if written else given
        if len(content) > largest:  # for example one cell of a Parquet file
            raise InputError(
                f"{where}: a document of more than {largest:,} bytes; split it, or raise data.max_document_bytes."
            )
        owners: tuple[str, ...] = ()
        blank: list[str] = []
        absent: dict[str, str] = {}
        if names is not None:
            owners, blank, absent = owners_of(record.fields, names, where)
            if absent and without_unit == "refuse":
                raise InputError(
                    f"{next(iter(absent.values()))} If only some documents lack it, data.without_unit says what to do "
                    "with those that name nobody: drop (leave them out) or own (protect each by itself)."
                )
        stays = bool(owners) or names is None or without_unit == "own"
        tag = label_of(record.fields, label, where) if label is not None and stays else None
        yield Document(
            content,
            owners,
            tag,
            where,
            fields,
            0,
            given,
            worded.layout,
            record.tokens,
            tuple(blank) if owners else (),
            condition,
            tuple(absent.items()),
        )


class Numbering:
    """What a document's place among the others decides: its number, the unit of one that nobody owns, and the counts.

    Args:
        read: the key that says which text is read, with its value, as in "data.text ('body')".
        unit, without_unit, counts: as of `documents`.
    """

    def __init__(
        self, read: str, unit: str | Sequence[str] | None, without_unit: WithoutUnit, counts: Counts
    ) -> None:
        self._key, self._without_unit, self._counts = read, without_unit, counts
        self._names = [unit] if isinstance(unit, str) else unit
        self._read = self._kept = 0
        self._where = ""
        self._absent: dict[str, str] = {}
        self._there: set[str] = set()  # unit fields that some record has
        counts.declare("records", "empty texts", "documents")

    def take(self, made: Made, rest: Iterator[Made]) -> Document | None:
        """Count what was made of the next record; return its document, or None if it is left out.

        Args:
            rest: the following ones, which are counted if the document is refused.

        Raises:
            InputError: nobody owns the document, and such documents are refused.
        """
        self._read += 1
        self._counts["records"] += 1
        self._where = made.where
        if isinstance(made, Blank):
            self._counts["empty texts"] += 1
            return None
        units = made.units
        if made.absent or len(self._there) < len(self._names or ()):
            absent = dict(made.absent)
            self._absent = absent | self._absent
            self._there.update(name for name in self._names or () if name not in absent)
        if self._names is None:
            units = (f"row:{self._kept}",)
        elif not units and self._without_unit == "refuse":
            raise self._nobody(rest)
        elif not units and self._without_unit == "drop":
            self._counts[DROPPED] += 1
            return None
        elif not units:
            self._counts[OWN] += 1
            units = (f" {self._read - 1}",)
        for name in made.blank:
            self._counts[f"without {name}"] += 1
        self._kept += 1
        self._counts["documents"] += 1
        return replace(made, units=units, number=self._read - 1)

    def check_end(self) -> None:
        """Raise InputError if there was no record, or no document, or none that has the unit's field."""
        if not self._read:
            raise InputError(
                "no record is left to read. If data.clean removed them all, set it to none, or check that these are "
                "mails with from, to, date and body."
            )
        self.check_fields()
        if not self._kept and self._counts[DROPPED]:
            raise InputError(
                f"data.unit: no document up to {self._where} has one, so data.without_unit: drop leaves none."
            )
        if not self._kept:
            raise InputError(
                f"all {self._read} texts up to {self._where} are empty: "
                f"check that {self._key} names the right field."
            )

    def check_fields(self) -> None:
        """Raise InputError if no record that was read has one of the unit's fields.

        It is mistyped then: `own` would protect documents in place of people, and `drop` one owner of two.
        """
        for name, sentence in self._absent.items():
            if name not in self._there:
                raise InputError(f"{sentence} None of the {self._read:,} records that were read has it.")

    def _nobody(self, rest: Iterator[Made]) -> InputError:
        """Build the error for the first document that nobody owns, with the number of all such documents."""
        names, where, read = self._names or (), self._where, self._read
        number, limit = 1, read + _COUNTED
        for each in islice(rest, _COUNTED):
            read += 1
            number += isinstance(each, Document) and not each.units
        what = f"field {names[0]!r} is" if len(names) == 1 else f"fields {', '.join(names)} are"
        of = f"the first {read:,} records" if read == limit else many(read, "record")
        these = (
            f"this is the first of {number:,} such documents"
            if number > 1
            else "this is the only such document"
        )
        return InputError(
            f"{where}: no unit, since the {what} empty (data.unit); {these} in {of}. Choose another data.unit, or set "
            "data.without_unit: drop (leave them out) or own (protect each by itself)."
        )


def _by_template(
    record: Record, template: Template, speakers: Mapping[str, str], spans: str | None
) -> Worded:
    """Return the text of a record: that of a template, or a dialogue."""
    fields, where = record.fields, record.where
    turns = lookup(fields, template.field, where, "data.text") if template.field is not None else None
    if is_dialogue(turns):
        dialogue = Dialogue.of(turns, speakers, where)
        return Worded(
            dialogue.text,
            given=dialogue.prompts()
            if speakers
            else (),  # without speakers, prompts are names out of the data
            spans=None if spans is None else dialogue.shifted(turns, spans, where),
        )
    if speakers:
        raise InputError(
            f"{where}: data.speakers is for dialogues, and data.text ({template.source!r}) names no list of turns"
        )
    return Worded(clean_text(template.fill(fields, where)))
