"""Experiments that anyone can repeat, one file each: `python -m studies.NAME`, in the folder of the repository.

They are no part of the package `confide`, which never imports them.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from confide.cli.base import Json, print_json, verb
from confide.utils.console import guarded


def main(run: Callable[..., dict[str, Any]]) -> None:
    """Run a study as a command: print its Markdown table, or its facts as JSON.

    Args:
        run: the study's `run(data, folder)`, or `run(folder)` of a study that makes its own numbers.
    """
    module = Path(inspect.getfile(run)).stem
    reads_data = "data" in inspect.signature(run).parameters
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    command = app.command(help=inspect.getdoc(inspect.getmodule(run)))

    def printed(facts: dict[str, Any], as_json: bool) -> None:
        print_json(facts) if as_json else print(facts["markdown"])

    @verb
    def on_data(data: Data, folder: Folder = FOLDER, as_json: Json = False) -> None:
        printed(run(data, folder / module.replace("_", "-")), as_json)

    @verb
    def alone(folder: Folder = FOLDER, as_json: Json = False) -> None:
        printed(run(folder / module.replace("_", "-")), as_json)

    command(on_data if reads_data else alone)
    with guarded():
        app(prog_name=f"python -m studies.{module}")


Data = Annotated[Path, typer.Argument(metavar="DATA", help="folder that holds the public data sets")]
Folder = Annotated[Path, typer.Option(help="where to work")]
FOLDER = Path("runs/studies")
