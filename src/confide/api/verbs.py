"""Run `plan`, `train`, `audit` and others from programs: the path of the command line, with objects of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.config.loading import check, load, with_overrides
from confide.utils.console import Console
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from confide.auditing.options import Options
    from confide.auditing.result import Audit
    from confide.config.schema import Config
    from confide.planning.account import Account
    from confide.planning.plan import Plan
    from confide.runs.folder import Run
    from confide.runs.loop import Outcome
    from confide.training.optimisation import OptimizerOf, SchedulerOf
    from confide.training.tasks import Loss


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read and check a config.

    Args:
        source: a YAML file, a run folder, or the config itself as a mapping.
        overrides: `key=value`, as on the command line.

    Raises:
        InputError: lists every fault that was found, one per line, each naming its key.
    """
    if isinstance(overrides, str | Mapping):
        raise InputError(
            "overrides: give a list of key=value, such as ['privacy.epsilon=3', 'train.steps=60']"
        )
    if isinstance(source, Mapping):
        return check(with_overrides(source, overrides))
    return load(Path(source), overrides)


def plan(config: Config | str | Path | Mapping[str, Any], *, times_users: Sequence[float] = ()) -> Plan:
    """Tell what a config costs and guarantees; the data are prepared if they are not yet.

    Args:
        config: a config, or what `load_config` reads one from.
        times_users: factor on the number of units, for `Plan.what_if`.

    Raises:
        InputError: the config, the data or the model is at fault.
    """
    from confide.planning.of_run import planned
    from confide.runs.folder import Run

    return planned(Run(_loaded(config)), Console(quiet=True), times_users)


def account(
    process: str,
    *,
    units: int | None = None,
    rows: int | None = None,
    rows_per_unit: int | None = None,
    batch: float | None = None,
    rate: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    adjacency: str = "zero-out",
    sampling: str = "poisson",
    max_batch: int | None = None,
    bands: int = 1,
    buffers: int = 0,
    trials: float | None = None,
    histograms: float | None = None,
) -> Account:
    """Find epsilon, delta, noise or the number of steps from the others, without data and without a config.

    Give two of epsilon, noise and steps, and the third is found; give all three, and delta is found.

    Args:
        process: uls, els, group or dp-sgd.
        units: uls: how many units there are. els and group: how many users, if known.
        rows: how many rows there are; els and group: those in use.
        rows_per_unit: els and group: the most rows of a user in use.
        batch: units (uls) or rows that a step draws on average.
        rate: instead of the batch: the probability of each unit or row.
        steps: of the run.
        epsilon: the target.
        noise_multiplier: standard deviation of the noise over the clip norm.
        delta: default: that of a run with so many rows and units.
        adjacency: zero-out, add-or-remove (needs rate and delta) or replace-one.
        sampling: poisson; truncated, at most `max_batch`; or bins (uls and dp-sgd).
        max_batch: the most units or rows of a truncated step.
        bands: uls and dp-sgd: steps over which the noise is correlated.
        buffers: in their place, with bins: buffers with which all later steps take noise back.
        trials: count the best of so many trials on average, as `confide tune` does.
        histograms: uls and dp-sgd: noise multiplier of histograms that are released with the model, as
            `privacy.histograms.noise_multiplier`.

    Raises:
        InputError: the numbers do not go together; the sentence names the option of `confide account`.

    Formal guarantee: a run of such counts and settings claims the same numbers, since the mechanism computes both.
    """
    from confide.planning.account import account as answered
    from confide.planning.asked import Asked

    return answered(
        Asked(
            process=process,
            units=units,
            rows=rows,
            rows_per_unit=rows_per_unit,
            batch=batch,
            rate=rate,
            steps=steps,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            adjacency=adjacency,
            sampling=sampling,
            max_batch=max_batch,
            bands=bands,
            buffers=buffers,
            trials=trials,
            histograms=histograms,
        )
    )


def train(
    config: Config | str | Path | Mapping[str, Any],
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    documents: Iterable[Mapping[str, Any]] | None = None,
    optimizer: OptimizerOf | None = None,
    scheduler: SchedulerOf | None = None,
    loss: Loss | None = None,
    until: int | None = None,
    twin: bool = False,
    quiet: bool = True,
) -> Outcome:
    """Train or resume a run to its end, and release the model into `config.run`.

    Objects that are passed are not loaded. A run that was begun with an optimiser, a scheduler or a loss resumes
    with those only.

    Args:
        config: a config, or what `load_config` reads one from.
        model: trained as it is: its parameters that require grad move. Afterwards it has the trained weights and
            no dropout, and is in train mode. To resume, pass it as it was before the first step.
        tokenizer: as `transformers` has them; a copy is used.
        documents: mappings with the fields that `data.text` and `data.unit` name, such as the rows of a data set.
            A run that was begun keeps the rows that it began with.
        optimizer: called with the list of parameters, as `functools.partial(torch.optim.AdamW, lr=1e-3)` is. It
            sets its own learning rate; that of the config is not used. If its groups of parameters have a key
            `noise_std`, the standard deviation of the noise on each element of the gradient is put there: with
            correlated noise that of the first step, with `adaptive` the most that a step may have.
        scheduler: called with the optimiser; stepped after every step.
        loss: called with model and batch (`input_ids` int64[B, T], `real` bool[B, T], `unpredicted` bool[B, T] if
            some tokens are only read, and `labels` if the task has them); returns float[B], a loss for each row, of
            that row alone.
        until: stop after this many steps; a later call resumes.
        twin: train the non-private twin instead.
        quiet: print nothing on the way.

    Raises:
        InputError: the config, the data or what was passed is at fault.

    Formal guarantee: that of the returned `Outcome.guarantee`. Optimiser and scheduler see noised sums alone,
    which is post-processing. A loss is tested before training: it is refused if its value for a row depends on
    another row of the batch. That is a test on some rows and no proof, as `not_covered` says: a loss that mixes
    other rows breaks the guarantee.
    """
    from confide.runs.folder import Run
    from confide.runs.given import Given
    from confide.runs.loop import fine_tune

    if until is not None and until < 1:
        raise InputError(f"until: {until}; give how many steps to stop after, 1 or more")
    given = Given(model, tokenizer, documents, optimizer, scheduler, loss)
    return fine_tune(Run(_loaded(config), twin, given), Console(quiet=quiet), until)


def audit(
    run: str | Path | Run,
    options: Options | None = None,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    optimizer: OptimizerOf | None = None,
    scheduler: SchedulerOf | None = None,
    loss: Loss | None = None,
) -> Audit:
    """Attack a trained run at the unit that it claims to protect. The result is kept in its folder.

    Args:
        run: its folder.
        options: which attacks, and how far; default: all.
        model: what `train` was given, as it was before the first step.
        tokenizer: what `train` was given.
        optimizer: what `train` was given.
        scheduler: what `train` was given.
        loss: what `train` was given.

    Raises:
        InputError: nothing was trained there, or the trained state there is not the run's.
    """
    from confide.auditing.of_run import audit_run
    from confide.runs.folder import Run
    from confide.runs.given import Given

    given = Given(model, tokenizer, None, optimizer, scheduler, loss)
    found = run if isinstance(run, Run) else Run.load(run, given=given)
    return audit_run(found, Console(quiet=True), options)


def _loaded(config: Config | str | Path | Mapping[str, Any]) -> Config:
    if isinstance(config, str | Path | Mapping):
        return load_config(config)
    if config is None:
        raise InputError("config: is None; give a config, a YAML file, a run folder or a mapping")
    return config


def report(run: str | Path, private: bool = False) -> Path:
    """Write the page that says what a run protects, for people who are not engineers.

    Args:
        run: the folder of a finished run, or a copy of its release.
        private: also show what was measured on private text. Such a page must not be handed on.

    Returns:
        The path of the page: `report.html` in the folder, or `report-private.html`.

    Raises:
        InputError: nothing was released there, or a release alone was given with `private`.
    """
    from confide.reporting.facts import Facts
    from confide.reporting.written import write_report

    return write_report(Facts.of(Path(run), private), Path(run))
