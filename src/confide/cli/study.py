"""The verb `study`, whose experiments lie in the repository and not in the package."""

import sys
from importlib import import_module
from pathlib import Path

import typer

import confide
from confide.cli.base import app, verb
from confide.utils.errors import InputError


def _repository() -> Path:
    """Return the folder that holds the studies: the current one, or that of the checkout that this package is in.

    Raises:
        InputError: there is none.
    """
    for folder in (Path.cwd(), Path(confide.__file__).parents[2]):
        if (folder / "studies" / "registry.py").is_file():
            return folder
    raise InputError(
        "the studies are in confide's repository: clone it, and call confide study in its folder"
    )


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
@verb
def study(context: typer.Context) -> None:
    """Run an experiment of the repository; `confide study --help` there says more."""
    sys.path.insert(0, str(_repository()))
    import_module("studies.__main__").app(context.args, prog_name="confide study")
