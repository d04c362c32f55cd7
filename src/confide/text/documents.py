"""Records as they are read, documents as they are used, and the step between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confide.errors import InputError
from confide.text.dialogues import Dialogue, is_dialogue
from confide.text.fields import Template, clean_text, label_of, lookup, owners_of


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields as a reader found them, and where ("mail.jsonl line 17")."""

    fields: Mapping[str, Any] = field(repr=False)
    where: str


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its owners. The text is left out of `repr`, so that no log or traceback shows it.

    fields: those of its record; number: of the record in its source, counted from 0; given: characters [start, end)
    that stand in the config, not in the record, and are therefore never sensitive.
    """

    text: str = field(repr=False)
    units: tuple[str, ...]
    label: str | int | None
    where: str
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    number: int = 0
    given: tuple[tuple[int, int], ...] = ()


class Counts(Counter[str]):
    """Named counts in the order in which they were declared; filled while a stream is consumed."""

    def declare(self, *names: str) -> Counts:
        """Fix the order of names, so that a count of zero is shown as well."""
        for name in names:
            self.setdefault(name, 0)
        return self

    def sentence(self) -> str:
        """For people: "6,153 records, 12 empty texts, 6,141 documents"."""
        return ", ".join(f"{number:,} {name}" for name, number in self.items())


def documents(
    records: Iterable[Record],
    text: str,
    unit: str | Sequence[str] | None,
    label: str | None = None,
    counts: Counts | None = None,
    speakers: Mapping[str, str] | None = None,
    spans: str | None = None,
) -> Iterator[Document]:
    """Turn records into documents, one at a time.

    `text` is a field or a template such as "{subject}\\n{body}"; `unit` a field or several (then each names
    owners); a field that holds a list gives several owners. Mail addresses become lower-case `name@host`,
    owners are de-duplicated in order. Without `unit` each document is its own unit, "row:0", "row:1" ...,
    numbered as documents come out.

    A `text` field that holds a list of turns is a dialogue, `dialogues.Dialogue`, with the prompts of `speakers`.
    `spans` names the field of each turn that lists its spans: of the document, this field then holds all of them,
    counted in the whole text.

    Only carriage returns, NUL characters and lone surrogates are touched in a text. Blank texts are skipped
    and counted. Counts: `records`, `empty texts`, `documents`, and `without <field>` where one of several
    unit fields was blank.

    Raises InputError, naming the record, for a missing field, a document that nobody owns, a label that is
    none; and at the end if there was no record or no text at all. A bad template is refused at once.
    """
    template = Template(text)
    counts = Counts() if counts is None else counts
    return _documents(records, template, unit, label, counts, speakers or {}, spans)


def _documents(
    records: Iterable[Record],
    template: Template,
    unit: str | Sequence[str] | None,
    label: str | None,
    counts: Counts,
    speakers: Mapping[str, str],
    spans: str | None,
) -> Iterator[Document]:
    counts.declare("records", "empty texts", "documents")
    names = [unit] if isinstance(unit, str) else unit
    read = kept = 0
    where = ""
    for record in records:
        read += 1
        counts["records"] += 1
        where = record.where
        fields = record.fields
        turns = lookup(fields, template.field, where, "data.text") if template.field is not None else None
        given: tuple[tuple[int, int], ...] = ()
        if is_dialogue(turns):
            dialogue = Dialogue.of(turns, speakers, where)
            content = dialogue.text
            if speakers:  # without, prompts are names out of the data
                given = dialogue.prompts()
            if spans is not None:
                fields = {**fields, spans: dialogue.shifted(turns, spans, where)}
        elif speakers:
            raise InputError(
                f"{where}: data.speakers is for dialogues, and data.text ({template.source!r}) names no list of turns"
            )
        else:
            content = clean_text(template.fill(fields, where))
        if not content or content.isspace():
            counts["empty texts"] += 1
            continue
        if names is None:
            owners: tuple[str, ...] = (f"row:{kept}",)
        else:
            owners, blank = owners_of(record.fields, names, where)
            for name in blank:
                counts[f"without {name}"] += 1
        tag = None if label is None else label_of(record.fields, label, where)
        kept += 1
        counts["documents"] += 1
        yield Document(content, owners, tag, where, fields, read - 1, given)
    if not read:
        raise InputError("no record is left to read: every one was removed before it became a document.")
    if not kept:
        raise InputError(
            f"all {read} texts up to {where} are empty: "
            f"check that data.text ({template.source!r}) names the right field."
        )
