"""Plan a run: prepare its data and inspect its model, but train nothing."""

from collections.abc import Sequence
from dataclasses import replace

from confide.config import registry
from confide.models import loading as models
from confide.planning.cost import Size
from confide.planning.devices import on_devices, parsed
from confide.planning.memory import kept as kept_of
from confide.planning.plan import Plan, plan, program_svg
from confide.planning.verdict import verdict
from confide.runs.folder import Run
from confide.runs.job import prepared_data
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
        model = models.load_model(run.config, prepared.classes, len(tokenizer))
        shape, size, kept = prepared.train.shape(), Size.of(model), None
        if run.config.adapter.kind == "lora":
            task: Task = registry.task(run.config.task).of(model, tokenizer, run.config.train.precision)
            kept = kept_of(model, task, run.config.data.max_length)
        with console.track("settings compared") as track:
            found = plan(run.config, shape, size, track, times_users, kept)
        if "larger_priors" in found.outlook:
            write_text(run.root / "program.svg", program_svg(found.to_json()))
        if kinds is not None:
            there = on_devices(run.config, prepared.train, size, found.memory, *kinds)
            found = replace(found, devices=there)
    return replace(found, verdict=verdict(run.config, shape, size, found.chosen))
