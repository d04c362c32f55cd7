"""Find what a finished run has released, check that it is that, and load it."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from confide.config import registry
from confide.config.loading import load
from confide.config.task_facts import TaskFacts
from confide.models.names import is_adapter, public_name
from confide.privacy.guarantee import Guarantee
from confide.runs import preparation
from confide.runs.folder import Run, is_sweep, refuse_twin
from confide.utils.errors import InputError

CARD = "README.md"
GUARANTEE = "guarantee.json"


def is_run(folder: Path) -> bool:
    """Return True if a folder is that of a run or of a sweep, which know what they released."""
    return (folder / "config.yaml").exists() or is_sweep(folder)


def run_of(path: Path) -> Path:
    """Return the run folder around a `release/`, if there is one; else the path itself."""
    whole = path.resolve()
    return whole.parent if whole.name == "release" and is_run(whole.parent) else path


def release_in(path: Path) -> Path | None:
    """Return the release in a folder: its `release/`, or the folder itself. A run folder has a guarantee, too.

    Raises:
        InputError: it is that of a twin.
    """
    refuse_twin(path)
    return next((folder for folder in (path / "release", path) if (folder / GUARANTEE).is_file()), None)


def digests(folder: Path) -> dict[str, str]:
    """Digest each file of a release by SHA-256, in hex, except the model card, which people may edit."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CARD)
    found = {}
    for path in paths:
        with open(path, "rb") as stream:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


@dataclass(frozen=True)
class Released:
    """The released model of a finished run, of its twin, or of a sweep.

    Attributes:
        folder: `release/`.
    """

    run: Run
    folder: Path

    @classmethod
    def of(cls, root: Path, twin: bool = False) -> "Released":
        """Find what a run has released.

        Raises:
            InputError: there is no run, it is not finished, or its `release/` holds something else.
        """
        if not twin and is_sweep(root):
            return cls(*_of_sweep(root))
        run = Run.load(root, twin)
        again = run.command
        if not run.release.is_dir():
            if run.checkpoints.last() is None:
                raise InputError(f"{run.folder}: nothing was trained here yet; `{again}` does")
            raise InputError(
                f"{run.folder}: the training is not finished, so nothing is released; `{again}` goes on"
            )
        if _listed(run.released_path) != digests(run.release):
            raise InputError(
                f"{run.release} does not hold what this run released: remove it, and `{again}` releases again without "
                "taking a step"
            )
        return cls(run, run.release)

    @property
    def facts(self) -> TaskFacts:
        return registry.task_facts(self.run.config.task)

    @property
    def is_adapter(self) -> bool:
        return is_adapter(self.folder)

    @cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee.load(self.folder / GUARANTEE)

    @cached_property
    def tokenizer(self) -> Any:
        from confide.models.released import load_tokenizer

        return load_tokenizer(self.folder, self.run.config)

    @property
    def base_name(self) -> str:
        """Return the base model's name, in public."""
        return public_name(self.run.config.model)

    def base(self) -> Any:
        """Load the model that the run began with.

        Raises:
            InputError: a program brought it, or it cannot be loaded.
        """
        from confide.models.released import load_base

        self._need_base()
        return load_base(self.run.config, self._classes(), len(self.tokenizer))

    def model(self) -> Any:
        """Load the released model: whole, or the base with the adapter on it.

        Raises:
            InputError: it cannot be loaded.
        """
        from confide.models.released import load_released

        if self.is_adapter:
            self._need_base()
        return load_released(self.folder, self.run.config, self._classes(), len(self.tokenizer))

    def _need_base(self) -> None:
        if "model" in self.run.made_with():
            raise InputError(
                f"{self.run.root} was trained by a program with a model of its own, and confide cannot load that: load "
                f"{self.folder} in the program"
            )

    def _classes(self) -> int | None:
        """Return how many classes there are, which an adapter of a classifier does not say."""
        if not self.facts.has_classes or not self.is_adapter:
            return None
        prepared = preparation.load(self.run.config, self.run.data, self.run.data_key(), self.run.given)
        if prepared is None:
            raise InputError(
                f"{self.run.data}: the prepared rows are gone, which say how many classes there are: `confide prepare "
                f"{self.run.root}` makes them again"
            )
        return prepared.classes


@dataclass(frozen=True)
class Alone:
    """A released causal language model without its run, as whoever was given it has it.

    Nothing says whether it is what a run released.

    Attributes:
        folder: what was released.
        base_at: an adapter's base, a folder or a hub name; None: the one that the adapter names.
    """

    folder: Path
    base_at: str | None = None

    @classmethod
    def of(cls, root: Path, base_at: str | None = None) -> "Alone | None":
        """Find a release where there is no run: a copy of it, or a run folder of which only it was kept."""
        folder = None if is_run(root) else release_in(root)
        return None if folder is None else cls(folder, base_at)

    @cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee.load(self.folder / GUARANTEE)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from confide.models.released import load_alone

        return load_alone(self.folder, self.base_at)

    @property
    def tokenizer(self) -> Any:
        return self._loaded[1]

    @property
    def base_name(self) -> str:
        """Raise InputError, as `base` does."""
        raise InputError(f"--beside: {self.folder} is a release without its run, and has nothing beside it")

    def base(self) -> Any:
        """Raise InputError: only the run knows which model it began with, and how."""
        return self.base_name

    def model(self) -> Any:
        """Load the released model: whole, or its base with the adapter on it."""
        return self._loaded[0]


def _of_sweep(root: Path) -> tuple[Run, Path]:
    """Find what a sweep has released, and the config of the trial that it comes from."""
    release = root / "release"
    if not release.is_dir():
        raise InputError(
            f"{root}: the sweep is not finished, so nothing is released; the same `confide tune` goes on"
        )
    held = digests(release)
    for path in sorted(root.glob("trials/*/released.json")):
        if _listed(path) == held:
            config = load(path.parent / "config.yaml")
            return Run(config.model_copy(update={"run": str(root)})), release
    raise InputError(
        f"{release} does not hold what this sweep released: remove it, and the same `confide tune` releases again"
    )


def _listed(path: Path) -> dict[str, str] | None:
    """Return the digests that a run wrote when it released; their seal is `release.check_release`'s to check."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return (
        {name: value for name, value in found.items() if name != "seal"} if isinstance(found, dict) else None
    )
