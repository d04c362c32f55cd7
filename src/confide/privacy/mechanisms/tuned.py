"""The search for a run's settings, and how it changes the run's process and claim."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from confide.privacy.guarantee import NOT_COVERED, TUNING
from confide.privacy.strength import LARGE
from confide.utils.errors import InputError
from confide.utils.rounding import at_most

if TYPE_CHECKING:  # a page about a run is written without the accountants
    from confide.privacy.accounting import Trials
    from confide.privacy.mechanisms.statement import CalibratedMechanism
    from confide.privacy.mechanisms.values import PrivacyParameters


@dataclass(frozen=True)
class SweepAccounting:
    """Settings found outside of the run, in an unknown way: the claim says that it does not cover the search."""

    @property
    def output(self) -> str:
        """The output that the guarantee is about, in words."""
        return _OF_RUN

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Everything left uncovered in a run whose settings were found in this way."""
        return NOT_COVERED

    def accountant(self, of_one: str) -> str:
        """Name the accountant of the curve; `of_one` names that of a single run."""
        return of_one

    def parameters(self, parameters: "PrivacyParameters") -> "PrivacyParameters":
        """Derive the parameters of what is released from those of one run."""
        return parameters

    def admit(self, setting: "CalibratedMechanism", epsilon: float | None) -> None:
        """Raise InputError if a mechanism, at the noise for `epsilon` if given, cannot be tuned so."""

    def doubts(self) -> tuple[str, ...]:
        """Return the reasons why the figures are an estimate."""
        return ()

    def epsilons(self) -> tuple[tuple[str, float], ...]:
        """Return (assumption, epsilon) pairs besides the claimed epsilon; only estimates have some."""
        return ()


_OF_RUN = "all checkpoints and the final model of this run together, if no other model of the same text is given away"
UNTUNED = SweepAccounting()

_CHOSEN_BY = "the held-out units, by whose loss the best trial was chosen"


@dataclass(frozen=True)
class CountedSweep(SweepAccounting):
    """The best of a random number of independent trials: the claim is about the whole sweep.

    Formal guarantee: `accounting.Repeated`, if all settings that a trial can draw share the process, its noise and
    everything else the claim depends on (`statement.promise`), and if only the best trial of the sweep is released.
    The score is the loss on held-out rows, which are the same in both worlds: `held_out_rules` sees to that.
    """

    trials: "Trials"

    @property
    def output(self) -> str:
        return (
            "all checkpoints and the final model of the best trial of a sweep together, if no other model of the same "
            "text is given away: none of the other trials, nor how many there were or which of them was the best"
        )

    @property
    def not_covered(self) -> tuple[str, ...]:
        others = tuple(line for line in NOT_COVERED if line != TUNING)
        return (
            *others,
            "the choice of what the sweep searched, and tuning outside of it",
            _CHOSEN_BY,
        )

    def accountant(self, of_one: str) -> str:
        return f"confide's bound for the best of a random number of runs, on {of_one}"

    def parameters(self, parameters: "PrivacyParameters") -> "PrivacyParameters":
        from confide.privacy.accounting import Repeated

        return replace(
            parameters,
            process=Repeated(parameters.process, self.trials),
            zeroed=Repeated(parameters.zeroed, self.trials),
            facts=(
                *parameters.facts,
                "what the sweep searched, the settings of the best trial, and that the number of trials was random: "
                f"{self.trials.describe()}",
            ),
        )

    def admit(self, setting: "CalibratedMechanism", epsilon: float | None) -> None:
        mechanism, noise = setting.mechanism, setting.noise_multiplier
        if not mechanism.protects:
            raise InputError(
                "privacy.mechanism: none protects nobody, so there is nothing to count: use --optuna"
            )
        parts = setting.claim()
        if (
            parts.secret_targets
            or parts.epsilons
            or (epsilon is not None and noise > 0 and not _meets(setting, epsilon))
        ):
            raise InputError(
                f"privacy.mechanism: the claim of {mechanism.name}, as it is set here, does not follow from one "
                "epsilon alone, so the cost of a sweep cannot be counted: use --optuna"
            )


def _meets(setting: "CalibratedMechanism", epsilon: float) -> bool:
    """Tell whether a whole sweep meets its target with the noise that the mechanism chose."""
    return setting.curve().epsilon(setting.delta) <= epsilon


@dataclass(frozen=True)
class UncountedSweep(SweepAccounting):
    """The best of several runs, each of which may use the results of those before: its cost is not covered.

    Attributes:
        runs: the number of runs.
        together: (epsilon, delta) of all of them by composition, None if nothing is protected.
    """

    runs: int
    together: tuple[float, float] | None

    @property
    def not_covered(self) -> tuple[str, ...]:
        told = f"{TUNING}: {self.runs} runs were made, of which this is the best"
        return (*(told if line == TUNING else line for line in NOT_COVERED), _CHOSEN_BY)

    def doubts(self) -> tuple[str, ...]:
        return (
            f"this run was chosen as the best of {self.runs} on the same rows, and the figures are those of one",
        )

    def epsilons(self) -> tuple[tuple[str, float], ...]:
        if self.together is None:
            return ((f"for all {self.runs} runs together, of which one or more protect nobody", math.inf),)
        epsilon, delta = self.together
        if delta > LARGE:
            said = f"for all {self.runs} runs together: their delta of {at_most(delta, 3)} allows all"
            return ((said, math.inf),)
        return ((f"at delta {at_most(delta, 3)} for all {self.runs} runs together, by composition", epsilon),)
