"""The base class of detectors: a name, settings, the kinds of its findings, and everything the findings depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from confide.config import registry
from confide.config.fields import Section
from confide.config.schema import Detector as DetectorSection
from confide.sensitive.detectors.spans import Span


class Detector(ABC):
    """Finds the sensitive spans of texts.

    A detector sees the characters of a text and nothing else. To add a detector, write its class and add a line to
    DETECTORS. Define at least `name`, `Settings`, `kinds` and `find`. The constructor takes the settings and the
    config key that error messages name. The config then has a section of the detector's name in `detector` and in
    `secrets.detector`. A config that has the section asks for the detector.

    Attributes:
        name: the name in DETECTORS or of the entry point.
        version: to be raised whenever the detector finds other spans in some text. Text that was screened before is
            then searched again.
        Settings: the keys of its section.
        packages: the distributions whose versions decide what it finds. A detector from another package names that
            package, too.
        codes: those of its kinds that are numbers and addresses. Two spellings of such a code that differ only in
            separators are one secret.
        is_slow: whether it runs a language model. If so, starting processes for it pays off early.
        has_section: False for confide's two oldest detectors, whose keys stand in `detector` itself.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    Settings: ClassVar[type[Section]]
    packages: ClassVar[tuple[str, ...]] = ()
    codes: ClassVar[frozenset[str]] = frozenset()
    is_slow: ClassVar[bool] = False
    has_section: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: Any, key: str) -> Detector:
        """Make a detector with these settings.

        Raises:
            InputError: something that the settings ask for is not available; the message names the key.
        """
        made: Any = cls
        found: Detector = made(settings, f"{key}.{registry.section(cls.name)}")
        return found

    @classmethod
    def asked(cls, section: DetectorSection) -> Section | None:
        """Return its settings in a `detector` section of the config, or None if the section does not ask for it."""
        found: Section | None = getattr(section, registry.section(cls.name), None)
        return found

    @classmethod
    @abstractmethod
    def kinds(cls, settings: Any) -> tuple[str, ...]:
        """Return all kinds that its spans may have, in a fixed order."""

    @classmethod
    def describe(cls, settings: Any) -> str:
        """Describe the detector for the guarantee.

        The guarantee is published, so the text must not tell what is sensitive.
        """
        return f"detector {cls.name}"

    @classmethod
    def files(cls, settings: Any) -> tuple[str, ...]:
        """Return the files and folders that it reads. If one changes, prepared data is out of date."""
        return ()

    @classmethod
    def check_secrets(cls, settings: Any, key: str) -> None:
        """Raise InputError if its findings cannot serve as the secrets of mechanism `secret`."""
        return

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """The metadata of the model that it runs, as JSON values; its findings depend on them as well."""
        return None

    @abstractmethod
    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return one list of spans for each text, sorted by start."""
