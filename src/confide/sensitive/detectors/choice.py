"""From a config section to its detector, and to what identifies its findings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata

from confide.config.schema import Detector as Settings
from confide.sensitive.detectors.entities import LEVELS, Entities
from confide.sensitive.detectors.patterns import RECOGNISERS, Recognisers
from confide.sensitive.detectors.spans import Detector, Span
from confide.utils.errors import InputError

FINDINGS = 1  # raised when a change here lets other spans be found: what was screened is then searched anew
# Packages that decide what is found.
_PACKAGES = ("spacy", "presidio-analyzer", "phonenumbers", "regex", "detect-secrets")


class _Several:
    """What any of several detectors finds."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.detectors = detectors

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        found: list[list[Span]] = [[] for _ in texts]
        for detector in self.detectors:
            for spans, more in zip(found, detector.find(texts), strict=True):
                spans += more
        return [sorted(spans) for spans in found]


def detector(settings: Settings, key: str = "secrets.detector") -> Detector:
    """The detector that a config section asks for.

    Raises InputError, naming the key, for an unknown recogniser, a missing package or pipeline, or none at all.
    """
    made: list[Detector] = []
    if settings.level is not None:
        made.append(Entities(settings.pipeline, settings.level, f"{key}.pipeline"))
    if settings.patterns:
        made.append(Recognisers(settings.patterns, f"{key}.patterns"))
    if not made:
        raise InputError(f"{key}: names neither a level of entities nor patterns")
    return made[0] if len(made) == 1 else _Several(made)


def kinds(settings: Settings) -> tuple[str, ...]:
    """The kinds that the detector of a config section may report."""
    entities = LEVELS[settings.level] if settings.level is not None else ()
    patterns = RECOGNISERS if settings.patterns == "all" else tuple(settings.patterns or ())
    return (*entities, *patterns)


def fingerprint(settings: Settings, made: Detector) -> str:
    """Hex of all that the findings of a section's detector depend on beside the text: what is asked for, what the
    pipeline says of itself, and the versions of what searches."""
    parts = made.detectors if isinstance(made, _Several) else [made]
    pipelines = [part.meta for part in parts if isinstance(part, Entities)]
    versions = {name: _version(name) for name in _PACKAGES}
    content = json.dumps([kinds(settings), pipelines, versions, FINDINGS], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
