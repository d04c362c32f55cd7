"""Search with regular expressions of a user: check them when they are made, and bound the time of each search.

Some expressions, such as `(a|aa)+$`, backtrack for centuries over a text of forty characters. So the search uses the
module `regex`, which has a time-out. An expression that this module reads differently from Python is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import regex

from confide.utils.errors import InputError

SECONDS = 10.0
"""Seconds of processor time that an expression may take for a text; `_RATE` adds more for long texts."""
_RATE = 100_000  # characters a second, less than a tenth of the speed of ordinary expressions
_LARGEST = 100_000  # characters of an expression; each counts as often as `{}` repeats it

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL)
# Syntax that only `regex` knows: matches with errors, as in (ann){e<=1}, and named classes, as in [[:alpha:]].
_OTHERWISE = {
    "put a backslash before {, which stands for itself here": re.compile(
        r"(?<!\\)(?:\\\\)*\{[\d\s<=]*[eids]"
    ),
    "name no class as in [:alpha:], which Python does not know": re.compile(r"\[:\^?\w+:\]"),
}


class Expression:
    """A regular expression in Python's syntax.

    Messages name `key`. They never show the expression, since it may contain a secret.

    Raises:
        InputError: the expression is invalid, matches the empty string, or is too large.
    """

    def __init__(self, expression: str, key: str) -> None:
        self._key = key
        if len(expression) > _LARGEST:
            raise self._too_large()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # these forms are refused below
                python = re.compile(expression)
        except re.error as error:
            raise InputError(
                f"{key}: not a regular expression: {error.msg} at character {error.pos}"
            ) from None
        except (ValueError, OverflowError):
            raise InputError(f"{key}: not a regular expression: a number in it is too large") from None
        except RecursionError:
            raise InputError(f"{key}: has too many groups within one another") from None
        for remedy, form in _OTHERWISE.items():
            if form.search(expression):
                raise InputError(f"{key}: {remedy}")
        if _size(expression) > _LARGEST:
            raise self._too_large()
        if python.search(""):
            raise self._matches_nothing()
        try:
            self._compiled = regex.compile(expression, regex.V0)
        except (regex.error, RecursionError):
            raise InputError(f"{key}: cannot be searched for: write it in a simpler way") from None

    def spans(self, text: str, where: str) -> Iterator[tuple[int, int]]:
        """Yield the characters [start, end) of each match, from left to right, without overlaps.

        Raises:
            InputError: a match is empty, or the search takes too long; then the message has `where`, the text's name.
        """
        try:
            for match in self._compiled.finditer(text, timeout=SECONDS + len(text) / _RATE):
                if match.start() == match.end():
                    raise self._matches_nothing()
                yield match.span()
        except TimeoutError:
            raise InputError(
                f"{self._key}: takes more than {SECONDS + len(text) / _RATE:.0f} s for one text ({where}): it goes "
                "back and forth; write it without repeats of repeats, such as (a+)+ or (a|aa)+"
            ) from None

    def _too_large(self) -> InputError:
        return InputError(
            f"{self._key}: is too large, with all its repeats in braces: at most {_LARGEST:,} characters"
        )

    def _matches_nothing(self) -> InputError:
        return InputError(f"{self._key}: matches the empty string, which is nobody's secret")


def _size(expression: str) -> int:
    """Count the characters of an expression; a part with a number in braces counts that many times."""
    groups = [
        [0, 0]
    ]  # for each open group: the size of the part before, and the size of the item that a repeat would repeat
    for token in _TOKEN.finditer(expression):
        text, last = token.group(), groups[-1]
        if text == "(":
            groups.append([0, 0])
        elif text == ")" and len(groups) > 1:
            size = sum(groups.pop())
            groups[-1] = [sum(groups[-1]), max(size, 1)]
        elif token.group(1) is not None:
            last[1] *= (
                max(1, *(int(count) for count in token.groups() if count)) if any(token.groups()) else 1
            )
        else:
            groups[-1] = [sum(last), len(text)]
    return sum(map(sum, groups))
