"""Write a released model in other shapes, or send it to a hub."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from confide.models import released as model_of
from confide.runs.card import Use, turn_end, with_use
from confide.runs.checkpoints import removed_on_error
from confide.runs.released import CARD, GUARANTEE, Released
from confide.utils.errors import InputError
from confide.utils.files import write_text

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BELOW = ("requests", "httpx", "httpx2", "httpcore", "httpcore2")


def merge(found: Released, folder: Path, dtype: str | None = "float32", for_gguf: bool = False) -> str:
    """Write the whole model, with tokenizer, card and guarantee, as `from_pretrained` reads it.

    Args:
        dtype: of the weights; None: float16, or bfloat16 if a weight is beyond the range of float16.
        for_gguf: add to config.json what llama.cpp's converter reads there.

    Returns:
        The type of the weights.

    Raises:
        InputError: the folder holds something, or a weight does not fit the type.
    """
    with filling(folder) as building:
        model = model_of.merged(found.model())
        chosen = dtype or _half(model)
        if for_gguf and model.config.model_type == "gpt2":
            model.config.n_ctx = model.config.n_positions  # transformers 5 leaves it out
        model_of.save(model_of.in_dtype(model, DTYPES[chosen]), found.tokenizer, building, found.base_name)
        shutil.copyfile(found.folder / GUARANTEE, building / GUARANTEE)
        _write_card(found, building, folder.name)
    return chosen


def _half(model: Any) -> str:
    largest = max(float(values.detach().abs().max()) for values in model.parameters())
    return "float16" if largest <= torch.finfo(torch.float16).max else "bfloat16"


def _write_card(found: Released, folder: Path, name: str) -> None:
    """Copy the card, with the code of a whole model."""
    path = found.folder / CARD
    text = path.read_text("utf-8") if path.exists() else found.guarantee.model_card_section()
    if found.is_adapter:
        end = turn_end(found.run.config, found.tokenizer)
        use = Use(found.facts, found.base_name, is_path=False, is_adapter=False, folder=name, turn_end=end)
        text = with_use(text, use)
    write_text(folder / CARD, text)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which then becomes `folder` in one step.

    Raises:
        InputError: `folder` is a file, or holds something already.
    """
    refuse_filled(folder)
    folder = folder.absolute()  # "." has no name
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    with removed_on_error(building):
        yield building
        for path in building.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # as the release: others may read it
        refuse_filled(folder)  # it may have been filled meanwhile
        building.rename(folder)


def refuse_filled(folder: Path) -> None:
    """Refuse a folder that holds something, or is a file."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: exists already, and nothing is overwritten; give a new folder")


# to a hub --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Parcel:
    """What would be sent to a hub, and where to."""

    name: str
    folder: Path
    private: bool
    exists: bool

    def files(self) -> list[tuple[str, int]]:
        """Return each file with its bytes."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [(path.relative_to(self.folder).as_posix(), path.stat().st_size) for path in paths]


def packed(found: Released, name: str, private: bool) -> Parcel:
    """Look at where a release would be sent to; nothing is sent.

    Raises:
        InputError: the name is invalid, the hub cannot be reached, or a repository of that name is public and was to
            be private, or the other way round.
    """
    from huggingface_hub import HfApi

    with _said_plainly(name):
        api = HfApi()
        user = api.whoami()["name"]
        if "/" not in name:
            name = f"{user}/{name}"
        exists = api.repo_exists(name)
        if exists and bool(api.model_info(name).private) != private:
            now, asked = ("public", "--private") if private else ("private", "--public")
            raise InputError(
                f"--push-to-hub {name}: exists already and is {now}, and {asked} was asked for: give another name, or "
                f"change the option or the repository"
            )
    return Parcel(name, found.folder, private, exists)


def push(parcel: Parcel) -> str:
    """Send a release to the hub. Return its address.

    Raises:
        InputError: the hub refuses it, or cannot be reached.
    """
    from huggingface_hub import HfApi

    with _said_plainly(parcel.name):
        api = HfApi()
        if not parcel.exists:
            api.create_repo(parcel.name, private=parcel.private)
        sent = api.upload_folder(
            repo_id=parcel.name, folder_path=parcel.folder, commit_message="Release of a run of confide"
        )
    return str(getattr(sent, "repo_url", None) or f"https://huggingface.co/{parcel.name}")


@contextmanager
def _said_plainly(name: str) -> Iterator[None]:
    """Turn the hub's errors into one sentence."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    key = f"--push-to-hub {name}"
    try:
        yield
    except HFValidationError:
        raise InputError(f"{key}: is no name of a model on the hub; give NAME or OWNER/NAME") from None
    except LocalTokenNotFoundError:
        raise InputError(f"{key}: you are not logged in; `hf auth login` does that") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        advice = "; `hf auth login` logs in" if status in (401, 403) else ""
        raise InputError(f"{key}: the hub refuses it (HTTP {status}){advice}") from None
    except OfflineModeIsEnabled:
        raise InputError(f"{key}: HF_HUB_OFFLINE is set, and nothing can be sent then") from None
    except Exception as error:
        # Of the library below the hub's, which was requests, then httpx, then httpx2.
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _BELOW:
            raise InputError(f"{key}: the hub cannot be reached ({type(error).__name__})") from None
        raise
