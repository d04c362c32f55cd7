"""Release a trained model: its weights, its guarantee and a model card, sealed; and state later evidence there."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch

from confide.models import loading as models
from confide.privacy.guarantee import Guarantee
from confide.randomness.seal import Broken
from confide.runs.evidence import evidence
from confide.runs.job import Job
from confide.utils.errors import InputError
from confide.utils.files import write_text


def release(job: Job, guarantee: Guarantee, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write `release/` whole or not at all, and its guarantee into the run folder.

    Args:
        weights: by name, as `models.gathered` returns them; None if the job's model holds them whole.
    """
    with job.run.releasing() as folder:
        models.save(job.model, job.tokenizer, folder, job.run.config.model, weights)
        _state(job, guarantee, folder)
        _seal(job, folder)
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
        known = job.seal.read_json(run.released_path, "released")
    except (Broken, OSError):
        known = None
    if known != _digests(run.release):
        raise InputError(
            f"{run.release} does not hold what this run released: remove it, and `confide train` releases again "
            "without taking a step"
        )


def _seal(job: Job, folder: Path) -> None:
    job.seal.write_json(job.run.released_path, "released", _digests(folder))


def _digests(folder: Path) -> dict[str, str]:
    """Digest each file of a release by SHA-256, in hex, except the model card, which people may edit."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    found = {}
    for path in paths:
        with open(path, "rb") as stream:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def restate(job: Job, steps: int) -> None:
    """Add what an audit has shown to the guarantee of a released run, wherever it stands; change nothing else."""
    run = job.run
    seen = evidence(run, steps)
    if not (seen and run.guarantee_path.exists() and run.release.is_dir()):
        return
    check_release(job)
    stated = Guarantee.from_json(json.loads((run.release / "guarantee.json").read_text("utf-8")))
    if stated.steps == steps:
        guarantee = replace(stated, evidence=seen)
        _state(job, guarantee, run.release)
        _seal(job, run.release)
        _write(guarantee, run.guarantee_path)


def _state(job: Job, guarantee: Guarantee, folder: Path) -> None:
    """Write the guarantee and the model card of a release."""
    _write(guarantee, folder / "guarantee.json")
    write_text(folder / "README.md", _card(job, guarantee))


def _write(guarantee: Guarantee, path: Path) -> None:
    write_text(path, json.dumps(guarantee.to_json(), indent=2) + "\n")


def _card(job: Job, guarantee: Guarantee) -> str:
    base = models.public_name(job.run.config.model)
    how = job.run.config.base
    held = f" in {how.precision}" * (how.precision != "float32")
    held += f", its linear layers in {how.quantise} by bitsandbytes" * (how.quantise != "none")
    held = f" (trained beside a base held{held})" if held else ""
    return (
        f"# A language model fine-tuned with confide\n\nBase model: `{base}`{held}. Task: {job.task.facts.name}.\n\n"
        f"{guarantee.model_card_section()}\n## Use\n\n```python\n{_usage(job, base)}```\n"
    )


def _usage(job: Job, base: str) -> str:
    """Return code that loads the release."""
    auto = job.task.facts.model_class
    if job.run.config.adapter.kind != "lora":
        return f'from transformers import {auto}\n\nmodel = {auto}.from_pretrained("release")\n'
    bundled, place = base == models.BUNDLED, json.dumps(base)
    entries = job.model.get_input_embeddings().num_embeddings  # type: ignore[operator]  # a Hugging Face model
    return (
        "from peft import PeftModel\n"
        f"from transformers import {auto}\n"
        + ("from confide.models.loading import location\n" if bundled else "")
        + f"\nbase = {auto}.from_pretrained({f'location({place})' if bundled else place})\n"
        + (f"base.resize_token_embeddings({entries})\n" if models.added_tokens(job.model) else "")
        + 'model = PeftModel.from_pretrained(base, "release")\n'
    )
