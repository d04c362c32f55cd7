"""From the named fields of a record to a text, owners and a label; errors name the fields that exist."""

from __future__ import annotations

import difflib
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confide.utils.errors import InputError
from confide.utils.sentences import kind_of

_MISSING = object()
_DEEPEST = 8  # lists within lists of names
_HOST = r"[\w-]+(?:\.[\w-]+)+"
_OF_MESSAGES = re.compile(r"(?P<list>[^.\[\]]+)(?:\[(?P<role>[^\]]+)\])?\.(?P<part>.+)")
_ADDRESS = re.compile(rf"[\w.!#$%&'*+/=?^`{{|}}~-]+@{_HOST}")
_BARE_ADDRESS = re.compile(r"[^\s@<>,;:\"()\[\]]+@[^\s@<>,;:\"()\[\]]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Template:
    r"""`body`, or `{subject}\n{body}`: the fields that make a text. `{{` and `}}` stand for braces.

    Args:
        source: the template.
        key: the config key that it stands in, which errors name.

    Raises InputError for unbalanced braces, empty ones, and format specifications.
    """

    def __init__(self, source: str, key: str = "data.text") -> None:
        self.source, self._key = source, key
        if "{" not in source and "}" not in source:
            if not source:
                raise InputError(f"{key} is empty: name the field that holds the text.")
            self.parts: list[tuple[str, str | None]] = [("", source)]
            return
        try:
            parsed = list(string.Formatter().parse(source))
        except ValueError as error:
            raise InputError(
                f"{key}: the template {source!r} has unbalanced braces ({error}); "
                "write {{ or }} for a brace."
            ) from None
        for _, name, specification, conversion in parsed:
            if name == "":
                raise InputError(
                    f"{key}: the template {source!r} has empty braces; put a field name in them."
                )
            if specification or conversion:
                raise InputError(f"{key}: the template {source!r} formats {name!r}; write plain {{{name}}}.")
        self.parts = [(literal, name) for literal, name, _, _ in parsed]
        if not self.names:
            raise InputError(f"{key}: the template {source!r} names no field, so all texts would be equal.")

    @property
    def names(self) -> list[str]:
        """Return the fields that the template reads, in order."""
        return [name for _, name in self.parts if name is not None]

    @property
    def field(self) -> str | None:
        """Return the field that is the whole text; None for a template that adds to it."""
        return self.parts[0][1] if len(self.parts) == 1 and not self.parts[0][0] else None

    def fill(self, fields: Mapping[str, Any], where: str) -> str:
        """Fill in the text of one record, "" if all its fields are blank. Raises InputError for a missing field."""
        pieces: list[str] = []
        blank = True
        for literal, name in self.parts:
            pieces.append(literal)
            if name is not None:
                value = _as_text(lookup(fields, name, where, self._key), name, where)
                blank = blank and not value.strip()
                pieces.append(value)
        return "" if blank else "".join(pieces)


class NoField(InputError):
    """A record does not have a field."""


def lookup(fields: Mapping[str, Any], name: str, where: str, key: str) -> Any:
    """Return the value of a field; `meta.author` reaches into nested ones. `key` is the config key to blame."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            raise NoField(_unknown_field(fields, name, where, key))
    return value


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a suggestion such as " (did you mean 'body'?)", or ""."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _unknown_field(fields: Mapping[str, Any], name: str, where: str, key: str) -> str:
    # A table without a header has private text as field names: show only those that look like a name.
    known = [field for field in fields if len(field) <= 40 and len(field.split()) <= 3]
    hidden = len(fields) - len(known)
    listed = ", ".join(known[:30]) or "none"
    more = f" and {hidden} that do not look like names (is the header line missing?)" if hidden else ""
    there = f"{nearest(name, known)}; the fields are {listed}{more}"
    empty = "" if key in ("data.unit", "data.label", "data.messages") else "; it may be empty"
    return f"{where}: {key} names {name!r}, which is not there{there}. Each record needs this field{empty}."


def _as_text(value: Any, name: str, where: str) -> str:
    if value is None or value == "" or value != value:  # NaN is how a table says that a cell is empty
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    within = f"; a dot names a field within it, as in {name}.FIELD" if isinstance(value, Mapping) else ""
    raise InputError(f"{where}: field {name!r} holds {kind_of(value)}, not text{within}.")


def clean_text(text: str) -> str:
    r"""Return the text with line ends as \n and without characters that no tokenizer takes (NUL, lone surrogates)."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x00" in text:
        text = text.replace("\x00", "")
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def addresses(value: str) -> tuple[str, ...]:
    """Return the mail addresses in a header value or list, as lower-case `name@host`, each once, in order.

    A quoted display name that holds an address does not count when the address itself stands in angle
    brackets.
    """
    if "@" not in value:
        return ()
    value = value.strip().lower()
    if "<" in value:
        value = re.sub(r'"[^"]*"', " ", value)
    if _BARE_ADDRESS.fullmatch(value):
        return (value.strip("'"),)
    return tuple(dict.fromkeys(found.strip("'.") for found in _ADDRESS.findall(value)))


def owners_of(
    fields: Mapping[str, Any], names: Sequence[str], where: str
) -> tuple[tuple[str, ...], list[str], dict[str, str]]:
    """Return the owners of a record, each once, in order, and which fields were blank. There may be no owner.

    A field that is not there counts as blank. The last are sentences about these fields.

    Raises InputError if a field holds something that is no name.
    """
    owners: dict[str, None] = {}
    blank, absent = [], {}
    for name in names:
        try:
            value = _unit_value(fields, name, where)
        except NoField as error:
            value, absent[name] = None, str(error)
        found = _names_in(value, name, where)
        if not found:
            blank.append(name)
        owners.update(dict.fromkeys(found))
    return tuple(owners), blank, absent


def spelt_alike(names: Iterable[str]) -> int:
    """Count the names that are another one but for capitals and spaces: perhaps one person, who counts as two."""
    spellings: dict[str, int] = {}
    for name in names:
        folded = "".join(name.casefold().split())
        spellings[folded] = spellings.get(folded, 0) + 1
    return sum(number for number in spellings.values() if number > 1)


def _unit_value(fields: Mapping[str, Any], name: str, where: str) -> Any:
    """Return the value of a unit field; that of `messages[user].name` is a list, of the messages of that role."""
    found = _OF_MESSAGES.fullmatch(name)
    holder, role, part = (found["list"], found["role"], found["part"]) if found else ("", None, "")
    messages = fields.get(holder)
    if name in fields or not isinstance(messages, list | tuple):
        return lookup(fields, name, where, "data.unit")
    own = [each for each in messages if isinstance(each, Mapping) and role in (None, _role(each))]
    if not own and role is not None:
        raise InputError(f"{where}: data.unit names role {role!r}, and no message of {holder!r} has it")
    return [lookup(message, part, where, "data.unit") for message in own]


def _role(message: Mapping[str, Any]) -> Any:
    return next((message[key] for key in ("speaker", "role", "from") if key in message), None)


def _names_in(value: Any, name: str, where: str, depth: int = 0) -> list[str]:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return []
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [owner for item in value for owner in _names_in(item, name, where, depth + 1)]
    if isinstance(value, str):
        cleaned = clean_text(value).strip()
        return list(addresses(cleaned)) or ([cleaned] if cleaned else [])
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return [str(int(value)) if value == int(value) else str(value)]
    what = "an infinite number" if isinstance(value, float) else kind_of(value)
    raise InputError(f"{where}: data.unit field {name!r} holds {what}, not a name.")


def label_of(fields: Mapping[str, Any], name: str, where: str) -> str | int:
    """Return the label of a record: a word or an integer. Raises InputError for anything else."""
    value = lookup(fields, name, where, "data.label")
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise InputError(f"{where}: data.label field {name!r} holds no label (a word or an integer is wanted).")
