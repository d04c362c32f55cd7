"""`confide synthesize`: documents that a released model writes, to hand on."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from confide.cli.base import (
    AdapterBase,
    Cluster,
    Json,
    Processes,
    RunOrRelease,
    Stopped,
    app,
    crew_of,
    print_json,
    verb,
    warn_unprotected,
)
from confide.utils.errors import InputError


@app.command()
@verb
def synthesize(
    context: typer.Context,
    run: RunOrRelease,
    out: Annotated[Path, typer.Option(metavar="FILE", help="what to write: .jsonl or .parquet")] = Path(
        "synthetic.jsonl"
    ),
    documents: Annotated[int, typer.Option(metavar="N", help="how many", min=1)] = 1000,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="what documents begin with, a line each; used in turn"),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="of a document, at most; default: 256, or drawn for each by lengths that the release has counted",
            min=1,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="1: as the model draws; below: tamer", min=0.01)] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="draw from the likeliest tokens with so much probability", min=0.01, max=1.0)
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option(help="seed of the draws: the same one repeats the file; default: a new one", min=0),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="put prompts into the chat template")] = False,
    turns: Annotated[
        int,
        typer.Option(
            metavar="N", help="of --chat: conversations of so many turns, both sides written", min=0
        ),
    ] = 0,
    batch: Annotated[int, typer.Option(help="documents that are drawn together", min=1)] = 32,
    evaluate: Annotated[
        bool,
        typer.Option("--evaluate", help="compare the documents with real text of units that did not train"),
    ] = False,
    leaks: Annotated[
        bool, typer.Option("--leaks", help="attack the documents with the text that trained")
    ] = False,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="real text of other people, in the form of data.train; default: the run's own",
        ),
    ] = None,
    base: AdapterBase = None,
    processes: Processes = None,
    ray: Cluster = None,
    as_json: Json = False,
) -> None:
    """Sample documents from a released model, to hand on.

    Example: confide synthesize runs/mail --documents 10000 --out mail.jsonl

    The guarantee of the model covers what it writes, at no further cost. A card beside the file says so. Only the
    release is read: private text and run may be gone.

    --evaluate and --leaks look at FILE, which is written first if it is not there yet. They read the private text, and
    the guarantee does not cover what they print.
    """
    from confide.cli.texts import examine, wrote
    from confide.runs.generate import MOST_SEED
    from confide.synthesis.corpus import kept_seed
    from confide.synthesis.corpus import synthesize as written
    from confide.synthesis.sampling import Asked, claim_of, released_folder
    from confide.utils.console import Console
    from confide.utils.workers import Crew

    if not temperature < 1e6:
        raise InputError(f"--temperature {temperature:g}: give a number such as 1")
    if held_out is not None and not (evaluate or leaks):
        raise InputError("--held-out: it is text to compare with, for --evaluate or --leaks")
    if turns and (not chat or turns < 2):
        raise InputError(f"--turns {turns}: is of a conversation: give --chat, and 2 or more")
    if (evaluate or leaks) and out.exists():
        _unused(context, out)
    release = released_folder(run)
    examined = examine(run, out, evaluate, leaks, held_out) if evaluate or leaks else None
    warn_unprotected(claim_of(release))
    console = Console(quiet=as_json)
    found = None
    if examined is None or not out.exists():
        beginnings, lengths = _beginnings(release, prompts, chat), _lengths(release, max_new_tokens, turns)
        doubts = (*beginnings.pop("doubts", ()), *lengths.pop("doubts", ()))
        for doubt in doubts:
            console.say(f"warning: {doubt}")
        asked = Asked(
            documents=documents,
            **beginnings,
            **lengths,
            doubts=doubts,
            temperature=temperature,
            top_p=top_p,
            seed=kept_seed(out, secrets.randbelow(MOST_SEED)) if seed is None else seed % MOST_SEED,
            chat=chat,
            turns=turns,
            batch=batch,
            base=base,
        )
        try:
            found = written(release, asked, out, crew_of(processes, ray) or Crew(), console)
        except KeyboardInterrupt:
            raise Stopped("stopped; run the same command again to go on") from None
        wrote(run, release, asked, found, quiet=as_json)
    told = {} if found is None else found.to_json()
    if examined is not None:
        told |= examined.looked(console)
    if as_json:
        print_json(told)
    elif examined is not None:
        examined.show()


def _unused(context: typer.Context, out: Path) -> None:
    """Refuse options of sampling where nothing is sampled."""
    looking = {"run", "out", "evaluate", "leaks", "held_out", "as_json"}
    given = [
        name
        for name in context.params
        if name not in looking
        and (source := context.get_parameter_source(name))
        and source.name == "COMMANDLINE"
    ]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')}: {out} is there already, so nothing is sampled and only --evaluate and "
            "--leaks look at it: leave the option out, or give another --out"
        )


def _beginnings(release: Path, prompts: Path | None, chat: bool) -> dict[str, Any]:
    """Return what documents begin with: the lines of a file, or else the conditions of the release, or nothing."""
    from confide.data.conditions import FILE, Conditions

    if prompts is not None or chat:
        return {"prompts": _lines(prompts)}
    conditions = Conditions.load(release)
    if conditions is None:
        _never_counted(release, "conditions", FILE, "--prompts")
        return {"prompts": ("",)}
    return {
        "prompts": tuple(map(conditions.prefix, conditions.listed)),
        "shares": conditions.shares,
        "named": tuple(map(conditions.named, conditions.listed)),
        "counted": conditions.counted is not None,
        "doubts": tuple(filter(None, [conditions.doubt()])),
    }


def _lengths(release: Path, most: int | None, turns: int) -> dict[str, Any]:
    """Return how many tokens documents have at most: as asked, or else as the release has counted, or 256."""
    from confide.data.lengths import FILE, Lengths

    if most is not None or turns:
        return {"max_new_tokens": 256 if most is None else most}
    lengths = Lengths.load(release)
    if lengths is None:
        _never_counted(release, "lengths", FILE, "--max-new-tokens")
        return {"max_new_tokens": 256}
    drawn = [bound for bound, share in zip(lengths.bounds, lengths.shares, strict=True) if share]
    found = {"max_new_tokens": max(drawn), "bounds": lengths.bounds, "bound_shares": lengths.shares}
    return found | {"doubts": tuple(filter(None, [lengths.doubt()]))}


def _never_counted(release: Path, name: str, file: str, option: str) -> None:
    """Refuse a release without a histogram that its claim speaks of: whoever copied it left a file behind."""
    from confide.privacy.histograms import named_in
    from confide.synthesis.sampling import claim_of

    if name in named_in(claim_of(release)):
        raise InputError(
            f"{release / file}: is missing, and the claim says that it was released: copy the release whole, or give "
            f"{option}"
        )


def _lines(prompts: Path | None) -> tuple[str, ...]:
    if prompts is None:
        return ("",)
    if not prompts.exists():
        raise InputError(f"--prompts {prompts}: no such file: give one with a prompt in each line")
    try:
        found = tuple(line for line in prompts.read_text("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError:
        raise InputError(f"--prompts {prompts}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"--prompts {prompts}: {error.strerror}") from None
    if not found:
        raise InputError(f"--prompts {prompts}: holds no prompt")
    return found
