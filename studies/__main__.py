"""The command `confide study`, which is `python -m studies` in the folder of the repository."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from confide.cli.base import Cluster, Json, Processes, crew_of, print_json, verb
from confide.utils.console import Console, guarded
from confide.utils.errors import InputError
from studies.registry import names, study
from studies.runner import pages, register
from studies.runner.findings import judged
from studies.runner.study import Scale, Study, Work

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Name = Annotated[str | None, typer.Argument(metavar="[STUDY]", help="its name, as --list shows it")]
Data = Annotated[Path | None, typer.Option(help="folder that holds the public data sets", show_default=False)]
Folder = Annotated[Path, typer.Option(help="where to work; what is done there is not done again")]


@app.command()
@verb
def main(
    name: Name = None,
    listed: Annotated[bool, typer.Option("--list", help="list the studies and end")] = False,
    every: Annotated[bool, typer.Option("--all", help="run all studies, one after the other")] = False,
    scale: Annotated[
        Scale, typer.Option(help="tiny: seconds; small: about an hour; full: the paper's, or for a GPU")
    ] = Scale.SMALL,
    data: Data = None,
    folder: Folder = Path("runs/studies"),
    text: Annotated[str | None, typer.Option(metavar="NAME", help="only this one of a study's texts")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="forget what was done before")] = False,
    recorded: Annotated[
        bool, typer.Option("--record", help="keep measurements and findings in studies/measured")
    ] = False,
    written: Annotated[
        bool, typer.Option("--pages", help="judge what lies in studies/measured, write docs/results, and end")
    ] = False,
    processes: Processes = None,
    ray: Cluster = None,
    as_json: Json = False,
) -> None:
    """Run an experiment that anyone can repeat: train, measure, and say what was found of a paper's claims.

    A study that was stopped goes on when the same command is given again.

    Example: confide study group-or-user --data data --processes 2
    """
    if listed:
        _list(as_json)
        return
    if written:
        register.judge_anew(study)
        pages.write()
        return
    if (name is None) == (not every):
        raise InputError("name a study, or give --all; --list shows their names")
    if recorded and scale is Scale.TINY:
        raise InputError("--record: the figures of the scale tiny mean nothing")
    if fresh:
        shutil.rmtree(folder / scale, ignore_errors=True)
    crew = crew_of(processes, ray)
    work = Work(
        data, folder / scale, scale, **({} if crew is None else {"crew": crew}), console=Console(), text=text
    )
    found = [_run(study(each), work, recorded) for each in (names() if every else [str(name)])]
    if as_json:
        print_json([each for entries, _ in found for each in entries])
    else:
        print("\n".join(text for _, text in found), end="")


def _run(chosen: Study, work: Work, recorded: bool) -> tuple[list[dict[str, object]], str]:
    """Run a study. Return its findings as the register has them, and its page."""
    work.console.say(f"{chosen.name}: {chosen.question}")
    rows = chosen.measure(work)
    today = datetime.now(UTC).date().isoformat()
    if recorded:
        register.record(chosen, work.scale, rows, today, text=work.text)
    found = judged(chosen.findings(rows))
    entries = [register.entry(chosen, work.scale, each, rows, today, work.text) for each in found]
    pages.draw(chosen, rows, work.folder)
    return entries, pages.section(chosen, rows, entries)


def _list(as_json: bool) -> None:
    found = [study(name) for name in names()]
    if as_json:
        keys = ("name", "paper", "shows", "question", "minutes", "deviations", "reads")
        print_json([{key: getattr(each, key) for key in keys} for each in found])
        return
    width = max(len(each.name) for each in found)
    for each in found:
        print(f"{each.name:{width}}  {each.paper or '-':3}  {each.minutes:4g} min  {each.question}")


if __name__ == "__main__":
    with guarded():
        app(prog_name="confide study")
