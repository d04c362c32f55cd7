"""The verbs. Heavy imports wait until a verb needs them, so that `--help` is instant."""

import errno
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.errors import CheckFailed, InputError, RankLost

if TYPE_CHECKING:
    from confide.job import Job
    from confide.runs import Run
    from confide.settings import Config

app = typer.Typer(
    name="confide",
    help="Fine-tune language models on text told in confidence, and state exactly what that protects.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Path_ = Annotated[Path, typer.Argument(metavar="CONFIG", help="a config file, or a run folder")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="the run folder of a trained config")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="config keys to override")
]
Json = Annotated[
    bool, typer.Option("--json", help="print one JSON document and nothing else on standard output")
]


# What is wrong with the disk or the paths on it, and not with confide.
_OUTSIDE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
}


_TOGETHER = {"train", "evaluate"}  # verbs that several ranks work on


class _Stopped(Exception):
    """The user stopped the work; it can be resumed."""


def _verb(function: Callable[..., None]) -> Callable[..., None]:
    """Exit codes: 0 done, 1 a check failed, 2 the input is at fault, 3 an internal error, 130 stopped."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            if "WORLD_SIZE" in os.environ and function.__name__ not in _TOGETHER:
                _refuse_ranks(function.__name__)
            function(*args, **kwargs)
        except InputError as error:
            _end(2, str(error))
        except CheckFailed as error:
            _end(1, str(error))
        except RankLost as error:
            _end(1, str(error))
        except _Stopped as error:
            _end(130, str(error))
        except KeyboardInterrupt:
            _end(130, "stopped; run the same command again to go on")
        except typer.Exit:
            raise
        except BrokenPipeError:
            raise  # whoever read our output has gone, as in `confide plan mail.yaml | head`
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OUTSIDE:
                _end(2, f"{error.filename or 'the run folder'}: {error.strerror}")
            traceback.print_exc()
            _end(3, "internal error: this is a fault of confide, not of your input")

    return run


def _refuse_ranks(verb: str) -> None:
    from confide.ranks import launched

    if launched():
        raise InputError(f"confide {verb} runs by itself, without torchrun; train and eval run under it")


def _end(code: int, message: str) -> None:
    print(f"confide: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(code)


def _config(path: Path, overrides: list[str] | None) -> "Config":
    from confide.config import load

    return load(path, overrides or ())


def _run(path: Path, overrides: list[str] | None, twin: bool = False) -> "Run":
    from confide.runs import Run

    return Run(_config(path, overrides), twin)


def _job(run: "Run") -> "Job":
    from confide.console import Console
    from confide.job import Job

    return Job.of(run, Console())


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2))


@app.command()
@_verb
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="file, folder, maildir, mbox ...")],
    out: Annotated[Path, typer.Option(help="where to write the config")] = Path("confide.yaml"),
) -> None:
    """Look at a file or folder and write a commented config for it."""
    from confide import starter

    if out.exists():
        raise InputError(f"{out}: exists already; give another name with --out")
    out.write_text(starter.write(data), "utf-8")
    print(f"wrote {out}: look at data.text and data.unit, then `confide prepare {out}`")


@app.command()
@_verb
def prepare(config: Path_, overrides: Overrides = None, as_json: Json = False) -> None:
    """Read text into the unit graph, and show its statistics."""
    from confide import models, show
    from confide.console import Console
    from confide.disk import write_text
    from confide.job import prepared_data

    run = _run(config, overrides)
    with run.locked():
        facts = prepared_data(run, models.load_tokenizer(run.config), Console()).facts
        picture = run.data / "rows_per_unit.svg"
        if not picture.exists():
            write_text(picture, show.histogram(run.data / "train"))
    if as_json:
        _print(facts)
        return
    show.preparation(facts)
    print(f"histogram of rows per unit: {picture}")


@app.command()
@_verb
def plan(config: Path_, overrides: Overrides = None, as_json: Json = False) -> None:
    """What a config costs and guarantees, before any gradient."""
    from confide import models, planning, show
    from confide.console import Console
    from confide.disk import write_text
    from confide.job import prepared_data

    run, console = _run(config, overrides), Console()
    with run.locked():
        tokenizer = models.load_tokenizer(run.config)
        prepared = prepared_data(run, tokenizer, console)
        model = models.load_model(run.config, prepared.classes, len(tokenizer))
        with console.track("settings compared") as track:
            found = planning.plan(run.config, prepared.train.shape(), planning.Size.of(model), track)
        if "larger_priors" in found:
            write_text(run.root / "program.svg", planning.program_svg(found))
    if as_json:
        _print(found)
        return
    show.plan(found)
    if "larger_priors" in found:
        print(f"picture of the sweep: {run.root / 'program.svg'}")


@app.command()
@_verb
def train(
    config: Path_,
    overrides: Overrides = None,
    twin: Annotated[
        bool, typer.Option(help="train the non-private twin instead: same draws, no protection")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train, or resume where it stopped; release the model. Runs under torchrun, too."""
    from confide import show
    from confide.console import Console
    from confide.finetuning import fine_tune
    from confide.ranks import Ranks

    with Ranks.joined() as ranks:
        run, console = _run(config, overrides, twin), Console(quiet=not ranks.first)
        console.say(run.config.to_yaml())
        outcome = fine_tune(run, console, ranks=ranks)
        ranks.wait()
    if not ranks.first:
        return
    if not outcome.finished:
        raise _Stopped(f"stopped after step {outcome.steps} of {outcome.of}; the same command resumes")
    if as_json:
        _print(show.outcome_facts(outcome))
    else:
        show.outcome(outcome, run)


@app.command("eval")
@_verb
def evaluate(
    run: RunFolder,
    base: Annotated[bool, typer.Option(help="evaluate the base model instead")] = False,
    twin: Annotated[bool, typer.Option(help="evaluate the non-private twin instead")] = False,
    as_json: Json = False,
) -> None:
    """Loss, perplexity and accuracy on the held-out units. Runs under torchrun, too."""
    from confide import show
    from confide.console import Console
    from confide.job import Job
    from confide.ranks import Ranks
    from confide.runs import Run

    loaded = Run.load(run, twin)
    found = None if base else loaded.last_checkpoint()
    if found is None and not base:
        raise InputError(f"{loaded.folder}: nothing was trained here yet")
    with Ranks.joined() as ranks:
        job = Job.of(loaded, Console(quiet=not ranks.first), ranks)
        if found is not None:
            job.course().restore(found[1])
        result = job.evaluate()
    if not ranks.first:
        return
    if result is None:
        raise InputError(f"{run}: the config holds no evaluation data (data.eval)")
    _print(result) if as_json else show.evaluation(result)


@app.command()
@_verb
def verify(config: Path_, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check clipping, coverage and noise on your own model and rows."""
    from confide import show
    from confide import verify as checks

    run = _run(config, overrides)
    with run.locked():
        job = _job(run)
        found = checks.verify(job)
    _print(found) if as_json else show.checks(found)
    if not found["ok"]:
        raise CheckFailed("a check failed; do not trust this setting")


secrets_app = typer.Typer(
    name="secrets", help="Find secrets, and solve the program that protects them.", no_args_is_help=True
)
app.add_typer(secrets_app)


@secrets_app.command("tag")
@_verb
def tag(config: Path_, overrides: Overrides = None, as_json: Json = False) -> None:
    """Find the secrets in the text: counts by class, and examples with every secret masked."""
    from confide import models, secrecy, show
    from confide.console import Console
    from confide.job import prepared_data

    run = _secret_run(config, overrides)
    with run.locked():
        facts = prepared_data(run, models.load_tokenizer(run.config), Console()).facts
    if as_json:
        _print(facts["secrets"])
        return
    show.secrets(facts["secrets"], secrecy.examples(run.config))


@secrets_app.command("solve")
@_verb
def solve(config: Path_, overrides: Overrides = None, as_json: Json = False) -> None:
    """Solve the linear program: rows kept, noise by both accountants, and a table of all secrets."""
    from confide import mechanisms, models, secrecy, show
    from confide.console import Console
    from confide.job import prepared_data
    from confide.mechanisms.secret import SecretProtection

    run = _secret_run(config, overrides)
    mechanism = mechanisms.build(run.config)
    assert isinstance(mechanism, SecretProtection)
    with run.locked():
        shape = prepared_data(run, models.load_tokenizer(run.config), Console()).train.shape()
        found = secrecy.solution(mechanism, shape)
        table = run.root / "secrets.csv"
        secrecy.write_table(mechanism, shape, found["noise_multiplier"][mechanism.accountant], table)
    if as_json:
        _print(found)
        return
    show.solution(found)
    print(f"every secret, by id: {table} (private)")


def _secret_run(path: Path, overrides: list[str] | None) -> "Run":
    from confide.preparation import protects_secrets

    run = _run(path, overrides)
    if not protects_secrets(run.config):
        raise InputError(
            f"{path}: privacy.mechanism is {run.config.privacy.mechanism}; `confide secrets` is for mechanism: secret"
        )
    return run


@app.command()
@_verb
def redact(
    config: Path_,
    overrides: Overrides = None,
    documents: Annotated[
        int, typer.Option(help="documents that the page shows: the first, and as many drawn", min=0)
    ] = 50,
    against: Annotated[
        str | None, typer.Option(metavar="FIELD", help="field of annotated spans to compare findings with")
    ] = None,
    sample: Annotated[
        float | None, typer.Option(metavar="SHARE", help="write a share of the documents to be screened")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="with --sample: independent draws of that share; default: 1", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="with --sample: where to write")] = None,
    marks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="check a sample that a person has screened")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the detectors mask; or have a sample screened."""
    if sample is None and (draws is not None or out is not None):
        raise InputError(f"{'--out' if draws is None else '--draws'} is for --sample SHARE")
    if marks is not None and (sample is not None or against is not None):
        raise InputError(
            f"--marks checks a file, and {'--sample' if against is None else '--against'} does not"
        )
    if sample is not None and against is not None:
        raise InputError("--against is for the preview, and --sample writes a file: give one of them")
    run = _run(config, overrides)
    with run.locked():
        if marks is not None:
            _check_marks(run, marks, as_json)
        elif sample is not None:
            _write_sample(run, sample, draws or 1, out, as_json)
        else:
            _preview(run, documents, against, as_json)


def _preview(run: "Run", documents: int, against: str | None, as_json: bool) -> None:
    from confide import models, show
    from confide.console import Console
    from confide.disk import whole_file
    from confide.preparation import training_documents
    from confide.redaction.page import page
    from confide.redaction.preview import survey, with_annotations
    from confide.redaction.screening import private

    console, path = Console(), run.root / "redaction.html"
    tokenizer = models.load_tokenizer(run.config)
    with console.track("documents searched") as track:
        text = training_documents(with_annotations(run.config, against))
        found = survey(
            run.config, text, run.key(), track, documents, against, run.root / "spans.db", tokenizer
        )
    with whole_file(path) as building, open(building, "w", encoding="utf-8", opener=private) as stream:
        stream.write(page(found, run.config))
    if as_json:
        _print(found.facts)
        return
    show.redaction(found.facts, found.examples)
    print(f"masked documents: {path} (private)")


def _write_sample(run: "Run", share: float, draws: int, out: Path | None, as_json: bool) -> None:
    from functools import partial

    from confide.console import Console
    from confide.preparation import training_documents
    from confide.redaction.policy import Policy
    from confide.redaction.screening import sample

    if not 0 < share <= 1:
        raise InputError(f"--sample {share:g}: a share of the documents is above 0 and at most 1, as in 0.01")
    if out is None:
        raise InputError("--sample needs --out FILE: where to write the documents that a person is to screen")
    with (
        Policy.of(run.config, run.root / "spans.db") as policy,
        Console().track("documents written") as track,
    ):
        read = partial(training_documents, run.config)
        found = sample(read, policy, run.key(), share, draws, out, track)
    if as_json:
        _print(found)
        return
    print(
        f"wrote {found['documents']:,} of {found['of']:,} documents to {out}: its first line says what to do"
    )


def _check_marks(run: "Run", path: Path, as_json: bool) -> None:
    from confide import show
    from confide.redaction.policy import Policy
    from confide.redaction.screening import Marks

    marks = Marks.load(path)
    with Policy.of(run.config, run.root / "spans.db") as policy:
        marks.check(run.key(), policy.fingerprint)
    _print(marks.facts()) if as_json else show.marks(marks.facts())


@app.command()
@_verb
def quickstart(
    folder: Annotated[Path, typer.Option(help="where to work")] = Path("confide-quickstart"),
    as_json: Json = False,
) -> None:
    """The main job on bundled data, private beside non-private."""
    from confide import quickstart as job

    job.run(folder, as_json)


@app.command()
@_verb
def study(
    name: Annotated[str, typer.Argument(help="user-level, enron-cleaning, secret-protection, selective")],
    data: Annotated[Path, typer.Argument(help="folder that holds the public data sets")],
    folder: Annotated[Path, typer.Option(help="where to work")] = Path("runs/studies"),
    as_json: Json = False,
) -> None:
    """Repeat one paper's experiment and print its table."""
    from confide import studies

    found = studies.find(name)(data, folder / name)
    _print(found) if as_json else print(found["markdown"])


def main() -> None:
    """Entry point of the command `confide`."""
    app(prog_name="confide")


if __name__ == "__main__":
    main()
