"""Find the secrets of documents by a list of words, patterns, a detector, fields, or the numbers of documents.

Identifiers of secrets are published. So they do not contain the text of the secret: `words:17`, `account:3`. The part
before the last colon is the class of the secret. Only the values of a column and the names in a file of rows become
identifiers as they are, since they are the data owner's own identifiers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from confide.config.schema import Secrets
from confide.data.readers.documents import Document
from confide.data.readers.fields import lookup
from confide.data.spans import Mention
from confide.sensitive.detectors import SharedDetector, SpanFinder, asked, kinds
from confide.sensitive.secrets.expressions import Expression
from confide.sensitive.secrets.folding import canonical
from confide.utils.errors import InputError
from confide.utils.sentences import kind_of
from confide.utils.workers import Crew


class Finder(Protocol):
    """Anything that finds the mentions of secrets in documents."""

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        """Return one list of mentions for each document, sorted by start; mentions may overlap.

        Documents may come in several calls, in reading order. The numbers of secrets continue from call to call.
        """


class _Numbers:
    """Numbers the distinct texts of each class in the order of their first appearance, over all calls.

    Texts count as equal if they differ only in case, the encoding of accents or white space; with `joined`, also if
    they differ only in separators. Otherwise two spellings of one secret would be two units, and each would be
    protected only for its own rows.
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
    """Finds secrets by named regular expressions: each distinct match is a secret `name:N`.

    White space around a match is ignored. Matches that differ only in case or white space are one secret. Matches of
    one expression do not overlap (`re.finditer`); matches of different expressions may.

    Raises:
        InputError: an expression is invalid or matches the empty string, or a search takes too long; the message
            names `key`.
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
    """Finds secrets with a detector: each distinct text of a kind is a secret, such as `PERSON:3`.

    Texts that differ only in case or white space are one secret. In numbers and addresses, separators do not count
    either. Two spellings of a name are two secrets. What the detector misses is not found: the recall that the config
    claims is the recall of the detector.
    """

    def __init__(self, detector: SpanFinder, codes: Collection[str] = ()) -> None:
        """Use a detector; `codes` are the kinds that are numbers and addresses."""
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

    def close(self) -> None:
        """End the processes of the detector, if it has any."""
        if isinstance(self._detector, SharedDetector):
            self._detector.close()


class Column:
    """Finds secrets by fields of a document: a value, or each item of a list, names a secret `field:VALUE`.

    The whole document is the mention. A blank value names no secret.

    Raises:
        InputError: a field is missing or contains no identifier; the message names the record.
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


def _identifiers(value: Any, name: str, where: str) -> list[str]:
    if value is None or value != value:  # a table's missing number is not equal to itself
        return []
    if isinstance(value, list | tuple):
        return [identifier for item in value for identifier in _identifiers(item, name, where)]
    if isinstance(value, str):
        return [" ".join(value.split())] if value.strip() else []
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return [str(int(value))]
    what = "a number with a fraction" if isinstance(value, float) else kind_of(value)
    raise InputError(f"{where}: secrets.column field {name!r} holds {what}, not an identifier.")


class RowList:
    """Finds secrets by a file of document numbers, counted from 0 in reading order.

    A line is `NUMBER` or `NUMBER,SECRET`. All lines without a secret name the same secret, `rows`. A first line that
    starts with a letter is a header. Blank lines and lines that start with # are skipped.

    Raises:
        InputError: there is any other line, which the message names; or the file lists no document.
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
        """The secrets that lines name; with `rows` if a line names none."""
        return {secret for secrets in self._secrets.values() for secret in secrets}

    def check(self, count: int) -> None:
        """Raise InputError if the file lists a number beyond the `count` documents that were read."""
        last = max(self._secrets)
        if last >= count:
            raise InputError(
                f"secrets.rows: {self._path} line {self._lines[last]} lists document {last}, but {count} were "
                "read (they are counted from 0)"
            )


def finders(secrets: Secrets, crew: Crew | None = None) -> list[Finder]:
    """Make the finders that the config section asks for: list, patterns, detector, columns and rows.

    The finder for `secrets.repository` is not among them. A `crew` runs the detector.

    Raises:
        InputError: a source cannot be read, or two sources use the same class of secrets; the message names the key.
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
        made.append(Detected(SharedDetector(secrets.detector, "secrets.detector", crew), codes))
    if columns:
        made.append(Column(columns))
    if secrets.rows is not None:
        rows = RowList(secrets.rows)
        _check_ids(rows.names, "secrets.rows", "rows", secrets, columns or [])
        made.append(rows)
    return made


def _check_ids(ids: Iterable[str], key: str, own: str, secrets: Secrets, columns: Sequence[str]) -> None:
    """Raise InputError if an id of a file has the class of another source: two secrets would become one."""
    others = _taken(secrets) | dict.fromkeys(secrets.patterns, "secrets.patterns")
    others |= dict.fromkeys(columns, "secrets.column")
    for name in ids:
        for kind in (name, *classes_of(name)):
            if kind != own and kind in others:
                raise InputError(
                    f"{key}: an id begins with {kind!r}, as {others[kind]} names its secrets: choose another"
                )


def _check_classes(secrets: Secrets, columns: Sequence[str]) -> None:
    """Raise InputError if two sources use one class: `account:3` must mean one secret, whichever source found it."""
    taken = _taken(secrets)
    for key, names in (("secrets.patterns", list(secrets.patterns)), ("secrets.column", columns)):
        for name in names:
            if not name.strip():
                raise InputError(f"{key}: a name is blank")
            if name in taken:
                raise InputError(f"{key}: the name {name!r} is taken, {taken[name]} names its secrets so")
            taken[name] = key


def _taken(secrets: Secrets) -> dict[str, str]:
    """Return the classes that lists, detectors and the repository use, each with its config key."""
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
    """Return all parts of an identifier that end before a colon, longest first: its class, then wider classes."""
    parts = secret.split(":")
    return [":".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def find_all(finders: Sequence[Finder], documents: Sequence[Document]) -> list[list[Mention]]:
    """Return the mentions of all finders, one list for each document, sorted by start."""
    merged: list[list[Mention]] = [[] for _ in documents]
    for finder in finders:
        for mentions, more in zip(merged, finder.find(documents), strict=True):
            mentions += more
    return [_by_place(mentions) for mentions in merged]


def _place(mention: Mention) -> tuple[int, int]:
    return mention.start, mention.end


def _by_place(mentions: Iterable[Mention]) -> list[Mention]:
    return sorted(mentions, key=_place)
