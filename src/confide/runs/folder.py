"""Manage the run folder: where files lie, who may write, and whether the folder belongs to the config.

config.yaml  key  ledger.jsonl  guarantee.json   the run and what it promises
data/        checkpoints/  metrics.jsonl  tensorboard/   private: made from private rows
mlflow/      wandb/  tracking.json   what the trackers of the config keep here, and what they were told
released.json   digests of what was released; it and everything else that is read back is sealed (seal.py)
texts.json   texts-private.json   text that the released model wrote, and what was measured of it
release/     weights or adapter, tokenizer, guarantee.json, model card: what may leave the house
twin/        the non-private twin, if one was trained: the same data, key and draws
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from confide.config.loading import load
from confide.config.schema import Config
from confide.models.names import is_local
from confide.privacy.mechanisms.tuned import UNTUNED, SweepAccounting
from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey
from confide.runs.checkpoints import Checkpoints, removed_on_error
from confide.runs.given import Given
from confide.runs.records import RECORD
from confide.utils.errors import InputError
from confide.utils.files import close_to_others, private_files, write_text

if TYPE_CHECKING:
    from confide.distributed.ranks import Ranks

# A resumed run may evaluate more or less often, be shown elsewhere, and run on other machines. Every other key decides
# what the run computes.
_FREE = {("run",), ("tracking",)} | {
    ("train", key)
    for key in (
        "checkpoint_every",
        "eval_on_start",
        "eval_every",
        "micro_tokens",
        "gradient_checkpointing",
        "distributed",
        "twin_learning_rate",  # the private run has nothing of it, and its twin must have the same draws
    )
}
_FIRST: dict[tuple[str, ...], str] = {("train", "optimizer"): "adamw"}
"""The first default of each setting whose default has changed."""


# Files that mark a folder as a run's: the first of these is written before anything else. A config or a folder of data
# may be the user's own.
_OWN = (".lock", "key", "ledger.jsonl", f"data/{RECORD}")


def _what_lacks(root: Path) -> str:
    """Say what is wrong with a folder that should be that of a run and has no config."""
    if (root / "data").is_dir():
        return "nothing was trained here yet (it has no config.yaml); `confide train` with its config comes first"
    if not root.exists():
        return "not a run folder: there is no such folder; give the `run` of a trained config"
    with suppress(OSError):
        if within := sorted(each.parent.name for each in root.glob("*/config.yaml"))[:5]:
            return f"not a run folder, but one that holds runs: {', '.join(within)}; give one of them"
    return "not a run folder (it has no config.yaml); give the `run` of a trained config"


def _is_marked(folder: Path) -> bool:
    return any((folder / name).exists() for name in _OWN)


def _sweeps_around(folder: Path) -> list[Path]:
    """Return where the sweep of a folder would lie: in the folder itself, or two above `trials/0001`."""
    return [folder, folder.parent.parent] if folder.parent.name == "trials" else [folder]


def is_sweep(folder: Path) -> bool:
    """Return True if a folder is that of a sweep."""
    return (folder / "trials").is_dir() and (folder / "ledger.jsonl").is_file()


def refuse_twin(folder: Path) -> None:
    """Refuse the folder of a twin, or its `release/`, as if it were that of a run: such a model may not leave.

    Raises:
        InputError: it is one.
    """
    whole = folder.resolve()
    twin = whole.parent if whole.name == "release" else whole
    if twin.name == "twin" and _is_marked(twin.parent):  # a run of the user's own may be called so, too
        raise InputError(
            f"{folder} is the non-private twin of {twin.parent}, which may not be given away: give {twin.parent}, "
            "with --twin where a command has it"
        )


class Run:
    """Paths and records of one run.

    Attributes:
        tuning: how its settings are found; affects its noise and its claim.
        given: objects of a calling program that replace what the config would have loaded.
        releases: whether its model may leave the house when it is finished.
    """

    tuning: SweepAccounting = UNTUNED
    releases: bool = True

    def __init__(self, config: Config, twin: bool = False, given: Given | None = None):
        self.config = config
        self.given = given or Given()
        self.root = Path(config.run).expanduser()
        self.folder = self.root / "twin" if twin else self.root
        self.twin = twin

    @property
    def may_be_told_of(self) -> bool:
        """False for a twin, and for a trial: what a sweep claims rests on nobody knowing of the trials."""
        return self.tuning is UNTUNED and not self.twin

    def __getattr__(self, name: str) -> Path:
        files = {
            "config_path": "config.yaml",
            "given_path": "given.json",
            "ledger_path": "ledger.jsonl",
            "guarantee_path": "guarantee.json",
            "metrics_path": "metrics.jsonl",
            "audit_path": "audit.json",
            "evidence_path": "evidence.json",
            "released_path": "released.json",
            "release": "release",
        }
        if name in files:
            return self.folder / files[name]
        if name == "data":
            return self.root / "data"
        raise AttributeError(name)

    @classmethod
    def load(cls, folder: str | Path, twin: bool = False, given: Given | None = None) -> "Run":
        """Load the run in `folder`.

        Args:
            given: the objects that a calling program passed when the run was trained.

        Raises:
            InputError: there is no run.
        """
        root = Path(folder).expanduser()
        path = root / "config.yaml"
        if root.is_file() and root.suffix in (".yaml", ".yml"):
            raise InputError(f"{root} is a config; give its run folder, which is {load(root).run}")
        if any(map(is_sweep, _sweeps_around(root))):
            raise InputError(
                f"{root} belongs to a sweep: its trials are private, and the best was evaluated when it was released; "
                "to audit a model, train it by itself with `confide train`"
            )
        refuse_twin(root)
        if not path.is_file():
            raise InputError(f"{root}: {_what_lacks(root)}")
        config = load(path)
        run = cls(config.model_copy(update={"run": str(root)}), twin, given)
        if twin and not run.folder.is_dir():
            raise InputError(f"{root}: no twin was trained here; `confide train {root} --twin` does")
        return run

    def _make_folder(self) -> None:
        """Make the run folder, for its owner alone: nearly all in it is made from private rows.

        Raises:
            InputError: the folder holds something else that others may read, or belongs to another user.
        """
        self._refuse_foreign()
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in dict.fromkeys((self.root, self.folder)):
                folder.mkdir(mode=0o700, exist_ok=True)
                close_to_others(folder)
        except (FileExistsError, NotADirectoryError):
            raise InputError(
                f"run: {self.root} is not a folder that can be made: it, or a part of its path, is a file, or a link "
                "to nothing"
            ) from None
        except OSError as error:
            raise InputError(f"run: {self.root} cannot be made: {error.strerror}") from None
        for path in self._private():
            close_to_others(path)

    def _refuse_foreign(self) -> None:
        """Refuse a folder that holds something else, which would be written over, or which others may be using."""
        if not self.root.is_dir() or _is_marked(self.root):
            return
        if self.config_path.exists():
            raise InputError(
                f"run: {self.config_path} is not of a run, and would be written over: choose a folder that does not "
                "exist yet"
            )
        if any(self.root.iterdir()) and self.root.stat().st_mode & 0o077:
            raise InputError(
                f"run: {self.root} holds other files and can be read by others, and a run folder is for its owner "
                "alone: choose a folder that does not exist yet"
            )

    def _private(self) -> Iterator[Path]:
        """Yield every file and folder of the run that may not leave the house."""
        for path in self.root.iterdir():
            # If others could read a key, it is not restricted silently: they may have read it already.
            if path.name not in ("release", "key") and not path.is_symlink():
                yield path
                if path.is_dir():
                    inner = (each for each in path.rglob("*") if not each.is_symlink())
                    yield from (each for each in inner if "release" not in each.relative_to(path).parts)

    @property
    def begun(self) -> bool:
        """True if steps were recorded here: a run that has begun keeps the rows it began with."""
        return self.ledger_path.exists() or (self.root / "ledger.jsonl").exists()

    @property
    def command(self) -> str:
        """The command that begins this run, or goes on with it."""
        return f"confide train {self.root}{' --twin' if self.folder != self.root else ''}"

    def bind(self) -> None:
        """Make the folder this config's own, or refuse if it holds another run's steps, or a release alone."""
        if self.release.exists() and not self.ledger_path.exists():
            raise InputError(
                f"{self.folder} holds a release and no ledger of its run: a new run here would replace it, and would "
                "tell of the same text a second time. Choose another `run` folder"
            )
        self._make_folder()
        if self.ledger_path.exists() and self.config_path.exists():
            differing = differences(load(self.config_path).model_dump(mode="json"), self._values())
            if differing:
                raise InputError(
                    f"{self.folder} holds a run with another config (differs in {', '.join(differing)}): "
                    "choose another `run` folder. A second model of the same people gives away more about them than one"
                )
        write_text(self.config_path, self.config.to_yaml())
        if self.given:
            write_text(self.given_path, json.dumps(self.given.which()) + "\n")

    def check_given(self) -> None:
        """Check that a calling program's own objects are there if the run was made with some, and suit the config.

        Raises:
            InputError: they are not there, or there is an optimiser and the private run has `privacy.scales`
                or `privacy.common_tokens`.
        """
        privacy = self.config.privacy
        scaled = "scales" if privacy.scales else "common_tokens" if privacy.common_tokens else None
        if self.given.optimizer is not None and scaled and not self.twin:
            raise InputError(
                f"privacy.{scaled}: the program's own optimizer would get gradients in other units than the weights: "
                "leave this out, or take an optimizer of the config"
            )
        made_with = self.made_with()
        if "documents" in made_with and self.given.documents is None and self.begun:
            self.given = replace(self.given, documents=())  # the run keeps the rows that it began with
        objects = [name for name in made_with if name != "documents"]
        if objects and not self.given.names:
            raise InputError(
                f"{self.folder} was made by a program with its own {', '.join(objects)}: go on with confide.train or "
                "confide.audit and the same objects"
            )

    def made_with(self) -> list[str]:
        """Return the names of the objects that a calling program passed when the run was made."""
        if not self.given_path.exists():
            return []
        found: list[str] = json.loads(self.given_path.read_text("utf-8"))
        return found

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = self.config.model_dump(mode="json")
        return values

    def binding(self) -> str:
        """Return what ledger and key are bound to: the config, without the keys that a resumed run may change.

        The place of the text is left out, too, since the text is bound by its own digest. A setting at its
        default is left out, so that a setting that a later version adds changes no draw. A published key must
        give the same run everywhere. So for it, the place of a model's folder is left out, and so is whether a
        program loads the model. Where a default has changed, what is left out is the first one: a config that does
        not state the setting is another one since then, and must not have the noise of the one before.
        """
        free: set[tuple[str, ...]] = {*_FREE, ("data", "train"), ("data", "eval")}
        if self.config.privacy.published_key is not None and is_local(self.config.model):
            free.add(("model",))
        chosen = _chosen(self.config, free)
        names = self.given.names
        if self.config.privacy.published_key is not None:
            names = {name: value for name, value in names.items() if name not in ("model", "tokenizer")}
        if names:
            chosen["given"] = names
        return json.dumps(chosen, sort_keys=True)

    def key(self) -> RunKey:
        """Return the run key; it is made on first use. A published key comes from the config."""
        if self.config.privacy.published_key is not None:
            return RunKey.from_text(self.config.privacy.published_key)
        path = self.root / "key"
        if path.exists():
            return RunKey.load(path)
        if self.ledger_path.exists():
            raise InputError(
                f"{path} is missing, and without it the run cannot be resumed: put it back, or begin again in another "
                "`run` folder"
            )
        self._make_folder()
        return RunKey.create(path)

    def data_key(self) -> RunKey:
        """Return the key that the rows are prepared under: the key of the run that owns them."""
        return self.key()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that lets only one process write to a run.

        Raises:
            InputError: another process holds it.
        """
        self._make_folder()
        with private_files(), open(self.folder / ".lock", "w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.folder}: another process is working on this run") from None
            yield

    def once(self, name: str, compute: Callable[[], np.ndarray], ranks: "Ranks", seal: Seal) -> np.ndarray:
        """Return what `compute` gave the first time that the run, or its twin, asked: numbers that a choice rests on.

        Computed again in other micro-batches, the numbers would differ by rounding, and so might a choice between
        equals.

        Raises:
            InputError: the file that keeps them holds other numbers.
        """
        path = self.root / f"{name}.npy"
        if not ranks.any(path.exists()):
            computed = compute()
            if ranks.first:
                seal.write_array(path, name, computed)
        ranks.wait()
        try:
            return seal.read_array(path, name)
        except (Broken, OSError):
            raise InputError(
                f"{path} is damaged, or of another run: put it back if you can; this run rests on it, and cannot be "
                "resumed without it"
                if self.begun
                else f"{path} is damaged, or of another run: remove it, and it is computed again"
            ) from None

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints that the run resumes from."""
        return Checkpoints(self.folder / "checkpoints")

    @contextmanager
    def releasing(self) -> Iterator[Path]:
        """Give a folder to fill, which then becomes `release/` in one step."""
        building = self.folder / ".release"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        with removed_on_error(building):
            yield building
            building.chmod(0o755)  # others may read what may leave the house
            for path in building.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
            shutil.rmtree(self.release, ignore_errors=True)
            building.rename(self.release)


def _chosen(section: BaseModel, free: set[tuple[str, ...]], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings of a section that differ from their defaults, without those in `free`."""
    chosen: dict[str, Any] = {}
    dumped = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value, place = getattr(section, name), (*path, name)
        if place in free:
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        default = _FIRST.get(place, default)
        if isinstance(value, BaseModel):
            below = _chosen(value, free, place)
            if below or default is None:
                chosen[name] = below
        elif field.is_required() or value != default:
            chosen[name] = dumped[name]
    return chosen


def differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Return the keys in which two configs differ, as `train.steps`, but for those that a resumed run may change."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        return [d for n in names for d in differences(old.get(n), new.get(n), (*path, n))]
    is_free = any(path[: at + 1] in _FREE for at in range(len(path)))
    return [] if old == new or is_free else [".".join(path)]
