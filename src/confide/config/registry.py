"""The names that a config may use, and the class behind each. To add one: write its file, add its line.

The names stand below the classes, in the form of packages' entry points: a config is read, and its faults are
reported, without importing any class but those it names. Other packages can add readers and detectors too, by an entry
point (`confide.readers`, `confide.detectors`); they are asked only for names that are not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from confide.config.task_facts import KNOWN, TaskFacts
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MECHANISMS = {
    "none": "confide.privacy.mechanisms.none:NonPrivate",
    "dp-sgd": "confide.privacy.mechanisms.dp_sgd:DPSGD",
    "uls": "confide.privacy.mechanisms.uls:UserLevelSampling",
    "els": "confide.privacy.mechanisms.els:ExampleLevelSampling",
    "group": "confide.privacy.mechanisms.group:GroupPrivacy",
    "owners": "confide.privacy.mechanisms.owners:Owners",
    "concentration": "confide.privacy.mechanisms.concentration:Concentration",
    "adaptive": "confide.privacy.mechanisms.adaptive:AdaptiveNoise",
    "secret": "confide.privacy.mechanisms.secret:SecretProtection",
    "selective": "confide.privacy.mechanisms.selective:Selective",
    "redacted": "confide.privacy.mechanisms.redacted:RedactedOnly",
    "crt": "confide.privacy.mechanisms.crt:ConfidentiallyRedacted",
}
TASKS = {
    "causal-lm": "confide.training.tasks.causal_lm:CausalLM",
    "masked-lm": "confide.training.tasks.masked_lm:MaskedLM",
    "classification": "confide.training.tasks.classification:Classification",
}

SPECIAL_KEYS = (
    "secrets",
    "detector",
    "redacted",
    "adaptive",
    "privacy.accountant",
    "privacy.bounding",
    "privacy.tau",
)
"""Only mechanisms that list these keys and sections in `reads` read them; under other mechanisms they are refused.
A new mechanism has a section of its own (`Settings`) and adds nothing here.
"""

AUTO = "auto"  # the format is recognised from the data
# In the order in which a file's first bytes are shown to them.
READERS = {
    "jsonl": "confide.data.readers.tables:JSONLines",
    "json": "confide.data.readers.tables:JSONArray",
    "csv": "confide.data.readers.tables:CSV",
    "tsv": "confide.data.readers.tables:TSV",
    "parquet": "confide.data.readers.tables:Parquet",
    "text": "confide.data.readers.text:Text",
    "maildir": "confide.data.readers.mail:Maildir",
    "mbox": "confide.data.readers.mail:Mbox",
    "hub": "confide.data.readers.hub:Hub",
    "code": "confide.data.readers.code:Code",
}

DETECTORS = {
    "entities": "confide.sensitive.detectors.entities:Entities",
    "recognisers": "confide.sensitive.detectors.patterns:Recognisers",
}


def section(name: str) -> str:
    """Return the key of the config section with the own settings of a mechanism or detector."""
    return name.replace("-", "_")


def mechanism(name: str) -> Any:
    """Return the class behind a mechanism's name, one of MECHANISMS."""
    return attribute(MECHANISMS[name])


def task(name: str) -> Any:
    """Return the class behind a task's name, one of TASKS."""
    return attribute(TASKS[name])


def task_facts(name: str) -> TaskFacts:
    """Return the facts of a task that need no model, by its name, one of TASKS."""
    facts: TaskFacts = KNOWN.get(name) or task(name).facts
    return facts


def attribute(path: str) -> Any:
    """Import the object at `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Registry:
    """Names and classes of one kind of thing: confide's own, and those of other packages.

    Attributes:
        kind: the word for this kind of thing, for error sentences.
        own: the place of each class, by name.
        group: the entry points by which packages add others.
    """

    kind: str
    own: Mapping[str, str]
    group: str

    def knows(self, name: str) -> bool:
        """Tell whether there is a class of this name, without importing it.

        Packages are consulted only for names that are not confide's own.

        Raises:
            InputError: packages contradict each other, or take a name of confide's own.
        """
        return name in self.own or name in self.plugins()

    def names(self) -> list[str]:
        """Return all names, confide's own first."""
        return [*self.own, *self.plugins()]

    def plugins(self) -> dict[str, EntryPoint]:
        """Return the entry points of packages, by name. None of them is imported yet.

        Raises:
            InputError: see `knows`.
        """
        from importlib.metadata import entry_points  # slow to import, compared with everything else here

        found: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=self.group), key=lambda entry: (entry.name, _package(entry))):
            what = f"a {self.kind} {entry.name!r}"
            if entry.name in self.own:
                raise InputError(
                    f"package {_package(entry)} brings {what}, and confide has one of this name: uninstall the "
                    "package, or have it renamed"
                )
            if entry.name in found:
                raise InputError(
                    f"packages {_package(found[entry.name])} and {_package(entry)} both bring {what}: uninstall one"
                )
            found[entry.name] = entry
        return found

    def get(self, name: str, kind: type) -> Any:
        """Return the class behind a known name; it is a subclass of `kind`.

        Raises:
            InputError: a package's class cannot be imported or is not of this kind; names the package.
        """
        if name in self.own:
            return self._checked(name, attribute(self.own[name]), kind)
        entry = self.plugins()[name]
        said = f"package {_package(entry)}: its {self.kind} {name!r} ({entry.value})"
        try:
            return self._checked(name, entry.load(), kind)
        except Exception as error:  # another package's module may raise anything at import
            reason = str(error).partition("\n")[0].rstrip(".")[:200]
            raise InputError(
                f"{said} cannot be used ({type(error).__name__}: {reason}); mend or uninstall the package"
            ) from None

    def _checked(self, name: str, found: Any, kind: type) -> Any:
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise TypeError(f"{found!r} is no subclass of {kind.__module__}.{kind.__name__}")
        if getattr(found, "name", None) != name:
            raise TypeError(f"its class says that its name is {getattr(found, 'name', None)!r}")
        return found


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


readers = Registry("reader", READERS, "confide.readers")
detectors = Registry("detector", DETECTORS, "confide.detectors")
