"""Turn a job into a trained, released model: step, record, resume, release."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from confide.distributed.ranks import Ranks
from confide.models import loading as models
from confide.models import sound
from confide.privacy.guarantee import Guarantee
from confide.privacy.ledger import Ledger, versions
from confide.privacy.mechanisms.statement import recheck_claim, warnings
from confide.privacy.sampling import Draw, StopTraining
from confide.randomness.streams import generator
from confide.runs import histograms, telling
from confide.runs.earlier import note
from confide.runs.folder import Run, is_sweep
from confide.runs.job import Job
from confide.runs.provenance import code_version
from confide.runs.release import release
from confide.training.metrics import Metrics
from confide.training.step_report import Report
from confide.training.trackers import trackers_of
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.interrupts import interruptible


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        steps, of: steps taken, and the number planned.
        base, final: held-out evaluation of the base and the trained model; after: of the model after a stage, by
            its name, if another stage followed.
        halted: why the run ended before its last step, if it did: by the mechanism, or by `train.patience`. It is
            finished then.
    """

    steps: int
    of: int
    finished: bool
    guarantee: Guarantee
    base: dict[str, float | int] | None
    final: dict[str, float | int] | None
    after: dict[str, dict[str, float | int]]
    halted: str | None = None


def fine_tune(
    run: Run, console: Console | None = None, until: int | None = None, ranks: Ranks | None = None
) -> Outcome:
    """Train or resume a run to its end, and release the model.

    Args:
        until: stop after this many steps; a later call resumes.
        ranks: the processes that train it together; the first writes, all return.
    """
    console, ranks = console or Console(quiet=True), ranks or Ranks()
    if not ranks.first:
        return Loop(Job.of(run, console, ranks), None, console).go(until)
    with opened(run, console, ranks) as loop:
        return loop.go(until)


@contextmanager
def opened(
    run: Run, console: Console, ranks: Ranks | None = None, job: Job | None = None
) -> Iterator["Loop"]:
    """Lock and bind a run, resolve it, and give its steps, those before its last checkpoint taken.

    Args:
        job: what the run resolved to earlier in this process, before its model was trained.
    """
    if is_sweep(run.root):
        raise InputError(f"{run.root} holds a sweep of `confide tune`: choose another `run` folder")
    with run.locked():
        run.bind()
        job = job or Job.of(run, console, ranks)
        console.say(telling.opening(job))
        for warning in warnings(job.setting, run.config):
            console.say(f"warning: {warning}")
        if job.past is not None:
            console.say(f"warning: the claim does not cover {job.past}")
        note(job.model, job.base)
        ledger = Ledger(run.ledger_path)
        loop: Loop | None = None
        try:
            loop = Loop(job, ledger, console)
            yield loop
        finally:
            ledger.close()
            if loop is not None and loop.metrics is not None:
                loop.metrics.close()


class Loop:
    """The steps of a run, on every rank. The first rank has the ledger and writes all files.

    Attributes:
        done: number of steps taken, those of an earlier process included.
        steps: number of steps planned.
        repeats: it begins again, with steps that are in the ledger already.
    """

    def __init__(self, job: Job, ledger: Ledger | None, console: Console):
        self.job, self.ledger, self.console, self.ranks = job, ledger, console, job.ranks
        self.train = job.run.config.train
        parts = self.ranks.size if self.train.distributed == "fsdp" else 1
        self.generator = generator(job.run.config.privacy.noise, self.ranks.device, parts)
        header, checkpoint = job.header(), job.run.checkpoints.last()
        self.done = checkpoint.step if checkpoint is not None else 0
        if not self.ranks.alike(json.dumps([header, self.done])):
            raise InputError(
                f"{job.run.folder}: the ranks have different data, keys, models or checkpoints; every machine "
                "needs the same model and the same run folder, on a disk that they share"
            )
        begun = ledger.entries[0] if ledger is not None and ledger.entries else header
        if job.run.given.names and begun.get("model") != header["model"]:
            raise InputError(
                f"{job.run.folder}: this run began with another config or other objects. To resume, pass the same "
                f"{', '.join(job.run.given.names)}; a model as it was before the first step"
            )
        self.repeats = self.done == 0 and ledger is not None and len(ledger.entries) > 1
        self._record(0, header)
        self.held_out = job.held_out()  # computed once, as it is a hash of all held-out rows
        self.phase_runner, self.steps = job.phase_runner(console.say), job.mechanism.all_steps
        if self.train.patience and len(self.phase_runner.phases) > 1:
            names = ", ".join(phase.name for phase in self.phase_runner.phases)
            raise InputError(
                f"train.patience: a run of mechanism {job.mechanism.name} has several stages ({names}), and it would "
                "end within one of them: leave it out"
            )
        self.metrics: Metrics | None = None
        if ledger is not None:
            run = job.run
            trackers = trackers_of(run.config, run.folder, console.say, run.may_be_told_of)
            self.metrics = Metrics(run.metrics_path, trackers)
        if (
            ledger is not None
            and not job.mechanism.correlation.is_independent
            and self.done < job.mechanism.all_steps
        ):
            ledger.refuse_another_generator(self.generator)
        if checkpoint is not None:
            if ledger is not None:
                ledger.refuse_gaps()
            self.phase_runner.restore(checkpoint.load(job.seal, job.run.ledger_path))
            if self.train.micro_tokens != "auto":
                for step in self.phase_runner.each():
                    step.gradients.micro_tokens = self.train.micro_tokens
        if self.metrics is not None:
            self.metrics.resume(self.done)

    def go(self, until: int | None) -> Outcome:
        """Take the steps that are left, up to `until`. Release the model after the last."""
        last = self.steps if until is None else min(until, self.steps)
        self._begin()
        halted = self._impatient()
        with (
            self.console.track("step", self.steps, self.done) as track,
            interruptible() as interrupted,
        ):
            while halted is None and self.done < last and not self.ranks.any(interrupted()):
                taken = self.take()
                if isinstance(taken, StopTraining):
                    halted = taken.reason
                    break
                track(1, telling.step(taken))
                if self.done % self.train.checkpoint_every == 0:
                    self._checkpoint()
                if self.done < self.steps:
                    self._look()
                    halted = self._impatient()
        self._checkpoint()
        self._say_how_it_ended(halted)
        guarantee = self.job.guarantee(self.done)
        finished = self.done == self.steps or halted is not None
        if finished:
            self._finish(guarantee)
        return self._outcome(finished, guarantee, halted)

    def _begin(self) -> None:
        """Say where the run stands, and evaluate the base model if it is at its beginning."""
        if self.done == self.steps:
            again = ": releasing again" if self.job.run.releases else ""
            self.console.say(f"all {self.done} steps are taken already{again}")
        elif self.done:
            self.console.say(f"resuming after step {self.done}")
        elif self.train.eval_on_start and not self.job.run.twin:  # a twin starts from the private run's base
            self._evaluate("base")

    def _say_how_it_ended(self, halted: str | None) -> None:
        if halted is not None:
            self.console.say(f"ended after step {self.done} of {self.steps}: {halted}")
            if not self.phase_runner.has_begun_mean:
                self.console.say(telling.NO_MEAN)
        taken_by = versions(self.job.run.ledger_path)
        if len(taken_by) > 1:
            self.console.say(f"the steps of this run were taken by confide {', '.join(taken_by)}")

    def _finish(self, guarantee: Guarantee) -> None:
        """Evaluate the trained model and release it, once no further step follows."""
        known = self.metrics is not None and self.metrics.is_evaluated("final", self.held_out)
        if not self.ranks.any(known):  # a run that was finished earlier
            self._evaluate("final")
        if self.job.run.releases:
            recheck_claim(self.job.setting, self.job.counted(self.done))
            self._release(guarantee)
            if self.metrics is not None:
                self.metrics.guarantee(guarantee.to_json())

    def _outcome(self, finished: bool, guarantee: Guarantee, halted: str | None) -> Outcome:
        base = final = None
        after = {}
        if self.metrics is not None:
            base, final = self.metrics.last("base"), self.metrics.last("final")
            if base is not None and final is not None and final["loss"] > base["loss"]:
                self.console.say(telling.WORSE)
            found = {
                phase.name: self.metrics.last(f"after {phase.name}") for phase in self.phase_runner.phases
            }
            after = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
        return Outcome(self.done, self.steps, finished, guarantee, base, final, after, halted)

    def _record(self, number: int, entry: dict[str, Any]) -> None:
        """Write an entry to the ledger. No rank goes on before it is on disk."""
        if self.ledger is not None:
            self.ledger.record(number, entry)
        self.ranks.wait()

    def take(self, before_update: Callable[[Draw], None] | None = None) -> Report | StopTraining:
        """Take the next step: its line is in the ledger before the weights move.

        Args:
            before_update: called after that, with the draw, once the noised gradient is ready and before it is used.
        """
        began, number = time.monotonic(), self.done
        phase = self.phase_runner.phase(number)
        entry = {"phase": phase.name, "step": number, "confide": code_version()}

        def record(draw: Draw) -> None:
            spent: dict[str, Any] = {"noise_multiplier": phase.noise_multiplier * draw.noise_factor}
            if spent["noise_multiplier"]:  # a step that is taken again must have the same noise
                spent["generator"] = self.generator
            self._record(number + 1, entry | spent)
            if before_update is not None:
                before_update(draw)

        try:
            report = self.phase_runner(number, before_update=record)
        except InputError:
            # If the weights are not finite, a layer may look as if it mixed rows. So report the real cause.
            state = None if self.ranks.several else self.phase_runner.state()
            if state is not None:
                sound.refuse_diverged(state["weights"])
            raise
        if isinstance(report, StopTraining):
            self._record(number + 1, entry | {"halted": report.reason})
            return report
        self.done += 1
        if self.metrics is not None:
            self.metrics.step(
                asdict(report) | {"step": number, "seconds": round(time.monotonic() - began, 3)}
            )
        return report

    def _checkpoint(self) -> None:
        """Save the state, unless the weights are not finite.

        The weights are noised, so ending a run for this reason reveals nothing of any unit.
        """
        state = self.phase_runner.state() if self.done else None
        if state is not None:
            run = self.job.run
            sound.refuse_diverged(state["weights"])
            run.checkpoints.save(self.done, state, self.job.seal, run.ledger_path)

    def _look(self) -> None:
        """Evaluate between two steps, if it is due or a stage has ended."""
        place, own = self.job.mechanism.phase_of(self.done - 1)
        phase = self.phase_runner.phases[place]
        if own + 1 == phase.steps:
            self._evaluate(f"after {phase.name}")
        elif self.train.eval_every and self.done % self.train.eval_every == 0:
            self._evaluate("during")

    def _impatient(self) -> str | None:
        """Return why the run ends here, if the held-out loss has not fallen for too long."""
        patience = self.train.patience
        if not patience or self.done == self.steps:
            return None
        waited = self.metrics.since_lowest() if self.metrics is not None else 0
        if not self.ranks.any(waited >= patience):
            return None
        reason = (
            f"in {patience} evaluations the held-out loss was not below its lowest before (train.patience)"
        )
        phase = self.phase_runner.phase(self.done)
        entry = {"phase": phase.name, "step": self.done, "confide": code_version(), "halted": reason}
        self._record(self.done + 1, entry)
        return reason

    def _evaluate(self, what: str) -> None:
        with self.phase_runner.averaged():
            found = self.job.evaluate()
        if found is not None and self.metrics is not None:
            self.metrics.evaluation(what, self.done, found, self.held_out)
            when = f"step {self.done} of {self.steps}" if what == "during" else f"{what} model"
            self.console.say(f"{when}, held out: {telling.evaluation(found)}")

    def _release(self, guarantee: Guarantee) -> None:
        self.job.check_still()
        with self.phase_runner.averaged():
            weights = models.gathered(self.job.model, self.ranks.first)
            if self.ranks.first:
                release(self.job, guarantee, weights)
                for doubt in histograms.doubts(self.job.run.release):
                    self.console.say(f"warning: {doubt}")
