"""Inspect a source before there is a config: its fields, which of them is the text, and which name people.

Only names of fields and numbers are kept. Texts and people's names stay in this process.
"""

import re
import shlex
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from confide.cli.given import HOW_READ, Given
from confide.config.loading import ENDINGS, is_config, is_run
from confide.data.documents import how_of
from confide.data.readers import Counts, Record, documents
from confide.data.readers.dialogues import is_dialogue, speaker_of
from confide.data.readers.fields import owners_of, spelt_alike
from confide.data.readers.readers import found as files_of
from confide.utils.errors import InputError

LOOK = 200
"""Records that are kept whole, for the choice of the text."""

Chosen = Literal["given", "name", "pair", "longest", "only"]

COUNTED = 5000
"""Records in which people are counted."""

_ROLES = 6  # more speakers than these count as people, not as roles
_DEEP = 3  # sections inside sections
_PEOPLE_IN = (
    "from sender author user customer client patient speaker owner account member employee student person "
    "participant respondent subscriber contact reviewer commenter commentor poster writer uploader creator buyer "
    "applicant tenant resident caller absender autor benutzer nutzer kunde auteur expediteur usuario cliente "
    "utilisateur remitente"
).split()
_KINDS_OF_NAME = (
    "",
    *"id ids name email mail emailaddress mailaddress address no nr num number key hash uuid handle login".split(),
)
_OTHER_NAMES = (
    "email emailaddress mailaddress uid username login handle nickname screenname postedby createdby"
)
_SURE = (*(who + kind for who in _PEOPLE_IN for kind in _KINDS_OF_NAME), *_OTHER_NAMES.split())
_UNSURE = ("name", "fullname", "id", "mailbox", "folder")
_TEXTS = ("body", "text", "content", "message", "post")
_TALKS = ("messages", "conversation", "conversations", "dialog", "dialogue", "turns")  # of lists of turns
_PAIRS = (
    (("instruction",), ("input", "context"), ("output", "response", "completion", "answer")),
    (("context", "system"), ("question", "prompt", "query"), ("answer", "response", "completion", "output")),
    (("question", "prompt", "query", "input", "source"), ("answer", "response", "completion", "output", "target")),
)  # fmt: skip
_BREAKS_TEMPLATE = set("{}:!")


_ASKED_FOR = re.compile("|".join(map(re.escape, HOW_READ)))
"""Keys that say how a source is read, which a message may ask for."""


@dataclass(frozen=True)
class Candidate:
    """A field that may name people.

    Attributes:
        people: different people in the inspected documents; without: documents that name nobody there.
        alike: how many of these people are another one but for capitals and spaces.
        several: whether a record names more than one.
        sure: whether the field's name means a person; repeats: whether it was found by its values alone.
    """

    name: str
    people: int
    without: int
    several: bool
    sure: bool
    repeats: bool
    owners: frozenset[tuple[str, ...]]
    alike: int = 0


@dataclass(frozen=True)
class Look:
    """Result of inspecting the first records of a source.

    Attributes:
        fields: names; those of sections as `section.field`.
        text: a field or a template, as `data.text` takes it.
        is_mail: whether it begins with the subject of a mail.
        chosen: how the text was found: it was "given", by the "name" of its field, as a "pair" of question and answer,
            as the "longest" of several fields, or because it is the "only" one.
        roles: the speakers of dialogues, if they are a few roles.
        records: number of inspected records; whole: whether these were all.
        documents: those of them that hold text; `prepare` skips the others.
        people: fields that may name people, the likeliest first.
        fault: why `prepare` will refuse a record, if one of them is at fault.
        given: values of the command line, by which it was read.
    """

    source: str
    fields: tuple[str, ...]
    text: str
    is_mail: bool
    chosen: Chosen
    roles: tuple[str, ...]
    records: int
    whole: bool
    documents: int
    people: tuple[Candidate, ...]
    fault: str | None
    given: Given

    @property
    def pair(self) -> tuple[str, str]:
        """Of a pair: the template of the question, with a line end, and that of the answer."""
        prompt, _, completion = self.text.rpartition("\n")
        return f"{prompt}\n", completion

    def unit(self) -> Candidate | None:
        """Return the field that most likely names whom to protect."""
        named = [each for each in self.people if not each.repeats and each.people]
        sure = [each for each in named if each.sure]
        for each in sure:
            if each.people > 1:
                return each
        for each in named:
            if each.people > 1 and each.people < self.documents - each.without:
                return each
        return sure[0] if sure else None

    def candidate(self, name: str) -> Candidate | None:
        """Return the field with this name, if it may name people."""
        return next((each for each in self.people if each.name == name), None)


def _refuse_config(source: str) -> None:
    """Refuse a config or a run folder, which somebody gave in place of text."""
    path = Path(source).expanduser()
    if is_run(path):
        raise InputError(f"{source}: is a run, and has a config: `confide plan {source}` tells what it costs")
    if path.suffix in ENDINGS and path.is_file() and is_config(path):
        raise InputError(f"{source}: is a config already: `confide plan {source}` tells what it costs")


def look(source: str, also: Sequence[str] = (), given: Given | None = None) -> Look:
    """Inspect the first records of a source.

    Args:
        also: fields that name people, whatever they look like.
        given: how the source is read, and which text of it, if that is known.

    Raises:
        InputError: nothing can be read there, no field holds text, a table has no line of column names, or it is a
            config or a run in place of data.
    """
    _refuse_config(source)
    given = given or Given.of(source)
    data, unit = given.data, given.get("data.unit")
    try:
        stream = iter(files_of(source, data.format, how_of(data, Counts())))
        first = list(islice(stream, LOOK))
    except InputError as error:
        key = _ASKED_FOR.search(str(error))
        if key is None or key[0] in given or "no such file" in str(error):
            raise
        way = f"the key goes behind the name: `confide init {shlex.quote(source)} {key[0]}=...`"
        raise InputError(f"{str(error).rstrip('.')}; {way}") from None
    if not first:
        raise InputError(f"{source}: holds no records")
    flat = [_flat(record.fields) for record in first]
    fields = tuple(dict.fromkeys(name for each in flat for name in each))
    text, is_mail, chosen = _given_text(given) or _text(source, flat, fields)
    if _are_values(flat, fields) or (chosen == "longest" and not _is_name(text)):
        raise InputError(
            f"{source}: what should be the names of its fields looks like somebody's text: is the line of column names "
            "missing? Write one above the first row"
        )
    # A field that stands in a template of ours is part of the text; in one that is given it may name people, too.
    taken = (
        {text} if chosen == "given" else {name for name in fields if name == text or f"{{{name}}}" in text}
    )
    seen = _Seen(text, _possible(flat, fields, taken, (*also, unit)))
    fault: str | None = None
    for record in first:
        seen.take(record)
    try:
        for record in islice(stream, COUNTED - LOOK):
            seen.take(record)
        whole = len(first) < LOOK or next(stream, None) is None
    except InputError as error:
        fault, whole = str(error), False
    if whole and not seen.documents:
        raise InputError(
            f"{source}: field {text!r} is empty in all {seen.records:,} records (fields: {named(fields)})"
        )
    return Look(
        source,
        fields,
        text,
        is_mail,
        chosen,
        seen.roles(),
        seen.records,
        whole,
        seen.documents,
        tuple(seen.candidates()),
        seen.fault or fault,
        given,
    )


def plain(name: str) -> str:
    """Strip case, spaces and punctuation from a field's name: `Customer ID` and `customer_id` become equal."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    return "".join(character for character in folded if character.isalnum())


def _flat(fields: Mapping[str, Any], prefix: str = "", deep: int = _DEEP) -> dict[str, Any]:
    """Flatten fields; those of sections become `section.field`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and value and deep:
            found |= _flat(value, f"{prefix}{name}.", deep - 1)
        else:
            found[f"{prefix}{name}"] = value
    return found


def _names_of(name: str) -> tuple[str, str]:
    """Return the names that a field is compared by: its whole name, and the last part of a nested one."""
    return plain(name), plain(name.rpartition(".")[2])


# the text --------------------------------------------------------------------------------------------
def _given_text(given: Given) -> tuple[str, bool, Chosen] | None:
    """Return what `_text` would, of keys that are given."""
    if not given.has_text:
        return None
    data = given.data
    if data.prompt is None or data.completion is None:
        return data.messages or data.text, False, "given"
    both = (part if "{" in part else f"{{{part}}}" for part in (data.prompt, data.completion))
    return "\n".join(both), False, "given"


def _text(source: str, flat: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> tuple[str, bool, Chosen]:
    """Choose `data.text`. Return it, whether a mail's subject comes before it, and how it was found."""
    usable = [name for name in fields if not set(name) & set("{}")]
    held = {name: [each.get(name) for each in flat] for name in usable}
    texts = [name for name in usable if any(isinstance(v, str) and v.strip() for v in held[name])]
    texts = [name for name in texts if all(_is_text(value) for value in held[name])]
    lists = [name for name in usable if all(map(is_dialogue, held[name])) and any(held[name])]
    # a field with such a name is the text even if a record is at fault
    mostly = [
        n for n in usable if n not in (*texts, *lists) and any(map(_is_said, held[n])) and _most(held[n])
    ]
    talks = [name for name in lists if any(isinstance(turn, Mapping) for v in held[name] for turn in v or ())]
    everywhere = {name for name in usable if all(name in each for each in flat)}
    named_so: dict[str, str] = {}
    # prefer a whole name to the last part of a nested one, and a field of all records to one of some
    for name in sorted((*texts, *lists, *mostly), key=lambda name: (name not in everywhere, "." in name)):
        for known in _names_of(name):
            named_so.setdefault(known, name)
    for known in (*_TEXTS, *_TALKS):
        if known in named_so and (known in _TEXTS or any(map(is_dialogue, held[named_so[known]]))):
            name, subject = named_so[known], named_so.get("subject")
            if name in texts and subject in texts and {name, subject} <= everywhere and _fit((name, subject)):
                return f"{{{subject}}}\n{{{name}}}", "from" in fields, "name"
            return name, False, "name"
    if talks:
        return talks[0], False, "only" if len(talks) == 1 else "longest"
    asked = _question_and_answer({k: n for k, n in named_so.items() if n in texts and n in everywhere})
    if asked is not None:
        return "\n".join(f"{{{name}}}" for name in asked), False, "pair"
    if not texts and lists:
        return lists[0], False, "only" if len(lists) == 1 else "longest"
    if not texts:
        braces = [name for name in fields if set(name) & set("{}")]
        why = (
            "a name with braces cannot stand in data.text: rename the field"
            if braces
            else "no field holds text"
        )
        raise InputError(f"{source}: {why} (fields: {named(fields)})")
    people = set(_SURE)
    best = [name for name in texts if not people & set(_names_of(name))]
    blank = [n for n in usable if set(_TEXTS) & set(_names_of(n)) and all(v in (None, "") for v in held[n])]
    if blank and not best:
        return blank[0], False, "name"
    best = best or texts

    def length(name: str) -> tuple[bool, int]:
        return name in everywhere, sum(len(value) for value in held[name] if isinstance(value, str))

    return max(best, key=length), False, "only" if len(best) == 1 else "longest"


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)


def _is_said(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value and is_dialogue(value))


def _most(values: Sequence[Any]) -> bool:
    """Return True if more than half of the values may be a text."""
    return 2 * sum(_is_text(value) or is_dialogue(value) for value in values) > len(values)


def _fit(names: Sequence[str]) -> bool:
    """Return True if the names can stand in braces."""
    return not any(set(name) & _BREAKS_TEMPLATE for name in names)


def _question_and_answer(by_name: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the fields of an instruction and its answer, in the order in which they are read."""
    for parts in _PAIRS:
        found = [next((by_name[known] for known in part if known in by_name), None) for part in parts]
        names = tuple(name for name in found if name is not None)
        if found[0] and found[-1] and len(set(names)) >= 2 and _fit(names):
            return tuple(dict.fromkeys(names))
    return None


# the people ------------------------------------------------------------------------------------------
def _possible(
    flat: Sequence[Mapping[str, Any]], fields: Sequence[str], taken: Collection[str], also: Sequence[Any]
) -> list[tuple[str, bool, bool]]:
    """Return the fields that may name people: (name, whether it means a person, whether only its values suggest it).

    Args:
        taken: fields that are the text.
    """
    found: list[tuple[tuple[int, int], tuple[str, bool, bool]]] = []
    for place, name in enumerate(fields):
        if name in taken:
            continue
        known = _names_of(name)
        at = next((i for i, sure in enumerate(_SURE) if sure in known), None)
        if name in also:
            found.append(((0, -1), (name, True, False)))
        elif at is not None:
            found.append(((0, at), (name, True, False)))
        elif any(unsure in known for unsure in _UNSURE):
            at = next(i for i, unsure in enumerate(_UNSURE) if unsure in known)
            found.append(((1, at), (name, False, False)))
        elif _is_name(name) and _repeats([each.get(name) for each in flat]):
            found.append(((2, place), (name, False, True)))
    return [entry for _, entry in sorted(found)]


def _repeats(values: Sequence[Any]) -> bool:
    """Return True if values are short, and some occur in several records."""
    given = [value for value in values if value not in (None, "") and not isinstance(value, float | bool)]
    if not given or not all(isinstance(value, str | int) and len(str(value)) <= 80 for value in given):
        return False
    return 1 < len(set(given)) < len(given)


class _Seen:
    """Counts that are kept while records go by."""

    def __init__(self, text: str, possible: Sequence[tuple[str, bool, bool]]):
        self.text, self.possible = text, possible
        self.records = self.documents = 0
        self.fault: str | None = None
        self.owners: dict[str, set[tuple[str, ...]]] = {name: set() for name, _, _ in possible}
        self.without = dict.fromkeys(self.owners, 0)
        self.speakers: dict[str | None, None] = {}

    def take(self, record: Record) -> None:
        self.records += 1
        turns = _flat(record.fields).get(self.text)
        if is_dialogue(turns) and len(self.speakers) <= _ROLES:
            self.speakers |= dict.fromkeys(speaker_of(turn) for turn in turns)
        if self._is_empty(record):
            return  # `prepare` skips it, whoever owns it
        self.documents += 1
        for name in self.owners:
            try:
                owners = owners_of(record.fields, [name], record.where)[0]
            except InputError:  # what it holds is no name
                owners = ()
            if owners:
                self.owners[name].add(owners)
            else:
                self.without[name] += 1

    def _is_empty(self, record: Record) -> bool:
        """Return True if a record holds no text. Makes the document that `prepare` will make."""
        counts = Counts()
        try:
            return not any(documents([record], self.text, None, counts=counts))
        except InputError as error:
            if counts["empty texts"]:
                return True
            self.fault = self.fault or str(error)
            return False

    def roles(self) -> tuple[str, ...]:
        """Return the speakers of dialogues, if they are a few roles; names of people are not roles."""
        if not self.speakers or len(self.speakers) > _ROLES:
            return ()
        names = [name for name in self.speakers if name and len(name) <= 40]
        return tuple(names) if len(names) == len(self.speakers) else ()

    def candidates(self) -> Iterator[Candidate]:
        for name, sure, repeats in self.possible:
            owners = frozenset(self.owners[name])
            people = {person for each in owners for person in each}
            several = any(len(each) > 1 for each in owners)
            alike = spelt_alike(people)
            yield Candidate(name, len(people), self.without[name], several, sure, repeats, owners, alike)


def _is_name(name: str) -> bool:
    """Return True if a field's name looks like a name; in a table without a header it is somebody's text."""
    return len(name) <= 40 and len(name.split()) <= 4


def _are_values(flat: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> bool:
    """Return True if a field's name is an address (not @type), or stands among its own values: nobody chose it."""
    return any("@" in name[1:] or any(each.get(name) == name for each in flat) for name in fields)


def named(fields: Sequence[str], most: int = 30) -> str:
    """Format field names for a comment or a message: in a table without a header, the names are text."""
    known = [repr(name)[1:-1] for name in fields if _is_name(name)]
    hidden = len(fields) - len(known[:most])
    return ", ".join(known[:most]) + (f" and {hidden} more" if hidden else "")
