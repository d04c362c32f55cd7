"""Share among all verbs: arguments, exit codes, and how a run is found. Heavy imports wait until a verb needs them."""

import errno
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide import __version__
from confide.utils.console import on_one_line
from confide.utils.errors import CheckFailed, Faults, InputError, RankLost
from confide.utils.plain import plain

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.guarantee import Guarantee
    from confide.runs.folder import Run
    from confide.runs.job import Job
    from confide.utils.workers import Crew

app = typer.Typer(
    name="confide",
    help="Fine-tune language models on text told in confidence, and state exactly what that protects.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"confide {__version__}")
        raise typer.Exit


@app.callback()
def _all_verbs(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    pass


ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a config file, or a run folder")]
RunOrRelease = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run folder, or the release of one", show_default=False)
]
AdapterBase = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="where the base of an adapter lies now; for a release without its run"
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="the run folder of a trained config")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="replace values, as privacy.epsilon=3"),
]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON document and nothing else on standard output")
]

Processes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="share the work among N processes; the result is the same",
        show_default=False,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="share it among the nodes of a Ray cluster: auto, HOST:PORT, or local to start one here",
    ),
]


def crew_of(processes: int | None, cluster: str | None) -> "Crew | None":
    """Return who does the work, as the options say; None if they say nothing.

    Raises:
        InputError: both options are given.
    """
    from confide.utils.workers import Crew

    if processes is not None and cluster is not None:
        raise InputError("--processes is for this machine and --ray for a cluster: give one of them")
    return None if processes is None and cluster is None else Crew(processes or 1, cluster)


def check_new(path: Path | None, option: str, made_again: str = "") -> None:
    """Check, before any work, that a file which the user named can be written and replaces nothing of the user's.

    Args:
        made_again: the suffix of files that are made again from a run or from options, and may be replaced.

    Raises:
        InputError: there is something of that name, or no folder to write it in.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; give the name of a file in it")
    if os.path.lexists(path) and path.suffix != made_again:
        raise InputError(f"{option} {path}: exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")


def warn_unprotected(guarantee: "Guarantee") -> None:
    """Warn on stderr that what leaves the house protects nobody."""
    if guarantee.notion == "none":
        typer.echo(
            "warning: this run claims no privacy: its model, and all that it writes, is as confidential as the text "
            "it was trained on",
            err=True,
        )


# Errors of the disk or the paths on it, not of confide.
_OUTSIDE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EFBIG,
    errno.ELOOP,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENXIO,
}


_TOGETHER = {"train", "evaluate"}  # verbs that several ranks run together


_MORE_MEMORY = "memory ran out: end other programs, or use a machine with more memory"
_OUT_OF_MEMORY = {
    "train": "memory ran out: set train.micro_tokens lower, train.gradient_checkpointing: true, or both",
    "synthesize": "memory ran out: give a smaller --batch, or a smaller --max-new-tokens",
    "generate": "memory ran out: give a shorter prompt, or a smaller --max-new-tokens",
    **dict.fromkeys(
        ("export", "init", "prepare", "account", "report", "redact", "tag", "solve", "schema"), _MORE_MEMORY
    ),
}
"""By verb, what to do; other verbs pass rows through the model, as training does."""


class Stopped(Exception):
    """The user stopped the work; it can be resumed."""


@dataclass
class _Output:
    """Remember if a JSON document has been printed: --json prints one and no other."""

    has_document: bool = False


_OUTPUT = _Output()


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Map results to exit codes: 0 done, 1 check failed, 2 input at fault, 3 our fault, 130 stopped, 141 unread.

    With --json, what went wrong is printed as a document too, if the verb has printed none.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        _OUTPUT.has_document = False
        try:
            if "WORLD_SIZE" in os.environ and function.__name__ not in _TOGETHER:
                _refuse_ranks(function.__name__)
            function(*args, **kwargs)
        except typer.Exit:
            raise
        except BrokenPipeError:  # the reader of our output has gone, as in `confide plan mail.yaml | head`
            _write_to_nobody()
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except (Exception, KeyboardInterrupt) as error:
            end(*_told(error, function.__name__), as_json=bool(kwargs.get("as_json")))

    return run


def _told(error: BaseException, verb: str) -> tuple[int, str]:
    """Return the exit code for an error of a verb, and what to say of it."""
    match error:
        case Faults():
            return 2, str(error)
        case InputError():
            return 2, on_one_line(str(error))
        case CheckFailed():
            return 1, on_one_line(str(error))
        case RankLost():
            return 1, str(error)
        case Stopped():
            return 130, str(error)
        case KeyboardInterrupt():
            return 130, "stopped; run the same command again to go on"
        case OSError() if error.errno in _OUTSIDE:
            return 2, on_one_line(f"{error.filename or 'a file that confide writes'}: {error.strerror}")
    if _ran_out(error):
        return 2, _OUT_OF_MEMORY.get(verb, _OUT_OF_MEMORY["train"])
    traceback.print_exception(error)
    return 3, (
        "internal error: this is a fault of confide, not of your input. Please report the lines above, once you have "
        "seen that they name nothing private"
    )


def _write_to_nobody() -> None:
    """Let what is left for standard output, which Python flushes as it ends, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ran_out(error: BaseException) -> bool:
    if "torch" not in sys.modules:  # importing torch takes a second
        return isinstance(error, MemoryError)
    from confide.utils.memory import ran_out

    return ran_out(error)


def _refuse_ranks(verb: str) -> None:
    from confide.distributed.ranks import launched

    if launched():
        raise InputError(f"confide {verb} runs by itself, without torchrun; train and eval run under it")


def end(code: int, message: str, as_json: bool = False) -> None:
    """Print a message on standard error and end the program with an exit code.

    Args:
        as_json: also print it as a JSON document, on the first rank and if there is no document yet.
    """
    print(f"confide: {message}", file=sys.stderr, flush=True)
    if as_json and not _OUTPUT.has_document and os.environ.get("RANK", "0") == "0":
        try:
            print_json({"error": {"exit_code": code, "message": message}})
            sys.stdout.flush()
        except BrokenPipeError:
            _write_to_nobody()
    if "confide.distributed.ranks" in sys.modules:  # else there is no other rank
        from confide.distributed.ranks import leave

        leave(code)
    raise typer.Exit(code)


def config_of(path: Path, overrides: list[str] | None) -> "Config":
    """Load a config with overrides."""
    from confide.config.loading import load

    return load(path, overrides or ())


def run_of(path: Path, overrides: list[str] | None, twin: bool = False) -> "Run":
    """Return the run of a config."""
    from confide.runs.folder import Run

    return Run(config_of(path, overrides), twin)


def job_of(run: "Run") -> "Job":
    """Resolve a run to a job."""
    from confide.runs.job import Job
    from confide.utils.console import Console

    return Job.of(run, Console())


def print_json(value: Any) -> None:
    """Print a value as JSON; infinite numbers, which JSON does not have, as text such as "inf"."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))
    _OUTPUT.has_document = True
