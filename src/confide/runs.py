"""The run folder: what lies where, who may write, and whether it belongs to the config.

config.yaml  key  ledger.jsonl  guarantee.json   the run and what it promises
data/        checkpoints/  metrics.jsonl  tensorboard/   private: made from private rows
release/     weights or adapter, tokenizer, guarantee.json, model card: what may leave the house
twin/        the non-private twin, if one was trained: the same data, key and draws
"""

import fcntl
import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from confide import models
from confide.config import load
from confide.disk import sync, whole_file, write_text
from confide.errors import InputError
from confide.mechanisms.tuned import UNTUNED, Tuning
from confide.noise import RunKey
from confide.ranks import Ranks
from confide.settings import Config

# A resumed run may look more or less often, and run on other machines; everything else decides what it computes.
_FREE = {("run",)} | {
    ("train", key)
    for key in (
        "checkpoint_every",
        "eval_on_start",
        "eval_every",
        "micro_tokens",
        "gradient_checkpointing",
        "distributed",
    )
}


def _sweeps_around(folder: Path) -> list[Path]:
    """Where a sweep would lie that a folder belongs to: itself, or two above `trials/0001`."""
    return [folder, folder.parent.parent] if folder.parent.name == "trials" else [folder]


_CHECKPOINT = re.compile(r"step-(\d{8})")


class Run:
    """Paths and records of one run.

    Attributes:
        tuning: how its settings are found; bears on its noise and its claim.
        releases: whether its model may leave the house when it is finished.
    """

    tuning: Tuning = UNTUNED
    releases: bool = True

    def __init__(self, config: Config, twin: bool = False):
        self.config = config
        self.root = Path(config.run)
        self.folder = self.root / "twin" if twin else self.root
        self.twin = twin

    def __getattr__(self, name: str) -> Path:
        files = {
            "config_path": "config.yaml",
            "ledger_path": "ledger.jsonl",
            "guarantee_path": "guarantee.json",
            "metrics_path": "metrics.jsonl",
            "audit_path": "audit.json",
            "evidence_path": "evidence.json",
            "checkpoints": "checkpoints",
            "release": "release",
            "tensorboard": "tensorboard",
        }
        if name in files:
            return self.folder / files[name]
        if name == "data":
            return self.root / "data"
        raise AttributeError(name)

    @classmethod
    def load(cls, folder: str | Path, twin: bool = False) -> "Run":
        """The run that lies in `folder`.

        Raises:
            InputError: there is no run.
        """
        root = Path(folder)
        path = root / "config.yaml"
        if root.is_file() and root.suffix in (".yaml", ".yml"):
            raise InputError(f"{root} is a config; give its run folder, which is {load(root).run}")
        if any(
            (sweep / "trials").is_dir() and (sweep / "ledger.jsonl").is_file()
            for sweep in _sweeps_around(root)
        ):
            raise InputError(
                f"{root} belongs to a sweep: its trials are private, and the best was evaluated when it was released; "
                "to audit a model, train it by itself with `confide train`"
            )
        if not path.is_file():
            trained = "nothing was trained here yet" if (root / "data").is_dir() else "not a run folder"
            raise InputError(f"{root}: {trained} (it has no config.yaml); give the `run` of a trained config")
        config = load(path)
        run = cls(config.model_copy(update={"run": str(root)}), twin)
        if twin and not run.folder.is_dir():
            raise InputError(f"{root}: no twin was trained here; `confide train {root} --twin` does")
        return run

    def _make_folder(self) -> None:
        """The run folder, for its owner alone: nearly all in it is made from private rows."""
        if not self.root.exists():
            self.root.mkdir(parents=True)
            self.root.chmod(0o700)
        self.folder.mkdir(exist_ok=True)

    @property
    def begun(self) -> bool:
        """Whether steps were recorded here: a run that has begun goes on with the rows it began with."""
        return self.ledger_path.exists() or (self.root / "ledger.jsonl").exists()

    def bind(self) -> None:
        """Make the folder this config's own, or refuse if it holds another run's steps."""
        self._make_folder()
        if self.ledger_path.exists() and self.config_path.exists():
            differing = _differences(load(self.config_path).model_dump(mode="json"), self._values())
            if differing:
                raise InputError(
                    f"{self.folder} holds a run with another config (differs in {', '.join(differing)}): "
                    "choose another `run` folder, or remove this one"
                )
        write_text(self.config_path, self.config.to_yaml())

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = self.config.model_dump(mode="json")
        return values

    def binding(self) -> str:
        """What ledger and key are bound to: the config without the keys that a resumed run may change, and
        without where the text lay, since what it holds is bound by its own digest.

        A published key is to repeat everywhere, so nor does it matter to it where a model's folder lies.
        """
        values = self._values()
        if self.config.privacy.published_key is not None and models.is_local(self.config.model):
            values["model"] = None
        for *sections, key in (*sorted(_FREE), ("data", "train"), ("data", "eval")):
            place = values
            for section in sections:
                place = place[section]
            place.pop(key)
        return json.dumps(values, sort_keys=True)

    def key(self) -> RunKey:
        """The run key; made on first use. A published key comes from the config."""
        if self.config.privacy.published_key is not None:
            return RunKey.from_text(self.config.privacy.published_key)
        path = self.root / "key"
        if path.exists():
            return RunKey.load(path)
        if self.ledger_path.exists():
            raise InputError(f"{path} is missing, and without it the run cannot be resumed")
        self._make_folder()
        return RunKey.create(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process writes to a run.

        Raises:
            InputError: another one does.
        """
        self._make_folder()
        with open(self.folder / ".lock", "w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.folder}: another process is working on this run") from None
            yield

    def once(self, name: str, compute: Callable[[], np.ndarray], ranks: Ranks) -> np.ndarray:
        """What `compute` gave the first time that the run, or its twin, asked: numbers that a choice rests on.

        Computed again in other micro-batches they would differ by rounding, and a choice between equals with them.
        """
        path = self.root / f"{name}.npy"
        if not ranks.any(path.exists()):
            found = compute()
            if ranks.first:
                with whole_file(path) as building, open(building, "wb") as stream:
                    np.save(stream, found)
        ranks.wait()
        loaded: np.ndarray = np.load(path, allow_pickle=False)
        return loaded

    # checkpoints -----------------------------------------------------------------------------------
    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after `step` steps; the one before is removed only once this one is on disk."""
        final = self.checkpoints / f"step-{step:08d}"
        if final.exists():
            return
        building = self.checkpoints / f".step-{step:08d}"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        with _undone(building):
            self._write_state(building, state)
            building.rename(final)
        sync(self.checkpoints)
        for other in self._checkpoints()[:-1]:
            shutil.rmtree(other)

    @staticmethod
    def _write_state(building: Path, state: dict[str, Any]) -> None:
        with open(building / "state.pt", "wb") as stream:
            watched = _Watched(stream)
            try:
                torch.save(state, watched)  # type: ignore[arg-type]  # all it asks of a stream
            except RuntimeError as error:
                raise watched.failure or error from None
        sync(building / "state.pt")

    def last_checkpoint(self) -> tuple[int, dict[str, Any]] | None:
        """(steps taken, state) of the newest whole checkpoint."""
        found = self._checkpoints()
        if not found:
            return None
        step = int(found[-1].name.removeprefix("step-"))
        try:
            return step, torch.load(found[-1] / "state.pt", weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
            raise InputError(
                f"{found[-1] / 'state.pt'} is damaged: remove {found[-1]}, and the run takes the same steps again "
                "from its start, which spends nothing new"
            ) from None

    def _checkpoints(self) -> list[Path]:
        if not self.checkpoints.is_dir():
            return []
        return sorted(path for path in self.checkpoints.iterdir() if _CHECKPOINT.fullmatch(path.name))

    @contextmanager
    def releasing(self) -> Iterator[Path]:
        """A folder to fill that becomes `release/` in one go."""
        building = self.folder / ".release"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        with _undone(building):
            yield building
            for path in building.iterdir():
                path.chmod(0o644)  # what may leave the house may be read
            shutil.rmtree(self.release, ignore_errors=True)
            building.rename(self.release)


class _Watched:
    """A stream that remembers why it failed: of a full disk torch says only that a position is off."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self.stream.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def _undone(folder: Path) -> Iterator[None]:
    """Whatever goes wrong leaves nothing half-written."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        return [d for n in names for d in _differences(old.get(n), new.get(n), (*path, n))]
    return [] if old == new or path in _FREE else [".".join(path)]
