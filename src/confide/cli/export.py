"""`confide export`: a released model in another shape, or on a hub."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.cli.base import Json, RunFolder, Stopped, app, print_json, verb, warn_unprotected
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.runs.export import Parcel
    from confide.runs.released import Released

_TYPES = ("float32", "bfloat16", "float16")


@app.command()
@verb
def export(
    run: RunFolder,
    merge: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write the whole model: an adapter is added into its base"),
    ] = None,
    gguf_ready: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write it in 16 bits for llama.cpp, and say what to run next"),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="send RUN/release to the Hugging Face hub; asks before it does"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="of --merge: float32 (default), bfloat16 or float16; of --gguf-ready: the last two"
        ),
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="of --push-to-hub: who may see it; default: private"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="of --push-to-hub: do not ask")] = False,
    as_json: Json = False,
) -> None:
    """Write a released model in another shape, or send it to a hub.

    Example: confide export runs/mail --merge mail-model

    Give one of --merge, --gguf-ready and --push-to-hub. Card and guarantee go along: a changed shape gives away
    nothing more (post-processing). Nothing is overwritten, and nothing is sent unless --push-to-hub says so.
    """
    from confide.runs.released import Released

    wanted = {"--merge": merge, "--gguf-ready": gguf_ready, "--push-to-hub": push_to_hub}
    given = [name for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"confide export: give one of {', '.join(wanted)}"
            + (f", and not {' and '.join(given)} together" if given else "")
        )
    if push_to_hub is None and (private is not None or yes):
        raise InputError(
            f"{'--yes' if yes else '--public' if private is False else '--private'} is an option of --push-to-hub"
        )
    if push_to_hub is not None and dtype is not None:
        raise InputError("--dtype is an option of --merge and --gguf-ready; the release is sent as it is")
    if dtype is not None and dtype not in (_TYPES if merge else _TYPES[1:]):
        raise InputError(f"--dtype {dtype}: there are {', '.join(_TYPES if merge else _TYPES[1:])}")
    found = Released.of(run)
    warn_unprotected(found.guarantee)
    if push_to_hub is not None:
        _push(found, push_to_hub, private is not False, yes, as_json)
    elif merge is not None:
        _merge(found, merge, dtype or "float32", as_json)
    elif gguf_ready is not None:
        _for_gguf(found, gguf_ready, dtype, as_json)


def _merge(found: "Released", folder: Path, dtype: str, as_json: bool) -> None:
    from confide.runs.export import merge

    merge(found, folder, dtype)
    if as_json:
        print_json({"folder": str(folder), "dtype": dtype, "merged": found.is_adapter})
        return
    auto = found.facts.model_class
    what = (
        "the adapter in its base" if found.is_adapter else "no adapter to merge: the release is whole already"
    )
    print(f"wrote {folder}: {what}, {dtype}, with tokenizer, model card and guarantee")
    print(f"load it: {auto}.from_pretrained({str(folder)!r})")


def _for_gguf(found: "Released", folder: Path, dtype: str | None, as_json: bool) -> None:
    from confide.runs.export import merge

    if not found.facts.is_causal:
        raise InputError(
            f"--gguf-ready: a model of task {found.facts.name} writes no text; llama.cpp is for a causal-lm"
        )
    chosen = merge(found, folder, dtype, for_gguf=True)
    command = [
        "python", "llama.cpp/convert_hf_to_gguf.py", str(folder),
        "--outfile", f"{folder}.gguf", "--outtype", {"float16": "f16", "bfloat16": "bf16"}[chosen],
    ]  # fmt: skip
    if as_json:
        print_json({"folder": str(folder), "dtype": chosen, "merged": found.is_adapter, "next": command})
        return
    print(f"wrote {folder}: a whole model, {chosen}, with tokenizer, model card and guarantee")
    print(f"next, with a copy of llama.cpp: {shlex.join(command)}")


def _push(found: "Released", name: str, private: bool, yes: bool, as_json: bool) -> None:
    from confide.runs.export import packed, push

    can_ask = sys.stdin.isatty() and not as_json
    if not yes and not can_ask:
        raise InputError(
            "--push-to-hub asks before it sends, and nobody can be asked here: --yes sends without asking"
        )
    parcel = packed(found, name, private)
    if not yes:
        _show(found, parcel)
        if not _agreed():
            raise Stopped("nothing was sent")
    address = push(parcel)
    if as_json:
        sent: dict[str, Any] = {"sent": parcel.name, "address": address, "private": private}
        print_json(sent | {"files": [name for name, _ in parcel.files()]})
        return
    print(f"sent {found.folder} to {address} ({'private' if private else 'public'})")


def _show(found: "Released", parcel: "Parcel") -> None:
    """Show what would be sent, and what it promises."""
    for sentence in found.guarantee.short():
        print(sentence)
    print(f"\nto send to {parcel.name}, {'private' if parcel.private else 'public: everyone can read it'}"
          f"{', which exists: files of the same name are replaced' if parcel.exists else ''}:")  # fmt: skip
    for name, size in parcel.files():
        print(f"  {name}  {size:,} bytes")


def _agreed() -> bool:
    try:
        return input("send this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
