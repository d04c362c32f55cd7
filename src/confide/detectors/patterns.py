"""Structured identifiers (mail addresses, card numbers ...) by Presidio's recognisers, without a language model.

Whatever a recogniser reports counts, however low its score: what is found too often costs a little accuracy,
what is missed is not protected. Where Presidio alone misses formats that occur, an expression of our own
stands beside it: cards with any first digit, of 12 to 19 digits; telephone numbers as they are dialled, of
any country; IBANs in lower case. Nothing here touches the network.
"""

from __future__ import annotations

import importlib
import logging
import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from confide.detectors.spans import Span
from confide.errors import InputError
from confide.text.fields import nearest

# By kind: Presidio's class.
RECOGNISERS = {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "URL": "UrlRecognizer",
}
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){11,18}(?!\d)")
_PHONE = re.compile(
    r"(?<![\w.+])[+(]?\d(?:[ ().\-/\u2010\u2011\u2013]{0,3}\d){6,14}(?:\s?(?:x|ext\.?)\s?\d{1,6})?(?!\w)",
    re.I,
)
_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_Places = Iterator[tuple[int, int]]


def _cards(text: str) -> _Places:
    for match in _CARD.finditer(text):
        digits = [int(digit) for digit in match.group() if digit.isdigit()]
        if _luhn(digits):
            yield match.span()


def _luhn(digits: Sequence[int]) -> bool:
    """The check digit of ISO/IEC 7812-1."""
    doubled = (2 * digit for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(digit // 10 + digit % 10 for digit in doubled)) % 10 == 0


def _phones(text: str) -> _Places:
    for match in _PHONE.finditer(text):
        yield match.span()


_OWN: dict[str, Callable[[str], _Places]] = {"CREDIT_CARD": _cards, "PHONE_NUMBER": _phones}


class Recognisers:
    """Finds what the named recognisers find: `all`, or a list of the keys of `RECOGNISERS`.

    Raises InputError, naming `key`, for an unknown name or if Presidio is not installed.
    """

    def __init__(self, names: Sequence[str] | Literal["all"], key: str = "secrets.detector.patterns") -> None:
        chosen = list(RECOGNISERS) if names == "all" else list(dict.fromkeys(names))
        for name in chosen:
            if name not in RECOGNISERS:
                raise InputError(
                    f"{key}: no recogniser {name!r}{nearest(name, list(RECOGNISERS))}; there are "
                    f"{', '.join(RECOGNISERS)}"
                )
        try:
            module: Any = importlib.import_module("presidio_analyzer.predefined_recognizers")
        except ImportError:
            raise InputError(f"{key}: Presidio is not installed: pip install 'confide[detectors]'") from None
        self._recognisers = {name: _make(module, name) for name in chosen}

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start. Raises InputError if an expression ran out of time."""
        with _silent():
            return [sorted(self._find_in(text)) for text in texts]

    def _find_in(self, text: str) -> set[Span]:
        spans = set()
        for kind, recogniser in self._recognisers.items():
            read = text.translate(_UPPER) if kind == "IBAN_CODE" else text
            for found in recogniser.analyze(read, [kind], None):
                spans.add(Span(found.start, found.end, kind))
            for start, end in _OWN.get(kind, lambda _: iter(()))(text):
                spans.add(Span(start, end, kind))
        return spans


def _make(module: Any, kind: str) -> Any:
    made = getattr(module, RECOGNISERS[kind])()
    if kind == "EMAIL_ADDRESS":  # its check fetches the list of public suffixes, and drops private hosts
        made.validate_result = lambda text: None
    return made


class _TimedOut(logging.Handler):
    """Presidio gives up an expression after a minute, and only says so in its log."""

    def emit(self, record: logging.LogRecord) -> None:
        if "timed out" in str(record.msg):
            raise InputError("secrets.detector.patterns: a recogniser ran out of time on one document")


@contextmanager
def _silent() -> Iterator[None]:
    """Presidio's log names what it found: nothing of it leaves, and a recogniser that gave up is an error."""
    logger = logging.getLogger("presidio-analyzer")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [_TimedOut()], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
