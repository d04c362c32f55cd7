"""Write a sample of documents for a person to screen, and read that person's marks (Shi et al. 2022, section 3.1).

The sample has a header that says what to do, and then one JSON record on each line. It contains the text itself, so
only its owner can read the file. The text that a person finds and that the detectors missed tells how much they miss
in all. The documents that were screened can be used for training without noise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import beta, t

from confide.data.readers.opening import check_regular
from confide.randomness.streams import RunKey
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.counting import Words
from confide.sensitive.redaction.masking import merged, outside
from confide.sensitive.redaction.pieces import BLOCK, pieces
from confide.utils.errors import Faults, InputError
from confide.utils.files import whole_file

if TYPE_CHECKING:
    from confide.data.readers import Document
    from confide.sensitive.redaction.policy import Policy
    from confide.utils.console import Track

MARKED = "MARKED"  # the kind of spans that a person has marked
_CONFIDENCE = 0.95
_BATCH = 256
_MOST_FAULTS = 20  # the most faults that one message lists
_WHAT_TO_DO = (
    "Each line below is a document. Read its `masked`: what the detectors found stands there as "
    f"{BLOCK}KIND{BLOCK}. Whatever is still readable and sensitive was missed: copy it into `missed`, a list of texts "
    "in quotes, exactly as it stands in `text`. Then set `screened` to true, also where nothing was missed. Change "
    "nothing else. At last run `confide redact CONFIG --marks` with this file."
)


@dataclass(frozen=True)
class Screened:
    """A document of the sample.

    Attributes:
        line: the line of its record in the file, counted from 1.
        number: `Document.number`.
        draws: the draws that it belongs to, counted from 1.
        screened: whether the person says that they have screened the document.
        missed: the texts that a person found and the detectors missed.
        masked: the text as the person reads it, with labels in place of the findings.
        text: the text itself.
        spans: the findings of the detectors.
        fingerprint: a keyed fingerprint of everything that a person must not change.
    """

    line: int
    number: int
    draws: tuple[int, ...]
    screened: bool
    missed: tuple[str, ...] = field(repr=False)
    masked: str = field(repr=False)
    text: str = field(repr=False)
    spans: tuple[Span, ...]
    fingerprint: str

    def record(self) -> dict[str, Any]:
        """Return the record for the file; the fields that a person fills in come first, after the number."""
        return {
            "document": self.number,
            "screened": self.screened,
            "missed": list(self.missed),
            "masked": self.masked,
            "text": self.text,
            "draws": list(self.draws),
            "spans": [[span.start, span.end, span.kind] for span in self.spans],
            "fingerprint": self.fingerprint,
        }

    def expected_fingerprint(self, key: RunKey) -> str:
        spans = [[span.start, span.end, span.kind] for span in self.spans]
        return _fingerprint(key, "document", self.number, self.draws, self.masked, self.text, spans)

    @cached_property
    def marks(self) -> tuple[Span, ...]:
        """All places of the missed texts in the document, including masked places."""
        return tuple(
            sorted({Span(*place, MARKED) for said in self.missed for place in _occurrences(said, self.text)})
        )

    @cached_property
    def words(self) -> tuple[int, int, int]:
        """The number of words: of all, of those with a masked character, of those with a missed one."""
        words, places = Words(self.text), merged(self.spans)
        return len(words), len(words.within(places)), len(words.within(merged(outside(self.marks, places))))


def _occurrences(said: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield all occurrences, even if they overlap each other."""
    start = text.find(said)
    while start >= 0:
        yield start, start + len(said)
        start = text.find(said, start + 1)


def _fingerprint(key: RunKey, *what: Any) -> str:
    return key.fingerprint(json.dumps(["screening", *what]).encode())


# the sample ---------------------------------------------------------------------------------------------------
def sample(
    documents: Callable[[], Iterable[Document]],
    policy: Policy,
    key: RunKey,
    share: float,
    draws: int,
    path: Path,
    track: Track,
) -> dict[str, Any]:
    """Write a sample of the documents to `path`, for its owner alone (mode 600).

    Each draw takes its share of the documents (at least one) without replacement. Draws are independent of each other,
    and the run key determines them. A document that is drawn several times is in the file only once.

    Args:
        documents: returns the documents. It is called twice: to number the documents, and to read the drawn ones.
        policy: finds the sensitive spans.
        key: the run key.
        share: the share of the documents in each draw, above 0 and at most 1.
        draws: the number of draws.
        path: the file to write.
        track: is called with the number of documents of each batch, to show progress.

    Returns:
        A dict: `documents` is the number in the file, `of` the number of all, and `draws` and `share` are as given.

    Raises:
        InputError: `path` exists, its folder does not exist, or there is no document.
    """
    if path.exists():
        raise InputError(f"{path}: exists already, and may hold marks; give another name with --out")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    drawn, count = _draw(documents(), key, share, draws)
    if not count:
        raise InputError("no document is left to draw from")
    header = {
        "confide": "a sample of documents to screen",
        "what to do": _WHAT_TO_DO,
        "share": share,
        "draws": draws,
        "documents": len(drawn),
        "of": count,
        "detector": _fingerprint(key, "detector", policy.fingerprint),
    }
    header["fingerprint"] = _of_header(key, header)
    with whole_file(path) as building, open(building, "w", encoding="utf-8", opener=private) as stream:
        stream.write(_line(header))
        chosen = (document for document in documents() if document.number in drawn)
        while batch := list(islice(chosen, _BATCH)):
            for document, spans in zip(batch, policy.find(batch), strict=True):
                stream.write(_line(_unscreened(document, spans, drawn[document.number], key).record()))
            track(len(batch))
    return {"documents": len(drawn), "of": count, "draws": draws, "share": share}


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read and write."""
    return os.open(path, flags, 0o600)


def _draw(
    documents: Iterable[Document], key: RunKey, share: float, draws: int
) -> tuple[dict[int, list[int]], int]:
    """Return the draws of each chosen document, by its number; and the number of all documents."""
    numbers = np.fromiter((document.number for document in documents), dtype=np.int64)
    size = max(1, round(share * len(numbers)))
    drawn: dict[int, list[int]] = {}
    for draw in range(1, draws + 1):
        order = key.stream("screening", "documents", draw).permutation(len(numbers))
        for number in numbers[order[:size]].tolist():
            drawn.setdefault(number, []).append(draw)
    return drawn, len(numbers)


def _unscreened(document: Document, spans: Sequence[Span], draws: Sequence[int], key: RunKey) -> Screened:
    masked = "".join(piece.plain for piece in pieces(document.text, spans))
    made = Screened(
        0, document.number, tuple(draws), False, (), masked, document.text, tuple(sorted(spans)), ""
    )
    return replace(made, fingerprint=made.expected_fingerprint(key))


def _of_header(key: RunKey, header: dict[str, Any]) -> str:
    return _fingerprint(key, "header", *(header[name] for name in ("share", "draws", "documents", "of")))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


# the marks ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Marks:
    """A sample that a person has screened, complete and without faults."""

    path: Path
    header: dict[str, Any]
    documents: tuple[Screened, ...]

    @classmethod
    def load(cls, path: str | Path, key: str = "--marks") -> Marks:
        """Read the file; messages name `key`, the config key or option that names the file.

        Raises:
            InputError: there are faults; the message lists them with their lines. A fault is a document that was not
                screened, or a missed text that is empty, does not occur in the text, or is masked wherever it occurs.
        """
        path = Path(path).expanduser()
        check_regular(path, key)
        where = f"{key}: {path}"
        lines = _read(path, where)
        header = _header(lines[0], where)
        faults: list[tuple[int, str]] = []
        found: dict[int, Screened] = {}
        for number, line in lines[1:]:
            try:
                document = _screened(number, line)
                faults += ((number, fault) for fault in _faults(document))
                if document.number in found:
                    faults.append((number, f"document {document.number} stands in the file twice"))
                found[document.number] = document
            except _Malformed as error:
                faults.append((number, str(error)))
        if faults:
            raise Faults(_report(where, faults))
        if len(found) != header["documents"]:
            raise InputError(
                f"{where} holds {len(found)} documents of a sample of {header['documents']}: put back the lines "
                "that were removed, since what is hard to screen tells most"
            )
        return cls(path, header, tuple(found.values()))

    def check(self, key: RunKey, detector: str) -> None:
        """Check that the sample is from this run and these detectors, and that it was not edited in other places.

        `detector` is the fingerprint of the policy.

        Raises:
            InputError: there are faults; the message lists them with their lines.
        """
        if self.header["fingerprint"] != _of_header(key, self.header):
            raise InputError(
                f"{self.path} line 1: not a sample of this run, or its first line was edited: draw another one "
                "with --sample"
            )
        if self.header["detector"] != _fingerprint(key, "detector", detector):
            raise InputError(
                f"{self.path}: the detectors, their settings or versions have changed since: what they miss now is "
                "not what this sample tells; draw another one with --sample"
            )
        faults = [
            (document.line, "was edited in other places than `screened` and `missed`: undo that")
            for document in self.documents
            if document.fingerprint != document.expected_fingerprint(key)
        ]
        if faults:
            raise Faults(_report(str(self.path), faults))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The `Document.number` of each document that was screened."""
        return frozenset(self._by_number)

    @cached_property
    def _by_number(self) -> dict[int, Screened]:
        return {document.number: document for document in self.documents}

    def spans(self, document: Document) -> list[Span]:
        """Return the spans of a document that were hidden from the person or marked by them, sorted.

        Marks have the kind `MARKED`. The list is empty for a document that is not in the sample. Text that was masked
        for the person stays masked, even if the detectors no longer find it, since nobody has looked at it.

        Raises:
            InputError: the text of the document is not the text that the person read.
        """
        known = self._by_number.get(document.number)
        if known is None:
            return []
        if known.text != document.text:
            raise InputError(
                f"{self.path} line {known.line}: {document.where} holds another text now: draw another sample of "
                "the data as they are, with confide redact --sample"
            )
        return sorted({*known.marks, *known.spans})

    def rates(self) -> list[dict[str, int]]:
        """Return the counts of each draw: `documents`, `words`, `masked` words, and `missed` words."""
        found = []
        for draw in range(1, self.header["draws"] + 1):
            counts = [document.words for document in self.documents if draw in document.draws]
            sums = [sum(count[i] for count in counts) for i in range(3)]
            found.append({"documents": len(counts), "words": sums[0], "masked": sums[1], "missed": sums[2]})
        return found

    def missing_rate(self) -> tuple[float, float]:
        """Return the 95% interval of the share of words that are sensitive and missed; its upper end is above 0."""
        return self._interval()[:2]

    def _interval(self) -> tuple[float, float, str]:
        shares = np.array([draw["missed"] / draw["words"] for draw in self.rates()])
        if len(shares) > 1 and shares.std() > 0:
            half = t.ppf((1 + _CONFIDENCE) / 2, len(shares) - 1) * shares.std(ddof=1) / sqrt(len(shares))
            low, high = float(shares.mean() - half), float(shares.mean() + half)
            return max(0.0, low), min(1.0, high), f"t-interval over {len(shares)} draws"
        words, missed = (sum(document.words[i] for document in self.documents) for i in (0, 2))
        low, high = _clopper_pearson(missed, words)
        why = "one draw has no spread" if len(shares) == 1 else "the draws do not differ"
        return (
            low,
            high,
            f"Clopper-Pearson for {missed:,} of {words:,} words, as if each were drawn by itself: {why}",
        )

    def facts(self) -> dict[str, Any]:
        """Return the results of the sample; this is the output of `confide redact --marks --json`."""
        draws = self.rates()
        low, high, method = self._interval()
        rate = float(np.mean([draw["missed"] / draw["words"] for draw in draws]))
        masked = float(np.mean([draw["masked"] / draw["words"] for draw in draws]))
        return {
            "documents": len(self.documents),
            "of": self.header["of"],
            "missed_strings": sum(len(document.missed) for document in self.documents),
            "draws": draws,
            "missing_rate": rate,
            "interval": [low, high],
            "interval_by": method,
            "masked": masked,
            "recall": masked / (masked + rate) if masked + rate else None,
            "config": [
                {"mode": "screened", "marks": str(self.path)},
                {
                    "mode": "light-noise",
                    "epsilon": 1.0,
                    "missing_rate": [_rounded(low, False), _rounded(high, True)],
                },
            ],
        }


def _clopper_pearson(k: int, n: int) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial share."""
    tail = (1 - _CONFIDENCE) / 2
    low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
    return low, float(beta.isf(tail, k + 1, n - k)) if k < n else 1.0


def _rounded(share: float, up: bool) -> float:
    """Round outwards to three significant digits, and below 1 as the config requires."""
    if not share:
        return 0.0
    places = 2 - int(np.floor(np.log10(share)))
    whole = np.ceil(share * 10.0**places) if up else np.floor(share * 10.0**places)
    return min(0.999, float(f"{whole / 10.0**places:.3g}"))


# reading ------------------------------------------------------------------------------------------------------
class _Malformed(Exception):
    """A line is not a valid record of the sample."""


def _read(path: Path, where: str) -> list[tuple[int, str]]:
    """Read the lines that are not blank, with their numbers."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"{where}: no such file; `confide redact CONFIG --sample SHARE --out` writes it"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from None
    # Not `splitlines`: it also splits at Unicode line ends, which a text may contain.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{where}: the file is empty")
    return lines


def _header(first: tuple[int, str], where: str) -> dict[str, Any]:
    counts = ("draws", "documents", "of")
    try:
        header = json.loads(first[1])
        whole = isinstance(header["share"], float | int) and all(_count(header[name]) for name in counts)
        if whole and all(isinstance(header[name], str) for name in ("detector", "fingerprint")):
            return dict(header)
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(
        f"{where} line {first[0]}: not the first line of a sample that confide redact --sample wrote"
    )


def _count(value: Any) -> bool:
    return type(value) is int and value >= 1


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "document": lambda value: type(value) is int and value >= 0,
    "screened": lambda value: isinstance(value, bool),
    "missed": lambda value: isinstance(value, list) and all(isinstance(said, str) for said in value),
    "masked": lambda value: isinstance(value, str),
    "text": lambda value: isinstance(value, str) and not value.isspace() and value != "",
    "draws": lambda value: isinstance(value, list) and bool(value) and all(map(_count, value)),
    "spans": lambda value: isinstance(value, list) and all(map(_is_span, value)),
    "fingerprint": lambda value: isinstance(value, str),
}
_HINTS = {
    "screened": ": it is true or false, without quotes",
    "missed": ': a list of texts in quotes, as in ["Jane Roe", "the red house"]',
}


def _is_span(value: Any) -> bool:
    if not isinstance(value, list) or [type(part) for part in value] != [int, int, str]:
        return False
    return bool(0 <= value[0] < value[1])


def _screened(number: int, line: str) -> Screened:
    try:
        record = json.loads(line)
    except ValueError as error:
        place = f" at character {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _Malformed(f"not valid JSON{place}: is a quote or a comma missing?") from None
    if not isinstance(record, dict):
        raise _Malformed("not a document of the sample")
    for name, valid in _FIELDS.items():
        if name not in record:
            raise _Malformed(f"`{name}` is missing")
        if not valid(record[name]):
            raise _Malformed(f"`{name}` is not as it was written{_HINTS.get(name, '')}")
    spans = tuple(Span(*span) for span in record["spans"])
    if spans and max(span.end for span in spans) > len(record["text"]):
        raise _Malformed("`spans` reach beyond the text")
    return Screened(
        line=number,
        number=record["document"],
        draws=tuple(record["draws"]),
        screened=record["screened"],
        missed=tuple(record["missed"]),
        masked=record["masked"],
        text=record["text"],
        spans=spans,
        fingerprint=record["fingerprint"],
    )


def _faults(document: Screened) -> Iterator[str]:
    """Yield what a person still has to do or did wrong, in words that contain nothing of the text."""
    if not document.screened:
        yield "not screened yet (`screened` is false)"
    places = merged(document.spans)
    for number, said in enumerate(document.missed, 1):
        if not said.strip():
            yield f"missed text no. {number} is empty"
            continue
        found = [Span(*place, MARKED) for place in _occurrences(said, document.text)]
        if not found:
            yield f"missed text no. {number} does not occur in `text`: case and white space count"
        elif not outside(found, places):
            yield f"missed text no. {number} is masked wherever it occurs"


def _report(where: str, faults: Sequence[tuple[int, str]]) -> str:
    if len(faults) == 1:
        return f"{where} line {faults[0][0]}: {faults[0][1]}"
    said = [f"  line {line}: {fault}" for line, fault in faults[:_MOST_FAULTS]]
    if len(faults) > _MOST_FAULTS:
        said.append(f"  and {len(faults) - _MOST_FAULTS:,} more")
    return "\n".join([f"{where}: {len(faults):,} faults", *said])
