"""Resolve everything that a run needs before its first step: data, mechanism, noise, model, key."""

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.config import registry
from confide.data.unit_graph import UnitGraph
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_sharded, part, shard
from confide.models import loading as models
from confide.models.expected_tokens import expects_now, keep_expected
from confide.models.fast.chunked_loss import chunk_of
from confide.models.quantised_split import make_splittable
from confide.models.sharded import fill
from confide.privacy import ledger, mechanisms
from confide.privacy.correlated_noise import SQUARE_ROOT
from confide.privacy.guarantee import Guarantee
from confide.privacy.ledger import first_entry
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import CalibratedMechanism, calibrate, state_guarantee
from confide.privacy.mechanisms.values import Phase, PrivacyParameters, Sampler
from confide.randomness.seal import Seal
from confide.randomness.streams import LAYOUT, RunKey
from confide.runs import fingerprints, histograms
from confide.runs.canaries import GRAPH, Manifest
from confide.runs.earlier import earlier_run
from confide.runs.evidence import evidence
from confide.runs.folder import Run
from confide.runs.given import model_of, tokenizer_of
from confide.runs.preparation import Prepared, prepared_data
from confide.runs.provenance import code_version
from confide.training import evaluation
from confide.training import perplexity as scoring
from confide.training.averaging import Averages
from confide.training.memory_fit import fit, optimizer_copies
from confide.training.optimisation import Optimisation, check_factors, scales_of
from confide.training.phases import PhaseRunner
from confide.training.row_isolation import (
    check_loss_independence,
    check_row_independence,
    detect_packing_support,
)
from confide.training.step import Observer, PrivateStep
from confide.training.tasks import Task
from confide.training.trackers import told_private
from confide.training.unit_comparison import refuse_ranks
from confide.training.white_box import Readings
from confide.utils.allocator import keep_freed_memory
from confide.utils.console import Console
from confide.utils.errors import InputError

_SEEN = 64  # rows from which two are taken to test that the model keeps rows apart


@dataclass(frozen=True)
class Job:
    """Everything that a run resolves to before its first step."""

    run: Run
    key: RunKey
    tokenizer: Any
    prepared: Prepared
    mechanism: Mechanism
    setting: CalibratedMechanism
    model: nn.Module
    task: Task
    base: bytes  # digest of the weights before the first step
    micro_tokens: int
    ranks: Ranks
    still: bytes = b""  # digest of what no step of a calling program's own model or loss may move
    past: str | None = None  # an earlier run that moved the base model

    @classmethod
    def of(cls, run: Run, console: Console, ranks: Ranks | None = None) -> "Job":
        """Resolve a run: its data (prepared if they are not yet), mechanism, noise and model."""
        ranks = ranks or Ranks()
        if not ranks.alike(run.config.to_yaml()):
            raise InputError("the ranks have different configs: every machine needs the same one")
        run.check_given()
        keep_freed_memory()
        tokenizer = tokenizer_of(run.config, run.given)
        with ranks.first_ahead():
            prepared, key = prepared_data(run, tokenizer, console, ranks), run.key()
        prepared.check_patience(run.config)
        setting = _calibrated(run, prepared.train, ranks)
        model, stored = model_of(
            run.config, run.given, prepared.classes, len(tokenizer), _is_split(run, ranks)
        )
        if run.given.optimizer is None:  # before the ledger binds the folder to a word that fits nothing
            check_factors(run.config, model)
        base = fingerprints.of_weights(model, stored, ranks)
        key = _bound_key(key, run, setting.mechanism, prepared, base)
        if stored or (
            _is_split(run, ranks) and run.config.base.quantise != "none" and run.given.model is None
        ):
            _split(run, model, ranks)
            fill(model, stored, run.config.model, ranks)
        task = _placed_task(run, model, tokenizer, setting.mechanism, prepared.train, ranks, console)
        if setting.mechanism.common_tokens:
            _keep_expected(run, model, key.fingerprint(base)[:16], ranks, Seal(key))
        micro_tokens = _micro_tokens(run, model, task, ranks, console)
        still = fingerprints.of_still(model) if run.given.names and not _is_split(run, ranks) else b""
        return cls(
            run,
            key,
            tokenizer,
            prepared,
            setting.mechanism,
            setting,
            model,
            task,
            base,
            micro_tokens,
            ranks,
            still,
            earlier_run(model, base, run.config.model),
        )

    @property
    def seal(self) -> Seal:
        """Return the seal that recognises files of this run: of this config, these data and this base model."""
        return Seal(self.key)

    def trained(self) -> tuple[int, dict[str, Any]]:
        """Return the number of steps taken, and the state that was saved last.

        Raises:
            InputError: nothing was trained, or the saved state is not this run's.
        """
        checkpoint = self.run.checkpoints.last()
        if checkpoint is None:
            raise InputError(f"{self.run.folder}: nothing was trained here yet; `{self.run.command}` does")
        self.check_begun()
        return checkpoint.step, checkpoint.load(self.seal, self.run.ledger_path)

    def phases(self) -> tuple[Phase, ...]:
        return self.mechanism.phases(self.setting.shape, self.setting.noise_multiplier)

    def phase_runner(self, say: Callable[[str], None] = lambda text: None) -> PhaseRunner:
        """Make the steps of this run, before its first."""
        averages = Averages(
            models.trainable(self.model), self.run.config.train.average, self.mechanism.all_steps
        )
        return PhaseRunner(self.mechanism, self.phases(), lambda phase: self._steps(phase, say), averages)

    def alone(self, phase: Phase) -> "Job":
        """Return a job of one of the stages, on its rows."""
        graph = self._graph(phase)
        setting = replace(
            self.setting,
            mechanism=phase.mechanism,
            shape=graph.shape(),
            parameters=self._terms(phase),
            noise_multiplier=phase.noise_multiplier,
        )
        prepared = replace(self.prepared, train=graph)
        return replace(self, mechanism=phase.mechanism, setting=setting, prepared=prepared)

    def _graph(self, phase: Phase) -> UnitGraph:
        if not phase.on_public:
            return self.prepared.train
        assert self.prepared.public is not None
        return self.prepared.public

    def _terms(self, phase: Phase) -> PrivacyParameters:
        return (
            phase.mechanism.parameters(self._graph(phase).shape())
            if phase.on_public
            else self.setting.parameters
        )

    def _steps(self, phase: Phase, say: Callable[[str], None]) -> PrivateStep:
        config = self.run.config
        of_twin = config.train.twin_learning_rate if self.run.twin else None
        optimisation = replace(
            Optimisation.of(config.train, steps=phase.steps, learning_rate=phase.learning_rate or of_twin),
            optimizer_of=self.run.given.optimizer,
            scheduler_of=self.run.given.scheduler,
        )
        alone = self.alone(phase)
        aggregation = phase.mechanism.aggregation(alone.setting.parameters, phase.noise_multiplier)
        return PrivateStep(
            self.model,
            self.task,
            self.sampler(phase),
            aggregation,
            optimisation,
            self.key,
            phase.name,
            config.privacy.noise,
            self.micro_tokens,
            self.ranks,
            say,
            self._observer(phase),
            self.run.folder,
        )

    def sampler(self, phase: Phase) -> Sampler:
        """Return the sampler of a stage's rows."""
        # Bound to this config, these rows and these weights: a twin may have left the numbers of other ones, of
        # text that has changed.
        name = f"perplexities-{self.key.fingerprint(self.base)[:16]}"

        def score() -> Any:
            return self.run.once(
                name, lambda: self._perplexities(phase.mechanism.scorer), self.ranks, self.seal
            )

        return phase.mechanism.sampler(self._graph(phase), self.key, phase.name, score)

    def _observer(self, phase: Phase) -> Observer | None:
        """Return the observer that keeps the canaries' traces in the noised sums, if the config asks for it."""
        if not self.run.config.canaries.white_box or self.run.twin or phase.on_public:
            return None
        return self.readings(phase)

    def readings(self, phase: Phase) -> Readings:
        """Return the readings of the canaries in the noised sums of a stage."""
        manifest, graph = self.manifest(), self._graph(phase)
        contents, units = UnitGraph.open(self.run.data / GRAPH), manifest.units(graph)
        terms = self._terms(phase)
        aggregation = phase.mechanism.aggregation(terms, phase.noise_multiplier)
        return Readings(
            self.model,
            self.task,
            self.run.folder / f"evidence-{phase.name}-{manifest.commitment[:16]}.f32",
            phase.steps,
            units
            if phase.mechanism.draws == "units"
            else np.concatenate([graph.rows_of(int(u)) for u in units]),
            contents,
            manifest.rows(contents),
            self.seal,
            aggregation.clip_norm,
            aggregation.noise_scale,
            aggregation.scale,
            terms.mean_rate,
            self.micro_tokens,
            self.ranks.first,
            scales_of(self.model, aggregation.scales, aggregation.common_tokens),
        )

    def manifest(self) -> Manifest:
        """Return the manifest of the planted canaries."""
        return Manifest.load(self.run.data)

    def _perplexities(self, scorer: str | None) -> np.ndarray:
        """Compute the perplexity of every row under a model that saw none: the scorer, or the base as it is now."""
        graph, micro_tokens = self.prepared.train, self.micro_tokens
        if scorer is None:
            return evaluation.perplexities(self.model, self.task, graph, micro_tokens, self.ranks)
        return scoring.perplexities(scorer, self.tokenizer, graph, micro_tokens, self.ranks)

    def evaluate(self) -> dict[str, float | int] | None:
        if self.prepared.held_out is None:
            return None
        return evaluation.evaluate(
            self.model, self.task, self.prepared.held_out, self.micro_tokens, self.ranks
        )

    def held_out(self) -> str | None:
        """Return a name of the held-out rows that is unique to them and lets nobody test guesses of them."""
        graph = self.prepared.held_out
        return None if graph is None else self.key.fingerprint(graph.plain_digest())

    def counted(self, steps: int) -> int:
        """Return the steps that a claim after `steps` steps counts: all, if it was for the loss to say when to end."""
        return self.mechanism.all_steps if self.run.config.train.patience else steps

    def guarantee(self, steps: int, counted: int | None = None) -> Guarantee:
        """Return the guarantee of the run after `steps` steps, with what an audit has found of it.

        Args:
            counted: the steps that it counts, if they are more than `counted` says.
        """
        counted = counted or self.counted(steps)
        stated = state_guarantee(
            self.setting, steps, self.key.published, self.run.config, self.provenance(), counted
        )
        if self.task.loss is not None:
            own = "a row's loss that hangs on other rows: the program's own loss was tried on some, which is no proof"
            stated = replace(stated, not_covered=(*stated.not_covered, own), words=())
        if self.past is not None:
            stated = replace(stated, not_covered=(*stated.not_covered, self.past), words=())
        told = told_private(self.run.folder)
        if told:
            sent = f"losses and other measurements made from private rows: they were sent to {told}"
            stated = replace(stated, not_covered=(*stated.not_covered, sent), words=())
        seen = evidence(self.run, steps)
        return replace(stated, evidence=seen) if seen else stated

    def header(self) -> dict[str, Any]:
        """Return the first line of the ledger: the run's constants, bound to its config and data under the run key."""
        parameters, aggregation = (
            self.setting.parameters,
            self.mechanism.aggregation(self.setting.parameters, self.setting.noise_multiplier),
        )
        exponent = aggregation.correlation.exponent
        return {
            "mechanism": self.mechanism.name,
            "steps": self.mechanism.all_steps,
            "stages": [
                {"phase": phase.name, "steps": phase.steps, "noise_multiplier": phase.noise_multiplier}
                | {"divisor": terms_of.divisor, "sampling_probability": terms_of.sampling.rate}
                for phase, terms_of in ((phase, self._terms(phase)) for phase in self.phases())
            ],
            "sampling": parameters.sampling.record(self.key.fingerprint),
            "divisor": parameters.divisor,
            "clip_norm": aggregation.clip_norm,
            "noise_multiplier": aggregation.noise_multiplier,
            "delta": self.setting.delta,
            "config": self.key.fingerprint(self.run.binding().encode()),
            "data": self.key.fingerprint(self.prepared.train.plain_digest()),
            "model": self.key.fingerprint(self.base),
            "noise": LAYOUT,
            # Runs that began before 2026-11-29 have none: with adamw it is always this one.
            **({"exponent": exponent} if exponent != SQUARE_ROOT else {}),
            **histograms.header(self.mechanism, self.run.config.data, self.key),
        } | (self._planted() if self.run.config.canaries.count else {})

    def _planted(self) -> dict[str, Any]:
        """Return the canaries and the terms of a later audit, sealed before training."""
        facts = json.dumps(self.prepared.facts["canaries"], sort_keys=True)
        return {"canaries": self.manifest().commitment, "planted": self.key.fingerprint(facts.encode())}

    def check_still(self) -> None:
        """Check that a calling program's own model or loss has moved nothing but the trainable parameters.

        Raises:
            InputError: a buffer, or a parameter that does not train, has changed: it would be released without noise.
        """
        if self.still and fingerprints.of_still(self.model) != self.still:
            raise InputError(
                "model: a buffer, or a parameter that does not train, has changed while it trained; what it holds of "
                "rows no noise covers, so that nothing is released. Keep state out of the model and the loss"
            )

    def check_begun(self) -> None:
        """Check that the run begun here is this one: of this config, these data, this base model and noise.

        Raises:
            InputError: it is another run, so what this job draws is not what was trained on.
        """
        begun, ours = first_entry(self.run.ledger_path), json.loads(json.dumps(self.header()))
        # for canaries, an audit gives a fuller message
        differing = [name for name in ours if name != "canaries" and begun.get(name) != ours[name]]
        if differing:
            raise InputError(
                f"{self.run.ledger_path}: this run did not begin with what is here now (differs in "
                f"{', '.join(differing)}), or another version of confide began it, so nobody can tell what it drew: "
                "put back what it began with, or train anew in another `run` folder"
            )

    def provenance(self) -> dict[str, str]:
        return {
            "confide": ", ".join(ledger.versions(self.run.ledger_path)) or code_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "hardware": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else platform.machine() + " CPU",
            "date": datetime.now(UTC).date().isoformat(),
            "config_hmac": self.key.fingerprint(self.run.binding().encode()),
            "data_hmac": self.key.fingerprint(self.prepared.train.plain_digest()),
        }


def _calibrated(run: Run, train: UnitGraph, ranks: Ranks) -> CalibratedMechanism:
    """Build the mechanism, or its non-private twin, and find its noise for these rows."""
    privacy, mechanism = run.config.privacy, mechanisms.build(run.config)
    if run.twin:
        mechanism = NonPrivate.twin(mechanism)
    target = (
        {"epsilon": privacy.epsilon, "noise_multiplier": privacy.noise_multiplier}
        if mechanism.protects
        else {}
    )
    with ranks.first_ahead():  # the first rank writes what is derived from the graph, and the others read it
        setting = calibrate(mechanism, train.shape(), delta=privacy.delta, tuning=run.tuning, **target)
    if setting.aggregation().radii:
        refuse_ranks(ranks.several)
    return setting


def _bound_key(key: RunKey, run: Run, mechanism: Mechanism, prepared: Prepared, base: bytes) -> RunKey:
    """Bind the run key to config, data and base model: runs that differ in one of them share no noise.

    Held-out rows are left out. At most they decide when a run ends (`train.patience`), and its claim is of all steps
    and every checkpoint: two runs that differ in these rows alone end at two checkpoints of one.
    """
    bound = [run.binding().encode(), *(graph.plain_digest() for graph in prepared.trained)]
    apart = mechanism.key_binding(prepared.train.shape())
    if apart:
        bound.append(apart)
    if not key.published:  # a published key must repeat everywhere, and hides nothing
        bound.append(base)
    return key.bound_to(*bound)


def _is_split(run: Run, ranks: Ranks) -> bool:
    return ranks.several and run.config.train.distributed == "fsdp"


def _keep_expected(run: Run, model: nn.Module, base: str, ranks: Ranks, seal: Seal) -> None:
    """Let the model's tokens count by what it expected when the run began.

    Args:
        base: names the config and the weights that the model has now.

    Raises:
        InputError: the run has begun, and what it began with is gone.
    """
    name = f"expected-tokens-{base}"
    path = run.root / f"{name}.npy"
    if run.ledger_path.exists() and not ranks.any(path.exists()):
        raise InputError(
            f"{path} is gone: this run's clipping rests on it, and it cannot go on without. Put it back, or begin "
            "again in another folder"
        )
    expected = run.once(name, lambda: expects_now(model).numpy(), ranks, seal)
    keep_expected(model, torch.from_numpy(expected))


def _placed_task(
    run: Run,
    model: nn.Module,
    tokenizer: Any,
    mechanism: Mechanism,
    train: UnitGraph,
    ranks: Ranks,
    console: Console,
) -> Task:
    """Put the model on its devices. Return its task, once the model was seen to keep rows apart.

    Raises:
        InputError: the model, or a calling program's loss, mixes rows.
    """
    config = run.config
    kind = registry.task(config.task)
    task: Task = kind.of(model, tokenizer, config.train.precision, ranks.device, run.given.loss)
    if not _is_split(run, ranks):
        model.to(ranks.device)
        if task.loss is None and task.facts.is_causal:
            task = replace(task, chunk=chunk_of(model, ranks.device))
    if mechanism.protects:
        some = train.fetch(np.arange(min(train.n_rows, _SEEN)))
        check_row_independence(task, model, some, ranks)
        if task.loss is not None:
            check_loss_independence(task, model, some, ranks)
    if mechanism.draws == "units" and task.loss is None:  # otherwise each row is a unit
        task = detect_packing_support(task, model, config.data.max_length, ranks)
        if task.facts.is_causal and not task.packs_rows:
            console.say(
                "rows of a unit get a line each: this model was not seen to keep apart those of one line"
            )
    if _is_split(run, ranks) and not is_sharded(model):
        _split(run, model, ranks)
    return task


def _split(run: Run, model: nn.Module, ranks: Ranks) -> None:
    """Split the model over the ranks. In place."""
    make_splittable(model, ranks.device)
    # A program's own loss may compute without autocast, or take weights past their layers.
    is_coarse = run.config.train.precision == "bf16" and run.given.loss is None
    shard(model, ranks, torch.bfloat16 if is_coarse else None)


def _micro_tokens(run: Run, model: nn.Module, task: Task, ranks: Ranks, console: Console) -> int:
    config = run.config
    if config.train.micro_tokens != "auto":
        return config.train.micro_tokens
    # Reserved for the sum, and for a large unit's gradient. The probes free theirs, and on a CPU that memory
    # stays the process's own.
    beside = optimizer_copies(config, run.twin) + (2 if ranks.device.type == "cuda" else 0)
    reserved_bytes = 4 * beside * sum(part(p).numel() for p in models.trainable(model).values())
    if config.privacy.common_tokens and not run.twin:  # copied while the optimiser moves them
        reserved_bytes += 4 * sum(
            models.trainable(model)[name].numel() for name in models.token_tables(model)
        )
    privacy = config.privacy
    scales = (
        scales_of(model, ()) if run.twin else scales_of(model, privacy.scales.items(), privacy.common_tokens)
    )
    found = fit(model, task, config.data.max_length, ranks, reserved_bytes, scales)
    console.say(f"micro-batches of {found:,} tokens, as memory allows")
    return found
