"""`confide report`: the page that says what a run protects, the comparison of runs, the entry for a registry."""

from pathlib import Path
from typing import Annotated

import typer

from confide.cli.base import Json, app, check_new, print_json, verb
from confide.utils.errors import InputError


@app.command()
@verb
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="the run folder of a trained config, or a copy of its release; several: compare them",
        ),
    ],
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="also show what was measured on private text: losses, clipping, the data's shape, attacks",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="where to write; default: report.html or report-private.html in the run folder, comparison.html here",
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="also write an entry for the OpenDP deployments registry, as YAML to fill in"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the page that says what a run protects, in plain words.

    Example: confide report runs/mail
    """
    from confide.reporting.compare import compare
    from confide.reporting.facts import Facts
    from confide.reporting.page import comparison
    from confide.reporting.registry import entry
    from confide.reporting.written import write_report
    from confide.utils.files import private_files, write_text

    check_new(out, "--out", made_again=".html")
    check_new(registry, "--registry")
    if as_json and out is not None:
        raise InputError("--out is for the page, and --json prints facts in its place: give one of them")
    if len(runs) > 1:
        if registry is not None:
            raise InputError("--registry: an entry is about one run, so give one RUN")
        found = compare([Facts.of(run, with_measured=True) for run in runs])
        if as_json:
            print_json(list(found.rows))
            return
        path = out or Path("comparison.html")
        with private_files():
            write_text(path, comparison(found))
        print(f"{path}: {len(runs)} runs compared; private, since losses of private text are on it")
        return
    facts = Facts.of(runs[0], with_measured=private)
    if registry is not None:
        write_text(registry, entry(facts))
    if as_json:
        print_json(facts.to_json())
        return
    path = write_report(facts, runs[0], out)
    print(
        f"{path}: {'private: do not hand it on' if private else 'holds nothing that was measured on private text'}"
    )
    if registry is not None:
        print(f"{registry}: fill in what stands in capital letters")
