"""Take the steps of a run in their order, over its stages, and collect the state to save between two steps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.values import Phase
from confide.privacy.sampling import Draw, StopTraining
from confide.training.averaging import Averages
from confide.training.step import PrivateStep
from confide.training.step_report import Report

Build = Callable[[Phase], PrivateStep]


class PhaseRunner:
    """Takes the steps of a run one after the other. Each stage has its own sampler, noise and optimiser.

    An optimiser lives from the first to the last step of its stage, so a run in two phases never holds two.

    Args:
        mechanism: decides which stage a step belongs to.
        stages: the stages of this run.
        build: makes the steps of a stage.
        averages: takes in the weights after each step.
    """

    def __init__(self, mechanism: Mechanism, phases: Sequence[Phase], build: Build, averages: Averages):
        self.mechanism, self.phases, self._build = mechanism, phases, build
        self._averages = averages
        self._steps: dict[int, PrivateStep] = {}

    def __call__(
        self, number: int, before_update: Callable[[Draw], None] | None = None
    ) -> Report | StopTraining:
        """Take step `number` of the run, counted from 0, or return why the run has ended."""
        place, own = self.mechanism.phase_of(number)
        if place not in self._steps:
            self._forget_done(number)
            self._steps[place] = self._build(self.phases[place])
        taken = self._steps[place](own, before_update)
        if isinstance(taken, Report):
            self._averages.update(number)
        return taken

    def averaged(self) -> AbstractContextManager[None]:
        """Give the model the weights that are evaluated and released, inside the context."""
        return self._averages.applied()

    @property
    def has_begun_mean(self) -> bool:
        """True if the released weights are the mean that the config asks for, or if it asks for none."""
        return self._averages.has_begun

    def phase(self, number: int) -> Phase:
        """Return the stage of step `number`."""
        return self.phases[self.mechanism.phase_of(number)[0]]

    def _forget_done(self, number: int) -> None:
        coming = {self.mechanism.phase_of(other)[0] for other in range(number, self.mechanism.all_steps)}
        for place in set(self._steps) - coming:
            del self._steps[place]

    def state(self) -> dict[str, Any] | None:
        """Return the state needed to resume, as `PrivateStep.state`: on the first rank; None on the others."""
        states = {place: step.state() for place, step in self._steps.items()}
        average = self._averages.state()
        if not states or None in states.values():
            return None
        weights = None
        kept = {}
        for place, state in states.items():  # all stages share the weights of the one model
            assert state is not None
            weights = state.pop("weights")
            kept[place] = state
        return {"weights": weights, "stages": kept, "average": average}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a full state, which every rank must hold."""
        for place, kept in state["stages"].items():
            self._steps[place] = self._build(self.phases[place])
            self._steps[place].restore({"weights": state["weights"], **kept})
        self._averages.restore(state["average"])

    def each(self) -> Iterator[PrivateStep]:
        """Yield the steps that exist now."""
        yield from self._steps.values()
