"""Make the detectors that a config section asks for, and fingerprint all that their findings depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from confide.config import registry
from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.config.schema import Policy
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.spans import Span
from confide.utils.errors import InputError

# Raise this number when a change to `entities` or `patterns` changes the spans that they find. Text that was screened
# before is then searched again.
FINDINGS = 1
# The packages whose versions decide what is found.
_PACKAGES = ("spacy", "presidio-analyzer", "phonenumbers", "regex", "detect-secrets")

Asked = Sequence[tuple[type[Detector], Section]]
"""The detector classes that a config asks for, each with its settings."""


class Detectors:
    """Several detectors as one: it finds whatever any of them finds."""

    def __init__(self, parts: Sequence[Detector]) -> None:
        self.parts = tuple(parts)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
        if len(self.parts) == 1:
            return self.parts[0].find(texts)
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self.parts:
            for spans, more in zip(found, detector.find(texts), strict=True):
                spans += more
        return [sorted(spans) for spans in found]


def asked(section: DetectorSection) -> Asked:
    """Return the detectors that a section of the config asks for.

    Raises:
        InputError: a detector of another package cannot be imported.
    """
    sections = set(type(section).model_fields) - set(Policy.model_fields)
    names = [*registry.DETECTORS]
    if sections - {registry.section(name) for name in names}:
        names += [name for name in registry.detectors.plugins() if registry.section(name) in sections]
    classes: list[type[Detector]] = [registry.detectors.get(name, Detector) for name in names]
    return [(each, settings) for each in classes if (settings := each.asked(section)) is not None]


def made(parts: Asked, key: str) -> Detectors:
    """Make the detectors.

    Raises:
        InputError: `parts` is empty, a recogniser is unknown, or a package or pipeline is missing; the message names
            the key.
    """
    if not parts:
        raise InputError(f"{key}: names neither a level of entities nor patterns")
    return Detectors([each.of(settings, key) for each, settings in parts])


def detector(section: DetectorSection, key: str = "secrets.detector") -> Detectors:
    """Make the detectors that a config section asks for."""
    return made(asked(section), key)


def kinds(section: DetectorSection) -> tuple[str, ...]:
    """Return the kinds that the detectors of a config section may report."""
    return kinds_of(asked(section))


def kinds_of(parts: Asked) -> tuple[str, ...]:
    """Return the kinds that these detectors may report."""
    return tuple(kind for each, settings in parts for kind in each.kinds(settings))


def fingerprint(parts: Asked, found: Detectors) -> str:
    """Return a hex digest of everything that the findings depend on besides the text.

    It covers the kinds that are asked for, the metadata of the pipeline, and the versions of the detectors and their
    packages. Entities and patterns come first, in the layout from the time when they were the only detectors. Other
    detectors follow them. So a screening that a person did with an earlier version stays valid.
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
