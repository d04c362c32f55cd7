"""The verbs of a run: from text to a trained model."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.cli.base import (
    Cluster,
    ConfigPath,
    Json,
    Overrides,
    Processes,
    RunFolder,
    Stopped,
    app,
    check_new,
    config_of,
    crew_of,
    job_of,
    print_json,
    run_of,
    verb,
)
from confide.utils.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from confide.runs.folder import Run
    from confide.runs.job import Job


@app.command()
@verb
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="file, folder, maildir, mbox ...")],
    out: Annotated[Path, typer.Option(help="where to write the config")] = Path("confide.yaml"),
    yes: Annotated[
        bool, typer.Option("--yes", help="ask nothing: take the field that most likely names people")
    ] = False,
    model: Annotated[
        str,
        typer.Option(help="folder or hub name; written with LoRA, and held in as many bits as memory allows"),
    ] = "bundled",
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="values for the config, as data.unit=customer: keys of data, privacy.epsilon and task",
        ),
    ] = None,
) -> None:
    """Look at a file or folder and write a commented config for it.

    Example: confide init mail.csv data.unit=customer --out mail.yaml --model models/llama-1b
    """
    from confide.cli import show_look, starter
    from confide.cli.given import Given
    from confide.cli.look import look
    from confide.config.json_schema import FILE, SHIPPED
    from confide.utils.files import write_text

    check_new(out, "--out")
    found = look(data, given=Given.of(data, values or ()))
    fits = None
    if model != starter.BUNDLED:
        from confide.planning.what_fits import what_fits

        fits = what_fits(model, starter.MAX_LENGTH, starter.RANK)
    show_look.people(found)
    unit = show_look.unit(found, yes)
    draft = starter.draft(found, unit, model, fits)
    write_text(out, draft.config)
    schema = out.parent / FILE  # the first line of the config names it
    if not schema.exists():
        write_text(schema, SHIPPED.read_text("utf-8"))
    show_look.drafted(draft, unit, out)


@app.command()
@verb
def schema() -> None:
    """Print the JSON Schema of the config, for editors.

    Example: confide schema > confide.schema.json
    """
    from confide.config.json_schema import json_schema

    print_json(json_schema())


@app.command()
@verb
def prepare(
    config: ConfigPath,
    overrides: Overrides = None,
    processes: Processes = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Read the text, and show who wrote how much.

    Example: confide prepare mail.yaml --processes 8
    """
    # Before torch is imported, which takes seconds: a mistake in the config is told at once.
    run, crew = run_of(config, overrides), crew_of(processes, cluster)

    from confide.cli import show
    from confide.models import loading as models
    from confide.runs.preparation import PICTURE, prepared_data
    from confide.utils.console import Console

    with run.locked():
        facts = prepared_data(run, models.load_tokenizer(run.config), Console(), crew=crew).facts
    if as_json:
        print_json(facts)
        return
    show.preparation(facts)
    print(f"histogram of rows per unit: {run.data / PICTURE}")


@app.command()
@verb
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    times_users: Annotated[
        list[float] | None,
        typer.Option(
            help="also the noise if there were so many times the users: a what-if, never a guarantee"
        ),
    ] = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="rank hundreds of settings at the same target and compute")
    ] = False,
    rows: Annotated[
        float | None, typer.Option(help="--suggest: rows to compute in all; default: as this config does")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="read private gradients first, which no guarantee covers: of 128 units for --suggest or uls, of 64 "
            "for concentration",
        ),
    ] = False,
    count: Annotated[int | None, typer.Option(help="--suggest: settings to show; default: 5", min=1)] = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="8xH200", help="also estimate time, memory and utilisation on such GPUs"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="--suggest: write the config of the first one")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what a config costs and guarantees, or rank settings.

    Example: confide plan mail.yaml privacy.epsilon=3 --suggest
    """
    run = run_of(config, overrides)  # before torch is imported

    from confide.cli import show_plans
    from confide.planning.of_run import planned
    from confide.privacy import mechanisms
    from confide.utils.console import Console

    given = {"--rows": rows, "--count": count, "--out": out}
    if not suggest and (stray := [name for name, value in given.items() if value is not None]):
        raise InputError(f"{stray[0]} is an option of --suggest")
    console = Console()
    measures = mechanisms.find(run.config.privacy.mechanism).measures
    if measure and not suggest and measures is None:
        able = [name for name in mechanisms.NAMES if mechanisms.find(name).measures]
        raise InputError(f"--measure is an option of --suggest, and of the mechanisms {' and '.join(able)}")
    if suggest and devices is not None:
        raise InputError("--devices: is of a plan and not of --suggest: leave one of them out")
    if suggest and times_users:
        raise InputError("--times-users: is of a plan and not of --suggest: leave one of them out")
    if suggest:
        _suggest(run, config, rows, measure, count, out, as_json)
        return
    found = planned(run, console, times_users or (), devices).to_json()
    if measure and measures is not None:
        console.say("measuring gradients of some units")
        with run.locked():
            found[measures] = _MEASURED[measures](job_of(run), found["chosen"]["epsilon"])
    if as_json:
        print_json(found)
        return
    show_plans.plan(found)
    if "larger_priors" in found:
        print(f"picture of the sweep: {run.root / 'program.svg'}")


def _nearness(job: "Job", epsilon: float | str) -> dict[str, Any]:
    from confide.planning.nearness import nearness

    return nearness(job, job.mechanism.cap(job.setting.shape), job.run.key()).facts()


def _split(job: "Job", epsilon: float | str) -> dict[str, Any]:
    from confide.planning.user_sampling import measured_split

    if isinstance(epsilon, str):
        raise InputError(
            f"privacy.noise_multiplier: epsilon is {epsilon}, at which there is no noise to compare"
        )
    return measured_split(job, epsilon)


_MEASURED = {"nearness": _nearness, "split": _split}


def _suggest(
    run: "Run",
    path: Path,
    rows: float | None,
    measure: bool,
    count: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from confide.cli import show_plans
    from confide.config.rewriting import rewritten
    from confide.models import loading as models
    from confide.planning import suggest as suggesting
    from confide.planning.cost import Size
    from confide.planning.user_sampling import measured_norms
    from confide.privacy import mechanisms
    from confide.runs.preparation import prepared_data
    from confide.training.optimisation import check_factors
    from confide.tuning.space import altered
    from confide.utils.console import Console
    from confide.utils.files import write_text

    console = Console()
    check_new(out, "--out")
    if rows is not None and not 0 < rows < math.inf:
        raise InputError(f"--rows {rows:g}: give how many rows all steps together may compute, as in 100000")
    with run.locked():
        tokenizer = models.load_tokenizer(run.config)
        prepared = prepared_data(run, tokenizer, console)
        model = models.load_model(run.config, prepared.classes, len(tokenizer))
        norms = None
        if measure:
            job = job_of(run)
            with console.track("gradients measured") as track:
                lengths = [cap for cap in mechanisms.find("uls").suggested_caps if isinstance(cap, int)]
                found_norms = dict(zip(lengths, measured_norms(job, lengths), strict=True))
            norms = found_norms.__getitem__
        with console.track("settings compared") as track:
            found = suggesting.suggest(
                run.config,
                prepared.train.shape(),
                Size.of(model),
                rows,
                norms,
                count or suggesting.SUGGESTED,
                track,
            )
    if out is not None:
        chosen = altered(run.config, found["ranked"][0]["settings"], "--suggest")
        check_factors(chosen, model)
        write_text(out, rewritten(path, chosen))
    if as_json:
        print_json(found)
        return
    show_plans.suggestions(found)
    if out is not None:
        print(f"\nwrote {out}: `confide plan {out}` says what to expect of it, `confide train {out}` trains")


@app.command()
@verb
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    twin: Annotated[
        bool, typer.Option(help="train the non-private twin instead: same draws, no protection")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train, or resume where it stopped; release the model. Runs under torchrun, too.

    Example: confide train mail.yaml privacy.epsilon=3
    """
    if "WORLD_SIZE" not in os.environ:  # several ranks end together, and one of them tells why
        config_of(config, overrides)  # before torch is imported

    from confide.cli import show
    from confide.distributed.ranks import Ranks
    from confide.reporting.facts import Facts
    from confide.reporting.written import write_report
    from confide.runs.loop import fine_tune
    from confide.utils.console import Console

    with Ranks.joined() as ranks:
        run, console = run_of(config, overrides, twin), Console(quiet=not ranks.first)
        if twin and not (run.root / "config.yaml").is_file():
            raise InputError(f"{run.root}: train the run itself first, with this command without --twin")
        console.say(_opening(run))
        outcome = fine_tune(run, console, ranks=ranks)
        ranks.wait()
    if not ranks.first:
        return
    if not outcome.finished:
        raise Stopped(f"stopped after step {outcome.steps} of {outcome.of}; the same command resumes")
    facts = Facts.of(run.root, with_measured=True, twin=twin)
    page = None if twin else write_report(facts.without_measured(), run.root)
    if as_json:
        print_json(show.outcome_facts(outcome))
    else:
        show.outcome(outcome, run, facts, page)


def _opening(run: "Run") -> str:
    """Say what is trained, before the text is read and the model loaded."""
    config = run.config
    twin = "the non-private twin of " if run.twin else ""
    return f"training {twin}{config.model} ({config.task}, {config.adapter.kind}) on {config.data.train}"


@app.command("eval")
@verb
def evaluate(
    run: RunFolder,
    base: Annotated[bool, typer.Option(help="evaluate the base model instead")] = False,
    twin: Annotated[bool, typer.Option(help="evaluate the non-private twin instead")] = False,
    personalise: Annotated[
        bool,
        typer.Option(
            "--personalise",
            help="train a copy on half of each held-out user's rows too, and measure it on the other half",
        ),
    ] = False,
    users: Annotated[int | None, typer.Option(help="--personalise: how many at most; default: 200")] = None,
    epochs: Annotated[int | None, typer.Option(help="--personalise: over a user's rows; default: 4")] = None,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(help="--personalise: give several to choose from; default: 0.003, 0.01, 0.03"),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="--personalise: sgd or adam; default: sgd")] = None,
    as_json: Json = False,
) -> None:
    """Loss, perplexity and accuracy on the held-out units. Runs under torchrun, too.

    Example: confide eval runs/mail
    """
    from confide.cli import show
    from confide.distributed.ranks import Ranks
    from confide.runs.folder import Run
    from confide.runs.job import Job
    from confide.utils.console import Console

    wanted = {"users": users, "epochs": epochs, "learning_rate": learning_rate, "optimizer": optimizer}
    given = {name: value for name, value in wanted.items() if value is not None}
    if given and not personalise:
        raise InputError(f"--{min(given).replace('_', '-')} is an option of --personalise")
    loaded = Run.load(run, twin)
    if not base and loaded.checkpoints.last() is None:
        raise InputError(f"{loaded.folder}: nothing was trained here yet; `{loaded.command}` does")
    with Ranks.joined() as ranks:
        job = Job.of(loaded, Console(quiet=not ranks.first), ranks)
        phase_runner = job.phase_runner()
        if not base:
            phase_runner.restore(job.trained()[1])
        with phase_runner.averaged():
            result: dict[str, Any] | None = job.evaluate()
            fitted = _personalised(job, given) if personalise else {}
    if not ranks.first:
        return
    if result is None:
        raise InputError(
            f"{run}: this run held out no text (data.eval): set data.eval in your config, and train in another `run` "
            "folder"
        )
    if as_json:
        print_json(result | fitted)
        return
    show.evaluation(result)
    if fitted:
        show.personalisation(fitted["personalisation"], "tokens" if "tokens" in result else "rows")


def _personalised(job: "Job", options: dict[str, Any]) -> dict[str, Any]:
    from confide.runs.personalise import personalise
    from confide.utils.console import Console

    with Console().track("users personalised") as track:
        return {"personalisation": personalise(job, **options, progress=track).to_json()}


@app.command()
@verb
def verify(config: ConfigPath, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check clipping, draws, noise and weights on your own rows.

    Example: confide verify mail.yaml
    """
    run = run_of(config, overrides)  # before torch is imported

    from confide.cli import show
    from confide.runs import verify as checks

    with run.locked():
        job = job_of(run)
        found = checks.verify(job)
    print_json(found) if as_json else show.checks(found)
    if not found["ok"]:
        raise CheckFailed("a check failed; do not trust this setting")


@app.command()
@verb
def quickstart(
    folder: Annotated[Path, typer.Option(help="where to work")] = Path("confide-quickstart"),
    as_json: Json = False,
) -> None:
    """Train on bundled mails, with privacy and without, in minutes.

    Example: confide quickstart
    """
    from confide.cli import quickstart as job

    job.run(folder, as_json)
