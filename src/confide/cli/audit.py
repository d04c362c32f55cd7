"""`confide audit`: attack a run at the unit that it claims to protect."""

from pathlib import Path
from typing import Annotated, Any

import typer

from confide.cli.base import Json, app, print_json, verb
from confide.utils.errors import CheckFailed, InputError


@app.command()
@verb
def audit(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="the run folder of a trained config; several: runs of one claim, together"
        ),
    ],
    twin: Annotated[bool, typer.Option(help="attack the non-private twin instead")] = False,
    attacks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="claim, exposure, membership, users, extraction; default: all"),
    ] = None,
    users: Annotated[
        int, typer.Option(help="most users to attack: so many trained, so many held out", min=2)
    ] = 500,
    rows: Annotated[int, typer.Option(help="most rows of a user", min=1)] = 4,
    secrets: Annotated[int, typer.Option(help="most planted numbers to rank", min=1)] = 64,
    ranks: Annotated[
        str, typer.Option(help="how to rank a number: exact, or sampled or extrapolated from --draws")
    ] = "exact",
    draws: Annotated[int, typer.Option(help="random numbers to compare each one with", min=100)] = 1000,
    prefix: Annotated[int, typer.Option(help="extraction: tokens the model is given", min=1)] = 16,
    suffix: Annotated[int, typer.Option(help="extraction: tokens it must give back", min=1)] = 16,
    samples: Annotated[
        int, typer.Option(help="extraction: continuations, of which one must be right", min=1)
    ] = 100,
    probability: Annotated[
        float,
        typer.Option(help="extraction: chance that one is right, from which a row counts", min=0.0, max=1.0),
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Attack a trained run, or the claim of many.

    Example: confide audit runs/mail --attacks claim,membership
    """
    from confide.auditing.of_run import audit_run
    from confide.auditing.options import ATTACKS, Options
    from confide.cli import show
    from confide.reporting.written import report_of
    from confide.runs.folder import Run
    from confide.utils.console import Console

    chosen = ATTACKS if attacks is None else tuple(name.strip() for name in attacks.split(","))
    options = Options(chosen, users, rows, prefix, suffix, samples, probability, secrets, ranks, draws)
    page: Path | None = None
    if len(runs) > 1:
        if attacks not in (None, "claim"):
            raise InputError(
                f"--attacks {attacks}: of several runs only the claim is attacked: leave --attacks out, or give one RUN"
            )
        found = _together(runs, twin)
    else:
        run = Run.load(runs[0], twin)
        found = audit_run(run, Console(), options).to_json()
        released = run.release.is_dir()
        page = report_of(run) if released and not twin else None
        if not as_json and not twin and not released:
            print(f"{run.root}: nothing is released yet; this is of its model after step {found['steps']}")
    print_json(found) if as_json else show.audited(found)
    if page is not None and not as_json:
        print(f"the page with the evidence: {page}")
    if found["verdict"] == "violation":
        raise CheckFailed("the claim is refuted: do not release this model, and do not trust this setting")


def _together(folders: list[Path], twin: bool) -> dict[str, Any]:
    """Guess once about each of many runs. Nothing is kept: the result is about the setting, not about a run."""
    from confide.auditing.attack import told
    from confide.auditing.repeated import repeated
    from confide.cli.base import job_of
    from confide.runs.folder import Run

    found = []
    for folder in folders:
        run = Run.load(folder, twin)
        with run.locked():
            found.append(told(job_of(run)))
    return repeated(found)
