"""Propose candidates for a sweep: drawn independently, which can be counted, or chosen in view of earlier losses."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from confide.data.shape import Shape
from confide.privacy import mechanisms
from confide.privacy.accounting import Trials
from confide.privacy.mechanisms.statement import CalibratedMechanism, calibrate, promise, together
from confide.privacy.mechanisms.tuned import UNTUNED, CountedSweep, SweepAccounting, UncountedSweep
from confide.randomness.streams import RunKey
from confide.tuning.space import Candidate, Listed, Space
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config

Proposals = Generator[list[Candidate], list[float], None]
"""Yields candidates that may be tried in parallel, and is sent their losses."""

_WORST = 1e9  # for Optuna, which accepts no infinity


class Search(Protocol):
    """Proposes candidates, and states the effect on the claim."""

    @property
    def tuning(self) -> SweepAccounting:
        """Effect on each trial."""

    def facts(self) -> dict[str, Any]:
        """Return what the candidates depend on, apart from space, config, data and key."""

    def agrees(self, config: "Config", other: "Config", shape: Shape) -> bool:
        """Return True if a candidate has the required cost.

        Raises:
            InputError: it cannot run on such data at all.
        """

    def propose(self, space: Space, key: RunKey) -> Proposals: ...

    def released(self, settings: list[CalibratedMechanism]) -> SweepAccounting:
        """Return the effect on the release: the best of trials with these settings."""


@dataclass(frozen=True)
class Independent:
    """A random number of candidates, drawn independently before the first trial: the cost is counted."""

    trials: Trials

    @property
    def tuning(self) -> SweepAccounting:
        return CountedSweep(self.trials)

    def facts(self) -> dict[str, Any]:
        return {"search": "independent", "mean": self.trials.mean, "shape": self.trials.shape}

    def agrees(self, config: "Config", other: "Config", shape: Shape) -> bool:
        own, its = (promise(setting_of(one, shape, self.tuning), one) for one in (config, other))
        return own == its

    def propose(self, space: Space, key: RunKey) -> Proposals:
        number = self.trials.number(float(key.stream("sweep", "trials").uniform(1)[0]))
        yield [space.draw(key.stream("sweep", "candidate", place)) for place in range(1, number + 1)]

    def released(self, settings: list[CalibratedMechanism]) -> SweepAccounting:
        return self.tuning


@dataclass(frozen=True)
class Adaptive:
    """Optuna's tree-structured Parzen estimator, which learns from the losses so far: the cost is not covered.

    Attributes:
        runs: number of candidates.
        at_once: number of candidates proposed together, to be tried in parallel.
    """

    runs: int
    at_once: int = 1

    @property
    def tuning(self) -> SweepAccounting:
        return UNTUNED

    def facts(self) -> dict[str, Any]:
        return {"search": "adaptive", "at_once": self.at_once}

    def agrees(self, config: "Config", other: "Config", shape: Shape) -> bool:
        setting_of(other, shape, self.tuning)
        return True

    def propose(self, space: Space, key: RunKey) -> Proposals:
        """Propose the same candidates again if the same losses are sent, so that a stopped sweep can resume."""
        optuna = _optuna()
        seed = int(key.stream("sweep", "search").uint64(1)[0] >> 32)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        for begun in range(0, self.runs, self.at_once):
            asked = [study.ask() for _ in range(min(self.at_once, self.runs - begun))]
            losses = yield [_suggested(trial, space) for trial in asked]
            for trial, loss in zip(asked, losses, strict=True):
                study.tell(trial, min(loss, _WORST))

    def released(self, settings: list[CalibratedMechanism]) -> SweepAccounting:
        return UncountedSweep(len(settings), together(settings))


def setting_of(config: "Config", shape: Shape, tuning: SweepAccounting = UNTUNED) -> CalibratedMechanism:
    """Return the mechanism of a config on data of this shape, with its noise."""
    privacy = config.privacy
    return calibrate(
        mechanisms.build(config), shape, privacy.epsilon, privacy.noise_multiplier, privacy.delta, tuning
    )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "--optuna needs a package that is not installed: pip install 'confide[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(trial: Any, space: Space) -> Candidate:
    found: Candidate = {}
    for choice in space.choices:
        if isinstance(choice, Listed):  # by place, since a value may be a list
            place = trial.suggest_categorical(choice.key, range(len(choice.values)))
            found[choice.key] = choice.values[place]
        elif choice.whole:
            found[choice.key] = trial.suggest_int(choice.key, choice.low, choice.high, log=choice.log)
        else:
            value = trial.suggest_float(choice.key, choice.low, choice.high, log=choice.log)
            found[choice.key] = choice.rounded(value)
    return found
