"""Sweep: run one config on many settings, and release the best by held-out loss.

Each trial is a whole run with a folder and a key of its own. Both are functions of the sweep's, so a stopped
sweep can resume. Trials, their losses and their number are private; only the best leaves the house.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confide.config.schema import Config
from confide.data.shape import Shape
from confide.data.unit_graph import UnitGraph
from confide.privacy.accounting import Repeated, Trials
from confide.privacy.ledger import Ledger
from confide.privacy.mechanisms.held_out_rules import SWEEP, check_choice
from confide.privacy.mechanisms.tuned import CountedSweep, SweepAccounting
from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey
from confide.runs.data_source import source_of
from confide.runs.folder import Run
from confide.runs.given import tokenizer_of
from confide.runs.loop import Outcome, fine_tune
from confide.runs.preparation import Prepared, prepared_data
from confide.tuning.search import Search, setting_of
from confide.tuning.space import Candidate, Space, altered
from confide.utils.console import Console
from confide.utils.errors import Diverged, InputError

MEANS = (4, 8, 16, 32)
"""Average numbers of trials that a price list shows, besides the one asked for."""


class Trial(Run):
    """One run of a sweep: on the sweep's rows, with a key derived from the sweep's.

    Args:
        sweep: the run whose folder holds the sweep.
        number: counted from 1.
        candidate: the settings that it tries; `config` is the sweep's with these.
        bound: identifies the sweep, so that another one in the same folder draws afresh.
        tuning: the effect on noise and claim.
        releases: whether it is the best one, and ends in the sweep's `release/`. Of the others nothing is
            released, so that no folder holds a guarantee that does not hold.
    """

    def __init__(
        self,
        sweep: Run,
        number: int,
        candidate: Candidate,
        config: Config,
        bound: bytes,
        tuning: SweepAccounting,
        releases: bool = False,
    ):
        folder = sweep.root / "trials" / f"{number:04}"
        super().__init__(config.model_copy(update={"run": str(folder)}))
        self.sweep, self.number, self.candidate, self.bound, self.tuning = (
            sweep,
            number,
            candidate,
            bound,
            tuning,
        )
        self.data = sweep.data
        self.release, self.guarantee_path, self.releases = sweep.release, sweep.guarantee_path, releases

    @property
    def begun(self) -> bool:
        """True always: its rows are the sweep's, and were settled before its first trial."""
        return True

    def key(self) -> RunKey:
        return self.sweep.key().bound_to(self.bound, b"trial", str(self.number).encode())

    def data_key(self) -> RunKey:
        return self.sweep.data_key()


@dataclass(frozen=True)
class Tried:
    """Result of a trial. Private.

    Attributes:
        evaluation: of the trained model on the held-out units.
    """

    number: int
    candidate: Candidate
    evaluation: dict[str, float | int]

    @property
    def loss(self) -> float:
        """Held-out loss; infinite if the run diverged."""
        found = float(self.evaluation["loss"])
        return found if math.isfinite(found) else math.inf


@dataclass(frozen=True)
class Swept:
    """Result of a sweep. All but the release and its guarantee is private.

    Attributes:
        trials: in the order of their numbers.
        best: the released one of these.
        outcome: of its run, with the guarantee of the sweep.
    """

    trials: tuple[Tried, ...]
    best: Tried
    outcome: Outcome


Executor = Callable[[Callable[[Trial], Tried], Sequence[Trial]], Iterable[Tried]]
"""Function like `map`, which takes the trials one after the other."""


def sweep(
    run: Run,
    space: Space,
    search: Search,
    console: Console | None = None,
    executor: Executor = map,
) -> Swept:
    """Run or resume all trials of a sweep, and release the best.

    Args:
        run: the config and folder of the sweep; trials lie in `trials/`.
        executor: runs the trials of a batch.

    Raises:
        InputError: the space holds values that cannot be tried, the config has no held-out units of their own, these
            may hold what is protected, or the folder holds something else.
        KeyboardInterrupt: stopped; the same call resumes.
    """
    console = console or Console(quiet=True)
    with run.locked():
        run.bind()
        prepared = prepared_data(run, tokenizer_of(run.config, run.given), console)
        held_out, shape = check_held_out(run.config, prepared), prepared.train.shape()
        check_space(space, search, run.config, shape)
        header = _header(run, space, search, prepared.train, held_out)
        ledger = Ledger(run.ledger_path)
        try:
            _refuse_another(ledger, header, run)
            ledger.record(0, header)
            return _Sweep(run, space, search, shape, header, ledger, console, executor).go()
        finally:
            ledger.close()


def check_held_out(config: Config, prepared: Prepared) -> UnitGraph:
    """Return the rows that a sweep chooses by.

    Raises:
        InputError: there are none, or they may hold what is protected.
    """
    if prepared.held_out is None:
        raise InputError("data.eval: a sweep chooses by held-out loss: name evaluation data, or a share")
    check_choice(config, prepared.held_out, prepared.trained, SWEEP)
    return prepared.held_out


def check_space(space: Space, search: Search, config: Config, shape: Shape) -> None:
    """Check extreme values, key by key and then together, before anything runs.

    Raises:
        InputError: names the key at fault.
    """
    for choice in space.choices:
        for value in choice.edges():
            _admitted({choice.key: value}, search, config, shape)
    for corner in space.corners():
        _admitted(corner, search, config, shape)


def _admitted(candidate: Candidate, search: Search, config: Config, shape: Shape) -> Config:
    """Return the config of a candidate, if it may be tried."""
    other, names = altered(config, candidate), ", ".join(candidate)
    if source_of(other) != source_of(config):
        raise InputError(
            f"--space: {names} decides which rows there are, and all trials share theirs: leave it out"
        )
    if not search.agrees(config, other, shape):
        raise InputError(
            f"--space: {names} enters the claim, and all trials of a counted sweep must claim and cost the same: "
            "leave it out, or use --optuna, which does not count"
        )
    return other


def _header(run: Run, space: Space, search: Search, train: UnitGraph, held_out: UnitGraph) -> dict[str, Any]:
    """Return the first line of the sweep's ledger, which all trials are bound to.

    With other held-out rows another trial may be the best. If these rows were left out, two copies of one sweep could
    release two of the same trials, each as if it were the only one.
    """
    key = run.key()
    return {
        **search.facts(),
        "space": space.describe(),
        "config": key.fingerprint(run.binding().encode()),
        "data": key.fingerprint(train.plain_digest()),
        "held_out": key.fingerprint(held_out.plain_digest()),
    }


def _refuse_another(ledger: Ledger, header: dict[str, Any], run: Run) -> None:
    if not ledger.entries:
        return
    if "search" not in ledger.entries[0]:
        raise InputError(f"{run.root} holds a single run: choose another `run` folder for the sweep")
    differing = [name for name in header if ledger.entries[0].get(name) != header[name]]
    if differing:
        raise InputError(
            f"{run.root} holds another sweep (differs in {', '.join(differing)}): choose another `run` folder. If this "
            "one has released a model, count what both sweeps cost together"
        )


@dataclass
class _Sweep:
    """The trials of a sweep, in batches that the search proposes."""

    run: Run
    space: Space
    search: Search
    shape: Shape
    header: dict[str, Any]
    ledger: Ledger
    console: Console
    executor: Executor

    def __post_init__(self) -> None:
        self.bound = json.dumps(self.header, sort_keys=True).encode()
        self.trials: list[Trial] = []
        self.tried: list[Tried] = []

    def go(self) -> Swept:
        proposals = self.search.propose(self.space, self.run.key().bound_to(self.bound))
        batch = next(proposals)
        while batch:
            try:
                batch = proposals.send(self._try(batch))
            except StopIteration:
                break
        if len(self.ledger.entries) > 1 + len(self.tried):
            raise InputError(
                f"--trials {len(self.tried)}: {len(self.ledger.entries) - 1} runs were made here already, and the "
                "claim must count them all: ask for as many"
            )
        best = min(self.tried, key=lambda tried: (tried.loss, tried.number))
        if math.isinf(best.loss):
            raise Diverged(
                f"every one of {len(self.tried)} trials diverged, and nothing is released: search lower learning "
                "rates in another `run` folder, and count what both sweeps cost together"
            )
        return Swept(tuple(self.tried), best, self._release(self.trials[best.number - 1]))

    def _try(self, batch: list[Candidate]) -> list[float]:
        """Record the candidates of a batch, run them, and return their losses."""
        trials = [self._trial(len(self.trials) + place, c) for place, c in enumerate(batch, 1)]
        for trial in trials:
            self.ledger.record(trial.number, {"trial": trial.number, "candidate": trial.candidate})
        self.trials += trials
        self.tried += self.executor(partial(run_trial, console=self.console), trials)
        return [tried.loss for tried in self.tried[-len(batch) :]]

    def _trial(self, number: int, candidate: Candidate) -> Trial:
        config = _admitted(candidate, self.search, self.run.config, self.shape)
        return Trial(self.run, number, candidate, config, self.bound, self.search.tuning)

    def _release(self, best: Trial) -> Outcome:
        settings = [setting_of(trial.config, self.shape, trial.tuning) for trial in self.trials]
        tuning = self.search.released(settings)
        self.console.say(f"releasing the best of {len(self.trials)} trials")
        again = Trial(self.run, best.number, best.candidate, best.config, self.bound, tuning, releases=True)
        return _finished(fine_tune(again, self.console))


def run_trial(trial: Trial, console: Console) -> Tried:
    """Run or resume a trial, or read its result."""
    path, seal = trial.root / "result.json", Seal(trial.key())
    if not path.exists():
        settings = ", ".join(f"{key}={value}" for key, value in trial.candidate.items())
        console.say(f"trial {trial.number}: {settings}")
        try:
            final = _finished(fine_tune(trial, console)).final
        except Diverged:
            # Divergence is a result like any other, and the worst. If it ended the sweep, that would have to be
            # counted in the claim.
            console.say(f"trial {trial.number} diverged")
            final = {"loss": math.inf}
        assert final is not None  # a sweep has held-out units
        seal.write_json(path, "result", final)
    try:
        return Tried(trial.number, trial.candidate, seal.read_json(path, "result"))
    except Broken:
        raise InputError(
            f"{path} is damaged, or of another trial: remove it, and the trial is evaluated again"
        ) from None


def _finished(outcome: Outcome) -> Outcome:
    if not outcome.finished:
        raise KeyboardInterrupt
    return outcome


def prices(config: Config, shape: Shape, trials: Trials) -> dict[str, Any]:
    """Compute what a counted sweep costs compared with a single run, before anything runs.

    Returns:
        epsilon, delta, noise_multiplier of a single run; and `sweeps`, for some average numbers of trials: `most`
        (19 of 20 sweeps have at most so many), the epsilon of the sweep at the noise of the single run, and the
        noise at which the sweep has the single run's epsilon.
    """
    single = setting_of(config, shape)
    epsilon = config.privacy.epsilon or single.curve().epsilon(single.delta)
    target = {"epsilon": epsilon, "noise_multiplier": None, "delta": single.delta}
    aimed = config.model_copy(update={"privacy": config.privacy.model_copy(update=target)})
    rows = []
    for mean in sorted({*MEANS, trials.mean}):
        some = Trials(mean, trials.shape)
        noise = setting_of(aimed, shape, CountedSweep(some)).noise_multiplier
        same = Repeated(single.parameters.process, some).curve(single.noise_multiplier).epsilon(single.delta)
        rows.append(
            {
                "trials": mean,
                "most": some.number(0.95),
                "epsilon_at_same_noise": same,
                "noise_multiplier": noise,
                "relative_noise": noise / single.noise_multiplier,
            }
        )
    return {
        "epsilon": epsilon,
        "delta": single.delta,
        "noise_multiplier": single.noise_multiplier,
        "sweeps": rows,
    }
