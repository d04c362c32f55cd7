"""`confide redact`: what detectors mask, and a sample for a person to screen."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confide.cli.base import (
    Cluster,
    ConfigPath,
    Json,
    Overrides,
    Processes,
    app,
    crew_of,
    print_json,
    run_of,
    verb,
)
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.runs.folder import Run
    from confide.runs.training_text import TrainingText
    from confide.utils.workers import Crew


@app.command()
@verb
def redact(
    config: ConfigPath,
    overrides: Overrides = None,
    documents: Annotated[
        int, typer.Option(help="documents on the page: the first N, and N at random", min=0)
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
    processes: Processes = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show what the detectors mask; or have a sample screened.

    Example: confide redact mail.yaml --sample 0.01 --out sample.jsonl
    """
    if sample is None and (draws is not None or out is not None):
        raise InputError(f"{'--out' if draws is None else '--draws'} is for --sample SHARE")
    if marks is not None and (sample is not None or against is not None):
        raise InputError(
            f"--marks and {'--sample' if against is None else '--against'} do different things: give one of them"
        )
    if sample is not None and against is not None:
        raise InputError("--against is for the preview, and --sample writes a file: give one of them")
    crew = crew_of(processes, cluster)
    run = run_of(config, overrides)
    _check_mechanism(run.config)
    with run.locked():
        if marks is not None:
            _check_marks(run, marks, as_json)
        elif sample is not None:
            _write_sample(run, sample, draws or 1, out, crew, as_json)
        else:
            _preview(run, documents, against, crew, as_json)


def _check_mechanism(config: "Config") -> None:
    """Refuse a config whose mechanism reads no detector, and say how to look at what one finds all the same."""
    from confide.config import registry

    name = config.privacy.mechanism
    if "detector" not in registry.mechanism(name).reads:
        raise InputError(
            f"privacy.mechanism: {name} masks nothing, so there is nothing to show; to see what a detector finds, put "
            "privacy.mechanism=selective and 'detector.patterns=[EMAIL_ADDRESS]' (or others) behind the config"
        )


def _preview(run: "Run", documents: int, against: str | None, crew: "Crew | None", as_json: bool) -> None:
    from confide.cli import show
    from confide.sensitive.redaction.page import page
    from confide.sensitive.redaction.preview import survey, with_annotations
    from confide.sensitive.redaction.screening import private
    from confide.utils.console import Console
    from confide.utils.files import whole_file

    console, path = Console(), run.root / "redaction.html"
    text = _text(run, with_annotations(run.config, against), crew)
    cache = run.root / "spans.db"
    with console.track("documents searched") as track:
        found = survey(
            run.config, text.read, text.key, track, documents, against, cache, text.tokenizer, crew
        )
    with whole_file(path) as building, open(building, "w", encoding="utf-8", opener=private) as stream:
        stream.write(page(found, run.config))
    text.forget()
    if as_json:
        print_json(found.facts)
        return
    show.redaction(found.facts, found.examples)
    print(f"masked documents: {path} (private)")


def _text(run: "Run", config: "Config", crew: "Crew | None") -> "TrainingText":
    from confide.models import loading as models
    from confide.runs.training_text import TrainingText

    tokenizer = models.load_tokenizer(run.config)
    return TrainingText(config, tokenizer, run.root / ".redact.parts", run.data_key(), crew)


def _write_sample(
    run: "Run", share: float, draws: int, out: Path | None, crew: "Crew | None", as_json: bool
) -> None:
    from confide.sensitive.redaction.policy import Policy
    from confide.sensitive.redaction.screening import sample
    from confide.utils.console import Console

    if not 0 < share <= 1:
        raise InputError(f"--sample {share:g}: a share of the documents is above 0 and at most 1, as in 0.01")
    if out is None:
        raise InputError("--sample needs --out FILE: where to write the documents that a person is to screen")
    with (
        Policy.of(run.config, run.root / "spans.db", run.data_key(), crew) as policy,
        Console().track("documents written") as track,
    ):
        text = _text(run, run.config, crew)
        found = sample(text.documents, policy, run.key(), share, draws, out, track)
        text.forget()
    if as_json:
        print_json(found)
        return
    print(
        f"wrote {found['documents']:,} of {found['of']:,} documents to {out}: its first line says what to do"
    )


def _check_marks(run: "Run", path: Path, as_json: bool) -> None:
    from confide.cli import show
    from confide.sensitive.redaction.policy import Policy
    from confide.sensitive.redaction.screening import Marks

    marks = Marks.load(path)
    with Policy.of(run.config, run.root / "spans.db", run.data_key()) as policy:
        marks.check(run.key(), policy.fingerprint)
    print_json(marks.facts()) if as_json else show.marks(marks.facts())
