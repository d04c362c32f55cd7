"""Find structured identifiers (mail addresses, card numbers ...) with Presidio's recognisers, without a language model.

Every report of a recogniser counts, however low its score. A false finding costs a little accuracy, but a missed
one is not protected. Presidio alone misses some formats that occur. Searches of our own add these: cards of 12 to 19
digits with any first digit; telephone numbers of any country as people dial them; IBANs in lower case. The module
`keys` finds keys and tokens in code. Nothing here uses the network.

Presidio searches only windows (see `windows`), where a cheap expression says that it may find something. It searches
for telephone numbers only where our own expression does not already cover all that it may find.
"""

from __future__ import annotations

import importlib
import logging
import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.data.readers.fields import nearest
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.keys import KEYS, Keys
from confide.sensitive.detectors.spans import Span
from confide.sensitive.detectors.windows import Places, Windows, find_joined, run_start, search
from confide.utils.errors import InputError

# Kind -> the class of Presidio.
_PRESIDIO = {
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
RECOGNISERS = (*_PRESIDIO, *KEYS)

_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){11,18}(?!\d)")
_PHONE = re.compile(
    r"(?<![\w.+])[+(]?\d(?:[ ().\-/\u2010\u2011\u2013]{0,3}\d){6,14}(?:[^\S\n]?(?:x|ext\.?)[^\S\n]?\d{1,6})?(?!\w)",
    re.I,
)
_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_LOCAL = r"[!#$%&'*+\-/=?^_`{|}~\w]"
_LONGEST_HOST = 253
_LONGEST_LABEL = 63

_Find = Callable[[str], Places]


def _cards(text: str) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(text):
        digits = [int(digit) for digit in match.group() if digit.isdigit()]
        if _luhn(digits):
            yield match.span()


def _luhn(digits: Sequence[int]) -> bool:
    """Tell whether the last digit is the right check digit by ISO/IEC 7812-1."""
    doubled = (2 * digit for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(digit // 10 + digit % 10 for digit in doubled)) % 10 == 0


def _phones(text: str) -> Iterator[tuple[int, int]]:
    for match in _PHONE.finditer(text):
        yield match.span()


# Kind -> our own search, and the windows where it searches.
_OWN: dict[str, tuple[_Find, Windows]] = {
    "CREDIT_CARD": (_cards, Windows(r"\d(?:[ -]?\d){11}", r"[\d -]")),
    "PHONE_NUMBER": (
        _phones,
        Windows(r"\d(?:[ ().\-/\u2010\u2011\u2013]{0,3}\d){6}", r"[\s\d ()+.\-/\u2010\u2011\u2013xet]", re.I),
    ),
}


class _Mails:
    """The windows of mail addresses; each @ in a window may belong to an address, so no search is in vain."""

    def __init__(self, module: Any) -> None:
        label = r"\w++(?:-++\w++)*+"
        self._at = module.compile(rf"(?<={_LOCAL})@{label}(?:\.{label})++")
        self._inside = module.compile(f"{_LOCAL[:-1]}.]")

    def __call__(self, text: str) -> Iterator[tuple[int, int]]:
        window = (0, 0)
        last = -1
        for match in self._at.finditer(text):
            start = run_start(self._inside, text, match.start(), last + 1)
            if start == last + 1 and last >= 0:  # the rest of one address may begin another
                window = window[0], match.end()
            else:
                if last >= 0:
                    yield max(window[0] - 1, 0), min(window[1] + 1, len(text))
                window = start, match.end()
            last = match.start()
        if last >= 0:
            yield max(window[0] - 1, 0), min(window[1] + 1, len(text))


class _Urls:
    """The windows of URLs: from the earliest start of a host with a top-level domain to the end of the path."""

    _BEFORE = len("https://www999.") + _LONGEST_HOST + 1  # and a quote

    def __init__(self, module: Any, url: str) -> None:
        _, _, rest = url.partition(f"{{1,{_LONGEST_HOST}}}[.]")
        domains, _, _ = rest.partition(r"(?:/[^")  # if this were empty, every character would be an anchor
        self._anchor = module.compile(rf"[.](?<=[a-z0-9.\-][.])(?=[a-z]){domains}", module.I)
        self._inside = module.compile(r"[^\s()<>]")
        self._outside = module.compile(r"[\s()<>]")

    def __call__(self, text: str) -> Iterator[tuple[int, int]]:
        window = (0, 0)
        end_of_run = 0
        for match in self._anchor.finditer(text):
            if match.start() >= end_of_run:
                after = self._outside.search(text, match.end())
                end_of_run = len(text) if after is None else after.start()
            first = max(match.start() - self._BEFORE, 0)
            start = run_start(self._inside, text, match.start(), max(first, window[1]))
            near = min(end_of_run, match.end() + _LONGEST_LABEL + 1)
            end = end_of_run if "/" in text[match.start() : near] else near
            if start <= window[1] and window[1] > 0:
                window = window[0], max(window[1], end)
            else:
                if window[1] > 0:
                    yield window
                window = start, end
        if window[1] > 0:
            yield window


_BETWEEN = r"xX ()\[\]./~+\-\u0080-\U0010ffff"
_EXTENSION = (
    r"(?:[ \t,\u00a0]*+(?:;ext=|e?x?t(?:ensi(?:o\u0301?|\u00f3))?n?|int|anexo|[x~#])|(?<=[xX~\u0080-\U0010ffff]))"
    r"[:.\uff0e]?[ \t,\-\u00a0]*+"
)
# All that libphonenumber reads as a number, and more: digits, separators between them, and extensions.
_TELEPHONE = re.compile(
    rf"[\d(\[+\uff08\uff0b\uff3b][\d{_BETWEEN}]*+(?:{_EXTENSION}[\d{_BETWEEN}]++)*+", re.I
)
_LEAST_DIGITS = 4  # the fewest digits of a number in any country
_SOME_DIGITS = re.compile(rf"\d(?:[{_BETWEEN}]{{0,4}}\d){{{_LEAST_DIGITS - 1}}}")
_AFTER_TIME = len(":59")


class _Telephones:
    """The windows of telephone numbers.

    If `fewer` is false: numbers with at least `least` digits or a +, except those that our own expression covers. If
    it is true: all other numbers.
    """

    def __init__(self, least: int, fewer: bool) -> None:
        self._least, self._fewer = least, fewer

    def __call__(self, text: str) -> Iterator[tuple[int, int]]:
        for match in _TELEPHONE.finditer(text):
            if not _SOME_DIGITS.search(text, match.start(), match.end()):
                continue
            number = match.group()
            few = sum(map(str.isdecimal, number)) < self._least and not ("+" in number or "\uff0b" in number)
            if few == self._fewer and (few or not _all_ours(text, match.start(), match.end())):
                yield max(match.start() - 1, 0), min(match.end() + _AFTER_TIME, len(text))


def _all_ours(text: str, start: int, end: int) -> bool:
    """Tell whether our own expression covers all of a window that can be a number; numbers end in a digit or a #."""
    ours = _PHONE.match(text, start)
    return ours is not None and not any(
        letter.isdecimal() or letter in "#\uff03" for letter in text[ours.end() : end + 1]
    )


def _phone_searches(made: Any) -> list[tuple[Callable[[str], Places], Any]]:
    """Return pairs of windows and a recogniser of telephone numbers.

    Numbers with few digits and without a + are tested only for countries that have numbers so short.
    """
    least = {region: _least_digits(region) for region in made.supported_regions}
    several = sorted(least.values())[1]
    short = type(made)(supported_regions=tuple(region for region in least if least[region] < several))
    return [(_Telephones(several, False), made), (_Telephones(several, True), short)]


def _least_digits(region: str) -> int:
    """Return the fewest digits of a number that has the calling code of a region."""
    phonenumbers: Any = importlib.import_module("phonenumbers")
    code = phonenumbers.country_code_for_region(region)
    regions = phonenumbers.region_codes_for_country_code(code)
    found = (phonenumbers.PhoneMetadata.metadata_for_region(name).general_desc for name in regions)
    least: int = min(length for description in found for length in description.possible_length)
    return least


def _searches(kind: str, made: Any) -> list[tuple[Callable[[str], Places], Any]]:
    """Return the windows where Presidio can find anything of a kind, each with the recogniser to use there."""
    regex: Any = importlib.import_module("regex")  # Presidio compiles its expressions with this module
    if kind == "PHONE_NUMBER":
        return _phone_searches(made)
    if kind == "EMAIL_ADDRESS":
        return [(_Mails(regex), made)]
    if kind == "URL":
        return [(_Urls(regex, made.BASE_URL_REGEX), made)]
    rows: dict[str, tuple[str, str, Any]] = {
        "CREDIT_CARD": (r"\d(?:[ -]?\d){12}", r"[\d -]", regex),
        "IBAN_CODE": (r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]{4}){2}", "[A-Za-z0-9 -]", re),
        "US_SSN": (r"[0-9]{3}[- .]?[0-9]{2}[- .]?[0-9]{4}", "[0-9 .-]", re),
        "IP_ADDRESS": (
            r":(?::|(?:[0-9A-Fa-f]{1,4}:){5})|\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]",
            r"[\w:./%]",
            regex,
        ),
        "MAC_ADDRESS": (r"[:-](?:[0-9A-Fa-f]{2}[:-]){4}|\.[0-9A-Fa-f]{4}\.", r"[\w:.\-]", regex),
        # Presidio ignores case, and these four characters are upper or lower case forms of i, k and s.
        "CRYPTO": ("[13][a-zA-Z0-9\u0130\u0131\u017f\u212a]{25}", "[a-zA-Z0-9\u0130\u0131\u017f\u212a]", re),
    }
    anchor, inside, module = rows[kind]
    return [(Windows(anchor, inside, 0, module), made)]


class PatternSettings(Section):
    """The settings of `Recognisers`; the key stands in `detector` itself."""

    patterns: list[str] | Literal["all"]


class Recognisers(Detector):
    """Finds what the named recognisers find; `names` is `all` or a list of names from `RECOGNISERS`.

    Raises:
        InputError: a name is unknown, or Presidio or detect-secrets is not installed; the message names `key`.
    """

    name = "recognisers"
    Settings = PatternSettings
    codes = frozenset(RECOGNISERS)
    has_section = False

    @classmethod
    def of(cls, settings: PatternSettings, key: str) -> Recognisers:
        return cls(settings.patterns, f"{key}.patterns")

    @classmethod
    def asked(cls, section: DetectorSection) -> PatternSettings | None:
        return PatternSettings(patterns=section.patterns) if section.patterns else None

    @classmethod
    def kinds(cls, settings: PatternSettings) -> tuple[str, ...]:
        return RECOGNISERS if settings.patterns == "all" else tuple(settings.patterns)

    @classmethod
    def describe(cls, settings: PatternSettings) -> str:
        named = settings.patterns
        return f"patterns {named if isinstance(named, str) else ', '.join(named)}"

    def __init__(self, names: Sequence[str] | Literal["all"], key: str = "secrets.detector.patterns") -> None:
        chosen = list(RECOGNISERS) if names == "all" else list(dict.fromkeys(names))
        for name in chosen:
            if name not in RECOGNISERS:
                raise InputError(
                    f"{key}: no recogniser {name!r}{nearest(name, RECOGNISERS)}; there are "
                    f"{', '.join(RECOGNISERS)}"
                )
        self._key = key
        self._recognisers: dict[str, Any] = {}
        presidio = [name for name in chosen if name in _PRESIDIO]
        if presidio:
            try:
                module: Any = importlib.import_module("presidio_analyzer.predefined_recognizers")
            except ImportError:
                raise InputError(
                    f"{key}: Presidio is not installed: pip install 'confide[detectors]'"
                ) from None
            self._recognisers = {name: _make(module, name) for name in presidio}
        self._searches = [
            (name, windows, _asked(recogniser, name))
            for name, made in self._recognisers.items()
            for windows, recogniser in _searches(name, made)
        ]
        self._searches += [(name, windows, own) for name, (own, windows) in _OWN.items() if name in presidio]
        keys = [name for name in chosen if name in KEYS]
        self._keys = Keys(keys, key) if keys else None

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start.

        Raises:
            InputError: an expression ran out of time.
        """
        with _silent(self._key):
            found = find_joined(texts, self._find)
        if self._keys is not None:
            for spans, more in zip(found, self._keys.find(texts), strict=True):
                spans.update(more)
        return [sorted(spans) for spans in found]

    def _find(self, text: str) -> Iterator[Span]:
        for kind, windows, find in self._searches:
            for _, start, end in search([text], windows, find):
                yield Span(start, end, kind)


def _asked(recogniser: Any, kind: str) -> _Find:
    def find(text: str) -> Iterator[tuple[int, int]]:
        read = text.translate(_UPPER) if kind == "IBAN_CODE" else text
        for found in recogniser.analyze(read, [kind], None):
            yield found.start, found.end

    return find


def _make(module: Any, kind: str) -> Any:
    made = getattr(module, _PRESIDIO[kind])()
    if (
        kind == "EMAIL_ADDRESS"
    ):  # its validation downloads the list of public suffixes, and drops private hosts
        made.validate_result = lambda text: None
    return made


class _TimedOut(logging.Handler):
    """A log handler that raises InputError on a time-out: Presidio gives up after a minute and only logs it."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def emit(self, record: logging.LogRecord) -> None:
        if "timed out" in str(record.msg):
            raise InputError(f"{self._key}: a recogniser ran out of time on one document")


@contextmanager
def _silent(key: str) -> Iterator[None]:
    """Hide Presidio's log, and raise InputError if a recogniser gave up.

    The log contains the text that Presidio found, so none of it may get out.
    """
    logger = logging.getLogger("presidio-analyzer")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [_TimedOut(key)], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
