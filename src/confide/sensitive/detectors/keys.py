"""Find keys and tokens in code and configuration with the expressions of detect-secrets, without network access.

A token is recognised by its form. So a password without a typical form is not found here: list it, or write an
expression.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confide.sensitive.detectors.spans import Span
from confide.sensitive.detectors.windows import Windows, find_joined
from confide.utils.errors import InputError

KEYS = ("AWS_KEY", "PRIVATE_KEY", "JSON_WEB_TOKEN", "ACCESS_TOKEN", "URL_PASSWORD")

_LINE = r"[^\n]"
_FORM = r"[A-Za-z0-9_\-]{20}(?<![-_]{20})"  # a part of most tokens; no line of dashes contains it


@dataclass(frozen=True)
class _Plugin:
    """A plugin of detect-secrets.

    Attributes:
        module: the plugin's module.
        name: the plugin's class.
        kind: the kind of its findings.
        anchor: an expression that matches within each of its matches.
        grouped: whether only a group of a match is the secret; the rest is a name.
        only: the number of the one expression to use; None uses all.
        own: an expression to use in place of the plugin's.
    """

    module: str
    name: str
    kind: str = "ACCESS_TOKEN"
    anchor: str = _FORM
    grouped: bool = False
    only: int | None = None
    own: str | None = None


_NPM = r":_authToken=\s*(npm_[^\n]+|[A-Fa-f0-9-]{36})"
_PLUGINS = (
    _Plugin("aws", "AWSKeyDetector", "AWS_KEY", only=0),
    _Plugin("aws", "AWSKeyDetector", "AWS_KEY", r"['\"][\w/+]{40}['\"]", True, only=1),
    _Plugin("basic_auth", "BasicAuthDetector", "URL_PASSWORD", r"://[^\s/@]+@", grouped=True),
    _Plugin("artifactory", "ArtifactoryDetector", anchor=r"A(?:KC|P[\dABCDEF])[a-zA-Z0-9]{8}"),
    _Plugin("azure_storage_key", "AzureStorageKeyDetector", anchor="AccountKey="),
    _Plugin("cloudant", "CloudantDetector", grouped=True),
    _Plugin("discord", "DiscordBotTokenDetector"),
    _Plugin("github_token", "GitHubTokenDetector"),
    _Plugin("gitlab_token", "GitLabTokenDetector"),
    _Plugin("ibm_cloud_iam", "IbmCloudIamDetector", grouped=True),
    _Plugin("ibm_cos_hmac", "IbmCosHmacDetector", grouped=True),
    _Plugin("mailchimp", "MailchimpDetector"),
    # The expression of the plugin begins with `//.+/`, which takes quadratic time on a line that repeats it.
    _Plugin("npm", "NpmDetector", anchor=":_authToken=", grouped=True, own=_NPM),
    _Plugin("openai", "OpenAIDetector"),
    _Plugin("pypi_token", "PypiTokenDetector"),
    _Plugin("sendgrid", "SendGridDetector"),
    _Plugin("slack", "SlackDetector", anchor=r"(?:[xX][oO][xX].-\d|/T[a-zA-Z0-9_]+/B)"),
    _Plugin("softlayer", "SoftlayerDetector", grouped=True),
    _Plugin("square_oauth", "SquareOAuthDetector", anchor="sq0csp-"),
    _Plugin("stripe", "StripeDetector"),
    _Plugin("telegram_token", "TelegramBotTokenDetector"),
    _Plugin("twilio", "TwilioKeyDetector"),
)
_NAME = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?"
_BEGIN = re.compile(rf"(?:-{{2,5}} ?)?BEGIN {_NAME}(?: ?-{{2,5}})?|PuTTY-User-Key-File-\d")
_END = re.compile(rf"(?:-{{2,5}} ?)?END {_NAME}(?: ?-{{2,5}})?|Private-(?:MAC|Hash): *[0-9a-fA-F]*")
# The lines of a key without an end line: headers (`Proc-Type: 4`), then base64, perhaps in quotes.
_BODY = re.compile(r"[^\n]*+(?:\n[\s\"'+#>|]*+(?:[\w-]++: [^\n]*+|[A-Za-z0-9+/=\\]{16,}+[\"',;+ \t\\]*+))*+")
_HEADER = re.compile(r"eyJ[A-Za-z0-9\-_=]{1,8192}+\.[A-Za-z0-9\-_=]++(?:\.[A-Za-z0-9\-_.+/=]*+)?")
_BEFORE, _AFTER = ' \t=:"', ' \t"'  # characters next to a token that a match may include

_Find = Callable[[str], Iterator[Span]]


class Keys:
    """Finds keys and tokens of the given kinds, a subset of `KEYS`.

    Raises:
        InputError: detect-secrets is not installed; the message names `key`.
    """

    def __init__(self, kinds: Sequence[str], key: str) -> None:
        self._searches: list[_Find] = []
        try:
            if "JSON_WEB_TOKEN" in kinds:
                self._searches.append(_WebTokens())
            by_anchor: dict[str, list[_Plugin]] = {}
            for plugin in _PLUGINS:
                if plugin.kind in kinds:
                    by_anchor.setdefault(plugin.anchor, []).append(plugin)
            self._searches += [_Lines(plugins) for plugins in by_anchor.values()]
        except ImportError:
            raise InputError(
                f"{key}: detect-secrets is not installed: pip install 'confide[detectors]'"
            ) from None
        self._blocks = "PRIVATE_KEY" in kinds

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
        found = find_joined(texts, lambda text: (span for search in self._searches for span in search(text)))
        if self._blocks:
            for spans, text in zip(found, texts, strict=True):
                spans.update(_private_keys(text))
        return [sorted(spans) for spans in found]


def _plugin(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)


def _expressions(plugin: _Plugin) -> Sequence[re.Pattern[str]]:
    theirs: Sequence[re.Pattern[str]] = _plugin(plugin.module, plugin.name).denylist
    return theirs if plugin.own is None else [re.compile(plugin.own)]


class _Lines:
    """Searches with several plugins that share an anchor; it reads the lines that contain the anchor, one by one."""

    def __init__(self, plugins: Sequence[_Plugin]) -> None:
        self._windows = Windows(plugins[0].anchor, _LINE)
        self._expressions = [
            (expression, plugin)
            for plugin in plugins
            for number, expression in enumerate(_expressions(plugin))
            if plugin.only in (None, number)
        ]

    def __call__(self, text: str) -> Iterator[Span]:
        for first, last in self._windows(text):
            first += text[first] == "\n"
            line = text[first : last - (text[last - 1] == "\n")]
            for expression, plugin in self._expressions:
                for match in expression.finditer(line):
                    start, end = _secret(match) if plugin.grouped else match.span()
                    token = line[start:end].rstrip(_AFTER)
                    start, end = start + len(token) - len(token.lstrip(_BEFORE)), start + len(token)
                    yield Span(first + start, first + end, plugin.kind)


def _secret(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the first group that takes part in a match, or of the whole match if none does."""
    spans = (match.span(group) for group in range(1, len(match.groups()) + 1))
    return next((span for span in spans if span[0] >= 0), match.span())


class _WebTokens:
    """Finds JSON web tokens (header, payload, perhaps a signature) whose header and payload are valid."""

    def __init__(self) -> None:
        self._is_valid: Callable[[str], bool] = _plugin("jwt", "JwtTokenDetector").is_formally_valid

    def __call__(self, text: str) -> Iterator[Span]:
        for match in _HEADER.finditer(text):
            if self._is_valid(".".join(match.group().split(".")[:2])):
                yield Span(*match.span(), "JSON_WEB_TOKEN")


def _private_keys(text: str) -> Iterator[Span]:
    """Yield each key block from its first to its last line; if that is missing, with the lines that look like a key."""
    begins = list(_BEGIN.finditer(text)) if "BEGIN " in text or "PuTTY-User" in text else []
    limits = [match.start() for match in begins[1:]] + [len(text)]
    for begin, limit in zip(begins, limits, strict=False):
        end = _END.search(text, begin.end(), limit)
        if end is None:
            end = _BODY.match(text, begin.end(), limit)
        yield Span(begin.start(), begin.end() if end is None else end.end(), "PRIVATE_KEY")
