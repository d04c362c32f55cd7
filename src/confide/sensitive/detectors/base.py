"""What a way to detect says: its name, its settings, the kinds that it finds, and what its findings depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from confide.config import registry
from confide.config.schema import Detector as DetectorSection
from confide.config.schema import Section
from confide.sensitive.detectors.spans import Span


class Detector(ABC):
    """Finds what is sensitive in texts, of which it sees characters. To add one: write its class, and add its line to
    DETECTORS.

    `name`, `Settings`, `kinds` and `find` are enough; it is made with its settings and the key that names them in
    messages. The config then has a section of its name in `detector` and in `secrets.detector`; who writes that section
    asks for the detector.

    Attributes:
        name: as DETECTORS or the entry point has it.
        version: raised when it finds other spans in some text: what was screened is then searched anew.
        Settings: the keys of its section.
        packages: distributions whose versions decide what it finds, its own among them if another package brings it.
        codes: those of its kinds that are numbers and addresses, of which two spellings that differ in what separates
            their parts are one secret.
        is_slow: whether it runs a language model, so that processes for it are worth starting early.
        has_section: False of confide's first two, whose keys stand in `detector` itself.
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
        """Make it. Raises InputError, naming the key, for what its settings ask for and cannot be had."""
        made: Any = cls
        found: Detector = made(settings, f"{key}.{registry.section(cls.name)}")
        return found

    @classmethod
    def asked(cls, section: DetectorSection) -> Section | None:
        """Its settings in a section `detector` of the config; None where it is not asked for."""
        found: Section | None = getattr(section, registry.section(cls.name), None)
        return found

    @classmethod
    @abstractmethod
    def kinds(cls, settings: Any) -> tuple[str, ...]:
        """All kinds that its spans may have, in a fixed order."""

    @classmethod
    def describe(cls, settings: Any) -> str:
        """What it is, for the guarantee, which is published: nothing that says what is sensitive."""
        return f"detector {cls.name}"

    @classmethod
    def files(cls, settings: Any) -> tuple[str, ...]:
        """The files and folders that it reads: where they change, what was prepared is out of date."""
        return ()

    @classmethod
    def check_secrets(cls, settings: Any, key: str) -> None:
        """Raise InputError if what it finds cannot be the secrets of mechanism secret."""
        return

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """What a model that it runs says of itself, as JSON has it: its findings depend on that as well."""
        return None

    @abstractmethod
    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """One list a text, sorted by start."""
