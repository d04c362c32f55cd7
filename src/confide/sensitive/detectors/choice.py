"""From a config section to its detectors, and to what identifies their findings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from confide.config import registry
from confide.config.schema import Detector as DetectorSection
from confide.config.schema import Policy, Section
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

# Raised when a change to entities or patterns lets other spans be found: what was screened is then searched anew.
FINDINGS = 1
# Packages that decide what is found.
_PACKAGES = ("spacy", "presidio-analyzer", "phonenumbers", "regex", "detect-secrets")

Asked = Sequence[tuple[type[Detector], Section]]
"""The detectors that are asked for, each with its settings."""


class Detectors:
    """What any of several detectors finds."""

    def __init__(self, parts: Sequence[Detector]) -> None:
        self.parts = tuple(parts)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start."""
        if len(self.parts) == 1:
            return self.parts[0].find(texts)
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self.parts:
            for spans, more in zip(found, detector.find(texts), strict=True):
                spans += more
        return [sorted(spans) for spans in found]


def asked(section: DetectorSection) -> Asked:
    """The detectors that a section of the config asks for.

    Raises:
        InputError: another package brings one of them, and it cannot be imported.
    """
    sections = set(type(section).model_fields) - set(Policy.model_fields)
    names = [*registry.DETECTORS]
    if sections - {registry.section(name) for name in names}:
        names += [name for name in registry.detectors.plugins() if registry.section(name) in sections]
    classes: list[type[Detector]] = [registry.detectors.get(name, Detector) for name in names]
    return [(each, settings) for each in classes if (settings := each.asked(section)) is not None]


def made(parts: Asked, key: str) -> Detectors:
    """The detectors. Raises InputError, naming the key, for an unknown recogniser, a missing package or pipeline, or
    none at all."""
    if not parts:
        raise InputError(f"{key}: names neither a level of entities nor patterns")
    return Detectors([each.of(settings, key) for each, settings in parts])


def detector(section: DetectorSection, key: str = "secrets.detector") -> Detectors:
    """What a config section asks for, made."""
    return made(asked(section), key)


def kinds(section: DetectorSection) -> tuple[str, ...]:
    """The kinds that the detectors of a config section may report."""
    return kinds_of(asked(section))


def kinds_of(parts: Asked) -> tuple[str, ...]:
    """The kinds that detectors may report."""
    return tuple(kind for each, settings in parts for kind in each.kinds(settings))


def fingerprint(parts: Asked, found: Detectors) -> str:
    """Hex of all that findings depend on beside the text: what is asked for, what a pipeline says of itself, and the
    versions of what searches.

    Laid out as it was when there were entities and patterns alone, and other detectors behind them: a person's
    screening stays good.
    """
    metas = [part.meta for part in found.parts if part.meta is not None]
    versions = {name: _version(name) for name in _PACKAGES}
    others = [_identity(each, settings) for each, settings in parts if each.has_section]
    content = json.dumps([kinds_of(parts), metas, versions, FINDINGS, *others], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _identity(each: type[Detector], settings: Section) -> list[Any]:
    packages = {name: _version(name) for name in each.packages}
    return [each.name, each.version, settings.model_dump(mode="json"), packages]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
