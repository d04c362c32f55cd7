"""A config to a trained, released model: prepare, calibrate, step, record, resume, release."""

import hashlib
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from confide import __version__, evaluation, mechanisms, models, preparation
from confide.allocator import keep_freed_memory
from confide.claims import Guarantee
from confide.console import Console
from confide.course import Course
from confide.disk import write_text
from confide.errors import InputError
from confide.ledger import Ledger
from confide.mechanisms.base import Mechanism, Stage, Terms
from confide.mechanisms.none import NonPrivate
from confide.mechanisms.statement import Setting, settle, state_guarantee
from confide.metrics import Metrics
from confide.noise import RunKey
from confide.physical import fit
from confide.preparation import Prepared
from confide.ranks import Ranks
from confide.runs import Run
from confide.settings import Config
from confide.sharding import part, shard
from confide.tasks import Task
from confide.training import Optimisation, Report, Step
from confide.units import UnitGraph


@dataclass(frozen=True)
class Job:
    """Everything that a run resolves to before its first step."""

    run: Run
    key: RunKey
    tokenizer: Any
    prepared: Prepared
    mechanism: Mechanism
    setting: Setting
    model: nn.Module
    task: Task
    base: bytes  # digest of the weights before the first step
    micro_tokens: int
    ranks: Ranks

    @classmethod
    def of(cls, run: Run, console: Console, ranks: Ranks | None = None) -> "Job":
        """Resolve a run: its data (prepared if they are not), mechanism, noise and model."""
        config, ranks = run.config, ranks or Ranks()
        if not ranks.alike(config.to_yaml()):
            raise InputError("the ranks have different configs: every machine needs the same one")
        keep_freed_memory()
        tokenizer = models.load_tokenizer(config)
        with ranks.first_ahead():
            prepared, key = prepared_data(run, tokenizer, console, ranks), run.key()
        mechanism = mechanisms.build(config)
        if run.twin:
            mechanism = NonPrivate.twin(mechanism)
        privacy = config.privacy
        target = (
            {}
            if mechanism.notion == "none"
            else {"epsilon": privacy.epsilon, "noise_multiplier": privacy.noise_multiplier}
        )
        with ranks.first_ahead():  # what is derived from the graph, the first rank writes and the others read
            setting = settle(mechanism, prepared.train.shape(), delta=privacy.delta, **target)
        model = models.load_model(config, prepared.classes, len(tokenizer))
        base = _weights_digest(model)
        bound = [run.binding().encode(), _digest(prepared.train)]
        if prepared.public is not None:
            bound.append(_digest(prepared.public))
        apart = mechanism.told_apart(prepared.train.shape())
        if apart:
            bound.append(apart)
        if not key.published:  # a published key is to repeat everywhere, and has nothing left to hide
            bound.append(base)
        task = Task.of(config.task, model, tokenizer, config.train.precision, ranks.device)
        if ranks.several and config.train.distributed == "fsdp":
            shard(model, ranks)
        else:
            model.to(ranks.device)
        micro_tokens = _micro_tokens(config, model, task, ranks, console)
        return cls(
            run,
            key.bound_to(*bound),
            tokenizer,
            prepared,
            mechanism,
            setting,
            model,
            task,
            base,
            micro_tokens,
            ranks,
        )

    def course(self, say: Callable[[str], None] = lambda text: None) -> Course:
        """The steps of this run, before its first."""
        stages = self.mechanism.stages(self.setting.shape, self.setting.noise_multiplier)
        return Course(self.mechanism, stages, lambda stage: self._steps(stage, say))

    def _graph(self, stage: Stage) -> UnitGraph:
        graph = self.prepared.train
        if stage.on_public:
            assert self.prepared.public is not None
            graph = self.prepared.public
        return graph

    def _terms(self, stage: Stage) -> Terms:
        return stage.mechanism.terms(self._graph(stage).shape()) if stage.on_public else self.setting.terms

    def _steps(self, stage: Stage, say: Callable[[str], None]) -> Step:
        config = self.run.config
        train = config.train
        values = {name: getattr(train, name) for name in Optimisation.__dataclass_fields__}
        values |= {"steps": stage.steps, "learning_rate": stage.learning_rate or train.learning_rate}

        def score() -> Any:
            return self.run.once(
                "perplexities",
                lambda: evaluation.perplexities(
                    self.model, self.task, self.prepared.train, self.micro_tokens, self.ranks
                ),
                self.ranks,
            )

        graph, terms = self._graph(stage), self._terms(stage)
        return Step(
            self.model,
            self.task,
            stage.mechanism.sampler(graph, self.key, stage.name, score),
            stage.mechanism.combine(terms, stage.noise_multiplier),
            Optimisation(**values),
            self.key,
            stage.name,
            config.privacy.noise,
            self.micro_tokens,
            self.ranks,
            say,
        )

    def evaluate(self) -> dict[str, float | int] | None:
        if self.prepared.held_out is None:
            return None
        return evaluation.evaluate(
            self.model, self.task, self.prepared.held_out, self.micro_tokens, self.ranks
        )

    def guarantee(self, steps: int) -> Guarantee:
        """What the run protects after `steps` steps."""
        return state_guarantee(self.setting, steps, self.key.published, self.run.config, self.provenance())

    def header(self) -> dict[str, Any]:
        """The first line of the ledger: the run's constants, bound to its config and data under the run key."""
        terms, combine = (
            self.setting.terms,
            self.mechanism.combine(self.setting.terms, self.setting.noise_multiplier),
        )
        stages = self.mechanism.stages(self.setting.shape, self.setting.noise_multiplier)
        return {
            "mechanism": self.mechanism.name,
            "steps": self.mechanism.all_steps,
            "stages": [
                {"phase": stage.name, "steps": stage.steps, "noise_multiplier": stage.noise_multiplier}
                | {"divisor": terms_of.divisor, "sampling_probability": terms_of.sampling.rate}
                for stage, terms_of in ((stage, self._terms(stage)) for stage in stages)
            ],
            "sampling": terms.sampling.record(self.key.fingerprint),
            "divisor": terms.divisor,
            "clip_norm": combine.clip_norm,
            "noise_multiplier": combine.noise_multiplier,
            "delta": self.setting.delta,
            "config": self.key.fingerprint(self.run.binding().encode()),
            "data": self.key.fingerprint(_digest(self.prepared.train)),
            "model": self.key.fingerprint(self.base),
        }

    def provenance(self) -> dict[str, str]:
        return {
            "confide": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "hardware": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else platform.machine() + " CPU",
            "date": datetime.now(UTC).date().isoformat(),
            "config_hmac": self.key.fingerprint(self.run.binding().encode()),
            "data_hmac": self.key.fingerprint(_digest(self.prepared.train)),
        }


def _micro_tokens(config: Config, model: nn.Module, task: Task, ranks: Ranks, console: Console) -> int:
    if config.train.micro_tokens != "auto":
        return config.train.micro_tokens
    states = {"adamw": 2, "sgd": 1}.get(config.train.optimizer, 0)
    later = 4 * states * sum(part(p).numel() for p in models.trainable(model).values())
    found = fit(model, task, config.data.max_length, ranks, later)
    console.say(f"micro-batches of {found:,} tokens, as memory allows")
    return found


def _weights_digest(model: nn.Module) -> bytes:
    """What the base model is, by its weights: a name can come to mean others."""
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(
            values.detach().cpu().contiguous().view(torch.uint8).numpy().data if values.dim() else b""
        )
    return digest.digest()


def _digest(graph: UnitGraph) -> bytes:
    """A plain hash of private text: it stays inside this process, only HMACs of it are written."""
    plain = hashlib.sha256()
    graph.digest(plain.update)
    return plain.digest()


def prepared_data(run: Run, tokenizer: Any, console: Console, ranks: Ranks | None = None) -> Prepared:
    """The run's unit graphs, made now if they are not there; of several ranks the first makes them."""
    found = preparation.load(run.config, run.data)
    if ranks is not None and not ranks.first:
        if found is None:
            raise InputError(
                f"{run.data}: what the first rank prepared is not here; the ranks need one disk to share"
            )
        return found
    begun = run.ledger_path.exists() or (run.root / "ledger.jsonl").exists()
    if found is not None and (begun or not preparation.outdated(run.config, run.data)):
        return found  # a run that has begun goes on with the rows it began with
    if found is not None:
        console.say("the text has changed since it was prepared: reading it again")
    elif begun and (run.data / "prepared.json").exists():
        raise InputError(
            f"{run.root} holds a run on other data (the `data` section, task or tokenizer differs): "
            "choose another `run` folder"
        )
    with console.track("reading documents") as track:
        return preparation.prepare(run.config, tokenizer, run.data, track)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        steps, of: taken, and of how many.
        base, final: held-out evaluation of the base and the trained model; after: of the model after a stage, by its
            name, where another stage followed.
    """

    steps: int
    of: int
    finished: bool
    guarantee: Guarantee
    base: dict[str, float | int] | None
    final: dict[str, float | int] | None
    after: dict[str, dict[str, float | int]]


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
        return _Loop(Job.of(run, console, ranks), None, console).go(until)
    with run.locked():
        run.bind()
        job = Job.of(run, console, ranks)
        console.say(_in_short(job))
        ledger = Ledger(run.ledger_path)
        try:
            return _Loop(job, ledger, console).go(until)
        finally:
            ledger.close()


class _Loop:
    """The steps of a run, on every rank. The first has the ledger and writes all files."""

    def __init__(self, job: Job, ledger: Ledger | None, console: Console):
        self.job, self.ledger, self.console, self.ranks = job, ledger, console, job.ranks
        self.train = job.run.config.train
        header, found = job.header(), job.run.last_checkpoint()
        self.done = found[0] if found is not None else 0
        if not self.ranks.alike(json.dumps([header, self.done])):
            raise InputError(
                f"{job.run.folder}: the ranks have different data, keys, models or checkpoints; every machine "
                "needs the same model and the same run folder, on a disk that they share"
            )
        self._record(0, header)
        self.metrics = Metrics(job.run.metrics_path, job.run.tensorboard) if ledger is not None else None
        self.course, self.steps = job.course(console.say), job.mechanism.all_steps
        if found is not None:
            if ledger is not None:
                _refuse_gaps(ledger, self.done)
            self.course.restore(found[1])
            if self.train.micro_tokens != "auto":
                for step in self.course.each():
                    step.micro_tokens = self.train.micro_tokens
        if self.metrics is not None:
            self.metrics.resume(self.done)

    def go(self, until: int | None) -> Outcome:
        last = self.steps if until is None else min(until, self.steps)
        if self.done == self.steps:
            self.console.say(f"all {self.done} steps are taken already: evaluating and releasing again")
        elif self.done:
            self.console.say(f"resuming after step {self.done}")
        elif not self.job.run.twin:  # a twin starts from the private run's base
            self._evaluate("base")
        with (
            self.console.track("step", self.steps, self.done) as track,
            _interruptible() as interrupted,
        ):
            while self.done < last and not self.ranks.any(interrupted()):
                report = self._take()
                track(1, _note(report))
                if self.done % self.train.checkpoint_every == 0:
                    self._checkpoint()
                if self.done < self.steps:
                    self._look()
        self._checkpoint()
        finished = self.done == self.steps
        if finished:
            self._evaluate("final")
            self._release()
        base = final = None
        after = {}
        if self.metrics is not None:
            self.metrics.close()
            base, final = self.metrics.last("base"), self.metrics.last("final")
            found = {stage.name: self.metrics.last(f"after {stage.name}") for stage in self.course.stages}
            after = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
        return Outcome(self.done, self.steps, finished, self.job.guarantee(self.done), base, final, after)

    def _record(self, number: int, entry: dict[str, Any]) -> None:
        """Into the ledger, and on no rank further before it is on disk."""
        if self.ledger is not None:
            self.ledger.record(number, entry)
        self.ranks.wait()

    def _take(self) -> Report:
        began, number = time.monotonic(), self.done
        stage = self.course.stage(number)
        entry = {"phase": stage.name, "step": number, "noise_multiplier": stage.noise_multiplier}
        report = self.course(number, before_update=lambda: self._record(number + 1, entry))
        self.done += 1
        if self.metrics is not None:
            self.metrics.step(
                asdict(report) | {"step": number, "seconds": round(time.monotonic() - began, 3)}
            )
        return report

    def _checkpoint(self) -> None:
        state = self.course.state() if self.done else None
        if state is not None:
            self.job.run.save_checkpoint(self.done, state)

    def _look(self) -> None:
        """Evaluate between two steps, if it is time or a stage has ended."""
        place, own = self.job.mechanism.turn(self.done - 1)
        stage = self.course.stages[place]
        if own + 1 == stage.steps:
            self._evaluate(f"after {stage.name}")
        elif self.train.eval_every and self.done % self.train.eval_every == 0:
            self._evaluate("during")

    def _evaluate(self, what: str) -> None:
        found = self.job.evaluate()
        if found is not None and self.metrics is not None:
            self.metrics.evaluation(what, self.done, found)
            self.console.say(
                f"{what} model, held out: loss {found['loss']:.4f}, perplexity {found['perplexity']:.1f}"
            )

    def _release(self) -> None:
        job, guarantee = self.job, self.job.guarantee(self.done)
        text = json.dumps(guarantee.to_json(), indent=2) + "\n"
        weights = models.gathered(job.model, self.ranks.first)
        if not self.ranks.first:
            return
        with job.run.releasing() as folder:
            models.save(job.model, job.tokenizer, folder, job.run.config.model, weights)
            write_text(folder / "guarantee.json", text)
            write_text(folder / "README.md", _card(job, guarantee))
        write_text(job.run.guarantee_path, text)


def _refuse_gaps(ledger: Ledger, done: int) -> None:
    recorded = [entry.get("step") for entry in ledger.entries[1:]]
    if len(recorded) < done or recorded != list(range(len(recorded))):
        raise InputError(
            f"{ledger.path} does not record every step up to {done}, which the checkpoint has taken: "
            "lines are missing, and the ledger cannot be trusted"
        )


def _in_short(job: Job) -> str:
    terms, setting = job.setting.terms, job.setting
    noise = f"noise multiplier {setting.noise_multiplier:.4g}, delta {setting.delta:.3g}"
    what = f"{terms.expected_batch:g} {job.mechanism.draws} a step"
    return (
        f"{terms.units:,} units with {terms.rows:,} rows to train on, {what}; "
        f"{'no privacy' if job.mechanism.notion == 'none' else noise}"
    )


def _card(job: Job, guarantee: Guarantee) -> str:
    base = models.public_name(job.run.config.model)
    return (
        f"# A language model fine-tuned with confide\n\nBase model: `{base}`. Task: {job.task.kind}.\n\n"
        f"{guarantee.model_card_section()}\n## Use\n\n```python\n{_usage(job, base)}```\n"
    )


def _usage(job: Job, base: str) -> str:
    """How to load the release, as code."""
    auto = models.AUTO[job.task.kind]
    if job.run.config.adapter.kind != "lora":
        return f'from transformers import {auto}\n\nmodel = {auto}.from_pretrained("release")\n'
    bundled, place = base == models.BUNDLED, json.dumps(base)
    entries = job.model.get_input_embeddings().num_embeddings  # type: ignore[operator]  # a Hugging Face model
    return (
        "from peft import PeftModel\n"
        f"from transformers import {auto}\n"
        + ("from confide.models import location\n" if bundled else "")
        + f"\nbase = {auto}.from_pretrained({f'location({place})' if bundled else place})\n"
        + (f"base.resize_token_embeddings({entries})\n" if models.added_tokens(job.model) else "")
        + 'model = PeftModel.from_pretrained(base, "release")\n'
    )


def _note(report: Report) -> str:
    parts = [f"{report.units} clipped together" if report.units != report.rows else f"{report.rows} rows"]
    if report.loss is not None:
        parts.append(f"loss {report.loss:.3f}")
    if report.clipped is not None:
        parts.append(f"{report.clipped:.0%} clipped")
    return ", ".join(parts)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the loop after the step in hand; a second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = [(number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)]
    except ValueError:  # not the main thread: whoever runs us handles signals
        before = []
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
