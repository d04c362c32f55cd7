"""Plan a run: prepare its data and inspect its model, but train nothing."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from confide.config import registry
from confide.models import loading as models
from confide.models.fast.chunked_loss import chunk_of
from confide.planning.cost import Size
from confide.planning.devices import on_devices, parsed, splits
from confide.planning.memory import Kept, memory
from confide.planning.memory import kept as kept_of
from confide.planning.plan import Plan, plan, program_svg
from confide.planning.verdict import verdict
from confide.runs.folder import Run
from confide.runs.preparation import prepared_data
from confide.training.optimisation import check_factors
from confide.training.tasks import Task
from confide.utils.console import Console
from confide.utils.files import write_text


def planned(
    run: Run, console: Console, times_users: Sequence[float] = (), devices: str | None = None
) -> Plan:
    """Return the `plan` of a run, with the `verdict` on its number of units. Prepare the data if needed.

    Args:
        devices: also estimate the run on these, as in "8xH200".
    """
    kinds = None if devices is None else parsed(devices)
    with run.locked():
        tokenizer = models.load_tokenizer(run.config)
        prepared = prepared_data(run, tokenizer, console)
        prepared.check_patience(run.config)
        model = models.load_model(run.config, prepared.classes, len(tokenizer))
        check_factors(run.config, model)
        shape, size = prepared.train.shape(), Size.of(model)
        task: Task = registry.task(run.config.task).of(model, tokenizer, run.config.train.precision)
        here = "cuda" if torch.cuda.is_available() else "cpu"
        chunk = _chunk(model, task, here)
        kept = _kept(run, model, task, chunk)
        with console.track("settings compared") as track:
            found = plan(run.config, shape, size, track, times_users, kept, chunk, here == "cpu")
        if "larger_priors" in found.outlook:
            write_text(run.root / "program.svg", program_svg(found.to_json()))
        if kinds is not None:
            if (chunk_there := 0 if splits(run.config, kinds[0]) else _chunk(model, task, "cuda")) != chunk:
                kept = _kept(run, model, task, chunk_there)
            needed = memory(run.config, size, kept, chunk_there)
            is_chunked = kept is not None and chunk_there > 0
            there = on_devices(run.config, prepared.train, size, needed, *kinds, is_chunked)
            found = replace(found, devices=there)
    return replace(found, verdict=verdict(run.config, shape, size, found.chosen))


def _chunk(model: nn.Module, task: Task, trains_on: str) -> int:
    """Return the tokens whose logits are made at a time on a kind of device; 0 for all at once."""
    here = next(model.parameters()).device
    return chunk_of(model, here, trains_on) if task.facts.is_causal else 0


def _kept(run: Run, model: nn.Module, task: Task, chunk: int) -> Kept | None:
    if run.config.adapter.kind != "lora":
        return None
    return kept_of(model, replace(task, chunk=chunk), run.config.data.max_length)
