"""Where the secrets of a document are: by a list of words, patterns, a detector, its fields, or its number.

Identifiers of secrets are published, so none holds what a secret says: `words:17`, `account:3`. What stands
before the last colon is its class. Only values of a column and names in a file of rows are taken as they are:
these are the data owner's own identifiers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from confide.config.schema import Secrets
from confide.data.readers.documents import Document
from confide.data.readers.fields import lookup
from confide.data.spans import Mention
from confide.sensitive.detectors import SpanFinder, asked, detector, kinds
from confide.sensitive.secrets.expressions import Expression
from confide.sensitive.secrets.folding import canonical
from confide.utils.errors import InputError


class Finder(Protocol):
    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        """One list a document, sorted by start; overlapping mentions are all listed.

        Documents may come in several calls, in reading order: numbers of secrets go on from call to call.
        """


class _Numbers:
    """Numbers distinct texts of each class by first appearance, over all calls.

    Case, accents' form and white space tell no two apart, nor, where `joined`, do separators: two spellings of one
    secret that were two units would each be protected for its own rows alone.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, str]] = {}

    def name(self, kind: str, text: str, joined: bool = False) -> str:
        text = canonical(text)
        if joined:
            text = "".join(character for character in text if character.isalnum()) or text
        known = self._numbers.setdefault(kind, {})
        return known.setdefault(text, f"{kind}:{len(known) + 1}")


class Patterns:
    """Regular expressions by name: each distinct match, without white space around it, is a secret `name:N`.
    Matches that differ in case or white space alone are one.

    Matches of one expression do not overlap (`re.finditer`); those of different ones may.
    Raises InputError, naming `key`, for a bad expression, for one that matches the empty string, and for a text in
    which the search takes too long.
    """

    def __init__(self, patterns: Mapping[str, str], key: str = "secrets.patterns") -> None:
        self._expressions = {
            name: Expression(expression, f"{key}.{name}") for name, expression in patterns.items()
        }
        self._numbers = _Numbers()

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        return [self._find_in(document) for document in documents]

    def _find_in(self, document: Document) -> list[Mention]:
        mentions = []
        for name, expression in self._expressions.items():
            for start, end in expression.spans(document.text, document.where):
                found = document.text[start:end]
                value = found.strip()
                if value:
                    start += found.index(value)
                    mentions.append(Mention(self._numbers.name(name, value), start, start + len(value)))
        return _by_place(mentions)


class Detected:
    """Each distinct text of a kind that a detector finds is a secret, `PERSON:3`; case and white space are not
    compared, nor, in numbers and addresses, what separates their parts.

    Two spellings of a name are two secrets, and what the detector misses is not there: the recall that the
    config claims is that of the detector.
    """

    def __init__(self, detector: SpanFinder, codes: Collection[str] = ()) -> None:
        """`codes`: the kinds that are numbers and addresses."""
        self._detector, self._codes = detector, frozenset(codes)
        self._numbers = _Numbers()

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        texts = [document.text for document in documents]
        return [
            _by_place(
                Mention(
                    self._numbers.name(span.kind, text[span.start : span.end], span.kind in self._codes),
                    span.start,
                    span.end,
                )
                for span in spans
            )
            for text, spans in zip(texts, self._detector.find(texts), strict=True)
        ]


class Column:
    """Fields whose values name the secrets of a document, one or a list: `field:VALUE`. All of the document
    is the mention; a blank value names none.

    Raises InputError, naming the record, for a field that is not there or holds no identifier.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        return [self._find_in(document) for document in documents]

    def _find_in(self, document: Document) -> list[Mention]:
        secrets = dict.fromkeys(
            f"{name}:{value}"
            for name in self._names
            for value in _identifiers(
                lookup(document.fields, name, document.where, "secrets.column"), name, document.where
            )
        )
        return [Mention(secret, 0, len(document.text)) for secret in secrets]


_KINDS = {dict: "an object", float: "a number with a fraction"}  # as the formats of data call them


def _identifiers(value: Any, name: str, where: str) -> list[str]:
    if value is None or value != value:  # a table's missing number is not equal to itself
        return []
    if isinstance(value, list | tuple):
        return [identifier for item in value for identifier in _identifiers(item, name, where)]
    if isinstance(value, str):
        return [" ".join(value.split())] if value.strip() else []
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return [str(int(value))]
    raise InputError(
        f"{where}: secrets.column field {name!r} holds {_KINDS.get(type(value), 'a value')}, not an identifier."
    )


class RowList:
    """A file of document numbers, counted from 0 in reading order: `NUMBER`, or `NUMBER,SECRET`; all lines
    without a secret name one, `rows`. A first line that starts with a letter is a header; blank lines and those that
    start with # are skipped.

    Raises InputError, naming the line, for any other line.
    """

    def __init__(self, path: str | Path) -> None:
        from confide.sensitive.secrets.words import read_text  # words.py builds on Mention

        self._path = Path(path).expanduser()
        self._secrets: dict[int, dict[str, None]] = {}
        self._lines: dict[int, int] = {}
        lines = [line.strip() for line in read_text(self._path, "secrets.rows").split("\n")]
        written = [number for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
        for line in written:
            first, _, secret = (part.strip() for part in lines[line - 1].partition(","))
            if first.isascii() and first.isdigit():
                self._secrets.setdefault(int(first), {})[secret.strip('"') or "rows"] = None
                self._lines.setdefault(int(first), line)
            elif line != written[0] or not first[:1].isalpha():
                raise InputError(f"secrets.rows: {self._path} line {line} does not start with a number")
        if not self._secrets:
            raise InputError(f"secrets.rows: {self._path} lists no document")

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        return [
            [Mention(secret, 0, len(document.text)) for secret in self._secrets.get(document.number, ())]
            for document in documents
        ]

    @property
    def names(self) -> set[str]:
        """The secrets that lines name, `rows` among them where one names none."""
        return {secret for secrets in self._secrets.values() for secret in secrets}

    def check(self, count: int) -> None:
        """Raises InputError if a number beyond the `count` documents that were read is listed."""
        last = max(self._secrets)
        if last >= count:
            raise InputError(
                f"secrets.rows: {self._path} line {self._lines[last]} lists document {last}, but {count} were "
                "read (they are counted from 0)"
            )


def finders(secrets: Secrets) -> list[Finder]:
    """What the config section asks for, but for the repository: list, patterns, detector, columns, rows.

    Raises InputError, naming the key, for what cannot be read; and if two of them name secrets of one class.
    """
    from confide.sensitive.secrets.words import Words  # words.py builds on Mention

    columns = [secrets.column] if isinstance(secrets.column, str) else secrets.column
    _check_classes(secrets, columns or [])
    made: list[Finder] = []
    if secrets.words is not None:
        words = Words(secrets.words)
        _check_ids(words.ids, "secrets.words", "words", secrets, columns or [])
        made.append(words)
    if secrets.patterns:
        made.append(Patterns(secrets.patterns))
    detectors = asked(secrets.detector)
    for each, settings in detectors:
        each.check_secrets(settings, "secrets.detector")
    if detectors:
        codes = {kind for each, _ in detectors for kind in each.codes}
        made.append(Detected(detector(secrets.detector), codes))
    if columns:
        made.append(Column(columns))
    if secrets.rows is not None:
        rows = RowList(secrets.rows)
        _check_ids(rows.names, "secrets.rows", "rows", secrets, columns or [])
        made.append(rows)
    return made


def _check_ids(ids: Iterable[str], key: str, own: str, secrets: Secrets, columns: Sequence[str]) -> None:
    """A file that names a secret as another source does would make one of the two."""
    others = _taken(secrets) | dict.fromkeys(secrets.patterns, "secrets.patterns")
    others |= dict.fromkeys(columns, "secrets.column")
    for name in ids:
        for kind in (name, *classes_of(name)):
            if kind != own and kind in others:
                raise InputError(
                    f"{key}: an id begins with {kind!r}, as {others[kind]} names its secrets: choose another"
                )


def _check_classes(secrets: Secrets, columns: Sequence[str]) -> None:
    """`account:3` must mean one secret, whoever found it."""
    taken = _taken(secrets)
    for key, names in (("secrets.patterns", list(secrets.patterns)), ("secrets.column", columns)):
        for name in names:
            if not name.strip():
                raise InputError(f"{key}: a name is blank")
            if name in taken:
                raise InputError(f"{key}: the name {name!r} is taken, {taken[name]} names its secrets so")
            taken[name] = key


def _taken(secrets: Secrets) -> dict[str, str]:
    """Classes that lists, detectors and the repository name, and the key of each."""
    repository = secrets.repository
    return {
        name: key
        for key, names in (
            ("secrets.words", ["words"] if secrets.words is not None else []),
            ("secrets.rows", ["rows"] if secrets.rows is not None else []),
            ("secrets.detector", kinds(secrets.detector)),
            (
                "secrets.repository",
                [name for name in ("paths", "owners", "authors", "packages") if getattr(repository, name)],
            ),
        )
        for name in names
    }


def classes_of(secret: str) -> list[str]:
    """What stands before a colon of an identifier, the longest first: its class, and wider ones."""
    parts = secret.split(":")
    return [":".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def find_all(finders: Sequence[Finder], documents: Sequence[Document]) -> list[list[Mention]]:
    """What all finders find, one list a document, sorted by start."""
    merged: list[list[Mention]] = [[] for _ in documents]
    for finder in finders:
        for mentions, more in zip(merged, finder.find(documents), strict=True):
            mentions += more
    return [_by_place(mentions) for mentions in merged]


def _place(mention: Mention) -> tuple[int, int]:
    return mention.start, mention.end


def _by_place(mentions: Iterable[Mention]) -> list[Mention]:
    return sorted(mentions, key=_place)
