"""Save checkpoints of a run: written whole, sealed, and opened only by the run and at the step that wrote them."""

import hmac
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from confide.privacy import ledger
from confide.randomness.seal import Seal
from confide.utils.errors import InputError
from confide.utils.files import sync

_NAME = re.compile(r"step-(\d{8})")
_PIECE = 1 << 22  # bytes read at a time


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after some steps, in a folder of its own.

    `state.pt` holds the state. `seal` holds an HMAC under the run key over the number of steps, the ledger up to
    the last of them (it begins with the run's constants), and every byte of the state. So a damaged state is
    refused, and so is a state of another run, of the twin or of another step.
    """

    folder: Path

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return int(self.folder.name.removeprefix("step-"))

    def load(self, seal: Seal, ledger_path: Path) -> dict[str, Any]:
        """Load the state, if this run saved it at this step.

        Raises:
            InputError: this run did not save it, or the ledger lacks steps.
        """
        import torch

        state, mac = self.folder / "state.pt", _begun(seal, ledger_path, self.step)
        try:
            with open(state, "rb") as stream:
                while piece := stream.read(_PIECE):
                    mac.update(piece)
            if not hmac.compare_digest((self.folder / "seal").read_bytes(), mac.hexdigest().encode()):
                raise ValueError
            loaded: dict[str, Any] = torch.load(state, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
            raise InputError(
                f"{state} is damaged, or not what this run saved after step {self.step}: remove {self.folder}, and "
                "`confide train` takes the same steps again from the start, which spends nothing new"
            ) from None
        return loaded


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run. Only the newest is kept.

    Attributes:
        folder: holds `step-00000100/` and the like.
    """

    folder: Path

    def last(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None."""
        found = self._all()
        return Checkpoint(found[-1]) if found else None

    def save(self, step: int, state: dict[str, Any], seal: Seal, ledger_path: Path) -> None:
        """Write the state after `step` steps. The previous checkpoint is removed only once this one is on disk."""
        final = self.folder / f"step-{step:08d}"
        if final.exists():
            return
        building = self.folder / f".step-{step:08d}"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        with removed_on_error(building):
            mac = _begun(seal, ledger_path, step)
            _write(building / "state.pt", state, mac)
            (building / "seal").write_bytes(mac.hexdigest().encode())
            sync(building / "seal")
            building.rename(final)
        sync(self.folder)
        for other in self._all()[:-1]:
            shutil.rmtree(other)

    def _all(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))


def _begun(seal: Seal, ledger_path: Path, step: int) -> hmac.HMAC:
    """Start the HMAC of a state, before its bytes."""
    mac = seal.over("checkpoint", str(step))
    mac.update(ledger.digest(ledger_path, step))
    return mac


def _write(path: Path, state: dict[str, Any], mac: hmac.HMAC) -> None:
    import torch  # here alone: whether there is a checkpoint is asked where nothing else needs torch

    with open(path, "wb") as stream:
        watched = _Watched(stream, mac)
        try:
            torch.save(state, watched)  # type: ignore[arg-type]  # all it asks of a stream
        except RuntimeError as error:
            raise watched.failure or error from None
        stream.flush()
        os.fsync(stream.fileno())


class _Watched:
    """File that feeds an HMAC and remembers why writing failed: torch reports a full disk as a wrong position."""

    def __init__(self, stream: BinaryIO, mac: hmac.HMAC):
        self.stream, self.mac = stream, mac
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = self.stream.write(data)
        except OSError as error:
            self.failure = error
            raise
        self.mac.update(data)
        return written

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def removed_on_error(folder: Path) -> Iterator[None]:
    """Leave nothing half-written, whatever goes wrong."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
