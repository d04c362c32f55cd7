"""`confide audit`: attack a run at the unit that it claims to protect."""

import json
from typing import Annotated

import typer

from confide.cli.base import Json, RunFolder, app, print_json, verb
from confide.errors import CheckFailed, InputError


@app.command()
@verb
def audit(
    run: RunFolder,
    twin: Annotated[bool, typer.Option(help="attack the non-private twin instead")] = False,
    attacks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="claim, exposure, membership, users, extraction; default: all"),
    ] = None,
    users: Annotated[int, typer.Option(help="trained on and held out, at most, each", min=2)] = 500,
    rows: Annotated[int, typer.Option(help="of each user, at most", min=1)] = 4,
    secrets: Annotated[int, typer.Option(help="whose exposure is computed, at most", min=1)] = 64,
    as_json: Json = False,
) -> None:
    """Attack a trained run at the unit that it protects."""
    from confide import show
    from confide.audit import attack
    from confide.audit.evidence import keep
    from confide.audit.picture import audit_svg
    from confide.cli.base import job_of
    from confide.disk import write_text
    from confide.finetuning import restate
    from confide.runs import Run

    chosen = attack.ATTACKS if attacks is None else tuple(attacks.split(","))
    if unknown := [name for name in chosen if name not in attack.ATTACKS]:
        raise InputError(f"--attacks {unknown[0]}: there are {', '.join(attack.ATTACKS)}")
    found_run = Run.load(run, twin)
    with found_run.locked():
        options = attack.Options(chosen, users, rows, secrets=secrets)
        job = job_of(found_run)
        found = attack.audit(job, options)
        write_text(found_run.audit_path, json.dumps(found, indent=2) + "\n")
        keep(found_run, found)
        restate(job, found["steps"])
        picture = audit_svg(found)
        if picture is not None:
            write_text(found_run.folder / "audit.svg", picture)
    print_json(found) if as_json else show.audited(found)
    if found["verdict"] == "violation":
        raise CheckFailed("the claim is refuted: do not release this model, and do not trust this setting")
