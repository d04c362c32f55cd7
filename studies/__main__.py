"""The command `confide study`, which is `python -m studies` in the folder of the repository."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from confide.cli.base import Cluster, Json, Processes, crew_of, print_json, verb
from confide.utils.console import Console, guarded
from confide.utils.errors import CheckFailed, InputError
from confide.utils.workers import Crew
from studies.registry import names, study
from studies.runner import pages, register, store
from studies.runner.comparison import compared, is_kept, told
from studies.runner.findings import judged
from studies.runner.study import Scale, Study, Work
from studies.runner.training import forget_rows

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
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="train all runs of the study again; with --all, also forget all files of the scale",
        ),
    ] = False,
    added: Annotated[
        bool,
        typer.Option(
            "--added",
            help="train only runs that studies/measured lacks, as after an arm, a key or a place was added; the others "
            "are not trained again",
        ),
    ] = False,
    recorded: Annotated[
        bool, typer.Option("--record", help="keep measurements and findings in studies/measured")
    ] = False,
    against: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="hold the findings against those in studies/measured: status 1 if a figure has left its interval",
        ),
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
    if added and (fresh or against):
        raise InputError(
            "--added reuses studies/measured, which --fresh and --compare ignore: give one of them"
        )
    if against and recorded:
        raise InputError("--compare: --record replaces what would be compared with: give one of them")
    chosen = _kept(scale, name) if against else names() if every else [str(name)]
    if fresh and every:
        shutil.rmtree(folder / scale, ignore_errors=True)
    crew = crew_of(processes, ray)
    work = Work(
        data,
        folder / scale,
        scale,
        crew=crew or Crew(),
        console=Console(),
        text=text,
        again=set() if fresh else None,
    )
    found = [_run(study(each), _with_measured(work, each) if added else work, recorded) for each in chosen]
    forget_rows(work)
    if against:
        moving = [each for each in chosen if study(each).follows_code]
        _compare(
            {each: entries for each, (entries, _) in zip(chosen, found, strict=True)}, work, as_json, moving
        )
    elif as_json:
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


def _with_measured(work: Work, name: str) -> Work:
    """Return the work with what is kept of a study at its scale."""
    path = register.KEPT / f"{name}-{work.scale}.parquet"
    if not path.exists():
        raise InputError(f"--added: studies/measured keeps nothing of {name} at the scale {work.scale}")
    return replace(work, measured=store.read(path))


def _kept(scale: Scale, name: str | None) -> list[str]:
    """Return the studies of which findings are kept, or the one that is named, in the order of the papers."""
    kept = {each["study"] for each in register.kept() if each["scale"] == scale}
    if name is not None and study(name).name not in kept:
        raise InputError(f"--compare: studies/measured keeps nothing of {name} at the scale {scale}")
    return [each for each in names() if each in kept and name in (None, each)]


def _compare(
    found: Mapping[str, list[dict[str, object]]], work: Work, as_json: bool, moving: Sequence[str] = ()
) -> None:
    """Show what became of the findings that are kept.

    Args:
        moving: the studies whose figures follow the code.

    Raises:
        CheckFailed: a figure has left its interval, or a claim was not found again.
    """
    kept = register.kept()
    rows = {
        name: compared(entries, kept, name, work.scale, work.text, name in moving)
        for name, entries in found.items()
    }
    if as_json:
        print_json({name: [asdict(each) for each in of_study] for name, of_study in rows.items()})
    else:
        print("".join(told(name, of_study) for name, of_study in rows.items()), end="")
    if gone := [name for name, of_study in rows.items() if not is_kept(of_study)]:
        raise CheckFailed(f"--compare: not all figures that are kept came again: {', '.join(gone)}")


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
