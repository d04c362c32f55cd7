"""Release a trained model: its weights, its guarantee and a model card, sealed; and state later evidence there."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from confide.config.model_sections import Base
from confide.data.conditions import Conditions
from confide.models import loading as models
from confide.models.names import is_local, public_name
from confide.privacy.guarantee import Guarantee
from confide.randomness.seal import Broken, Seal
from confide.runs import histograms
from confide.runs.card import Use, card, turn_end
from confide.runs.evidence import evidence
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.released import CARD, GUARANTEE, digests
from confide.utils.errors import InputError
from confide.utils.files import write_text


def release(job: Job, guarantee: Guarantee, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write `release/` whole or not at all, and its guarantee into the run folder.

    Args:
        weights: by name, as `models.gathered` returns them; None if the job's model holds them whole.
    """
    with job.run.releasing() as folder:
        models.save(job.model, job.tokenizer, folder, job.run.config.model, weights)
        listed = Conditions.of(job.run.config.data)
        histograms.write(folder, *histograms.counted(job.mechanism, job.prepared.train, job.key, listed))
        _state(job, guarantee, folder)
        _record(job.run, folder)
    _write(guarantee, job.run.guarantee_path)


def check_release(job: Job) -> None:
    """Check that `release/`, if there is one, holds what this run put there.

    Raises:
        InputError: it holds something else.
    """
    run = job.run
    if not run.release.is_dir():
        return
    try:
        known = _seal(run).read_json(run.released_path, "released")
    except (Broken, OSError):
        known = None
    if known != digests(run.release):
        raise InputError(
            f"{run.release} does not hold what this run released: remove it, and `confide train` releases again "
            "without taking a step"
        )


def _seal(run: Run) -> Seal:
    """Return the seal under the key of the run's folder alone: a page checks it without the data and the base model."""
    return Seal(run.key())


def _record(run: Run, folder: Path) -> None:
    _seal(run).write_json(run.released_path, "released", digests(folder))


def restate(job: Job, steps: int) -> None:
    """Add what an audit has shown to the guarantee of a released run, wherever it stands; change nothing else."""
    run = job.run
    seen = evidence(run, steps)
    if not (seen and run.guarantee_path.exists() and run.release.is_dir()):
        return
    check_release(job)
    stated = Guarantee.from_json(json.loads((run.release / GUARANTEE).read_text("utf-8")))
    if stated.steps == steps:
        guarantee = replace(stated, evidence=seen)
        _state(job, guarantee, run.release)
        _record(run, run.release)
        _write(guarantee, run.guarantee_path)


def _state(job: Job, guarantee: Guarantee, folder: Path) -> None:
    """Write the guarantee and the model card of a release."""
    _write(guarantee, folder / GUARANTEE)
    write_text(folder / CARD, _card(job, guarantee))


def _write(guarantee: Guarantee, path: Path) -> None:
    write_text(path, json.dumps(guarantee.to_json(), indent=2) + "\n")


def _card(job: Job, guarantee: Guarantee) -> str:
    """Write the model card of what a job releases."""
    name, is_adapter = job.run.config.model, hasattr(job.model, "peft_config")
    grown = is_adapter and models.added_tokens(job.model)
    return card(
        guarantee,
        Use(
            job.task.facts,
            public_name(name),
            is_local(name) or "model" in job.run.given.names,
            is_adapter,
            job.model.get_input_embeddings().num_embeddings if grown else None,  # type: ignore[operator]
            job.prepared.classes,
            is_random=name.endswith(".json"),
            held=_held(job.run.config.base),
            turn_end=turn_end(job.run.config, job.tokenizer),
        ),
    )


def _held(base: Base) -> str:
    """Describe how the frozen base was held; "" for float32."""
    coarse = f"its linear layers in {base.quantise} by {base.quantiser}" if base.quantise != "none" else ""
    return ", ".join(filter(None, [base.precision if base.precision != "float32" or coarse else "", coarse]))
