"""`confide synthesize`: documents that a released model writes, to hand on."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from confide.cli.base import Cluster, Json, Processes, Stopped, app, crew_of, print_json, verb
from confide.utils.errors import InputError


@app.command()
@verb
def synthesize(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="a run folder, or the release of one", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="what to write: .jsonl or .parquet")] = Path(
        "synthetic.jsonl"
    ),
    documents: Annotated[int, typer.Option(metavar="N", help="how many", min=1)] = 1000,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="what documents begin with, a line each; used in turn"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="of a document, at most", min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="1: as the model draws; below: tamer", min=0.01)] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="draw from the likeliest tokens with so much probability", min=0.01, max=1.0)
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="of the draws, for the same file again; default: a new one", min=0)
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="put prompts into the chat template")] = False,
    batch: Annotated[int, typer.Option(help="documents that are drawn together", min=1)] = 32,
    base: Annotated[
        str | None, typer.Option(metavar="MODEL", help="of an adapter whose base lies elsewhere")
    ] = None,
    processes: Processes = None,
    ray: Cluster = None,
    as_json: Json = False,
) -> None:
    """Sample documents from a released model, to hand on.

    Example: confide synthesize runs/mail --documents 10000 --out mail.jsonl

    The guarantee of the model covers what it writes, at no further cost. A card beside the file says so. Only the
    release is read: private text and run may be gone.
    """
    from confide.runs.generate import MOST_SEED
    from confide.synthesis.corpus import kept_seed
    from confide.synthesis.corpus import synthesize as written
    from confide.synthesis.sampling import Asked, released_folder
    from confide.utils.console import Console
    from confide.utils.workers import Crew

    if not temperature < 1e6:
        raise InputError(f"--temperature {temperature:g}: give a number such as 1")
    asked = Asked(
        documents=documents,
        prompts=_lines(prompts),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=kept_seed(out, secrets.randbelow(MOST_SEED)) if seed is None else seed % MOST_SEED,
        chat=chat,
        batch=batch,
        base=base,
    )
    try:
        found = written(
            released_folder(run), asked, out, crew_of(processes, ray) or Crew(), Console(quiet=as_json)
        )
    except KeyboardInterrupt:
        raise Stopped("stopped; run the same command again to go on") from None
    if as_json:
        print_json(found.to_json())
        return
    print(f"{found.path}: {found.documents:,} documents of {found.drawn:,} samples")
    for why, number in sorted(found.left_out.items()):
        print(f"  left out, {why}: {number:,}")
    print(f"{found.card}: what protects them")


def _lines(prompts: Path | None) -> tuple[str, ...]:
    if prompts is None:
        return ("",)
    try:
        found = tuple(line for line in prompts.read_text("utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {prompts}: cannot be read ({type(error).__name__})") from None
    if not found:
        raise InputError(f"--prompts {prompts}: holds no prompt")
    return found
