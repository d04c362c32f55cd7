"""What a run says as it goes on."""

from confide.runs.job import Job
from confide.training.step_report import Report
from confide.utils.rounding import at_least, at_most
from confide.utils.sentences import many

NO_MEAN = (
    "train.average: the steps of the mean had not begun, so the weights are those of the last step; a mean over fewer "
    "steps is of the last ones planned, `ema` of the last ones taken"
)
ABSURD = 1e15
"""A perplexity from here on is written with few digits: training has diverged."""
_TIME = "told after the first steps; Ctrl-C stops, and the same command goes on"
WORSE = (
    "warning: on held-out text the trained model is worse than the base model: try a smaller train.learning_rate, more "
    "epsilon or more units a step"
)


def opening(job: Job) -> str:
    """Say in five lines what a run will do: who is protected, how strongly, at what cost, how long, where."""
    parameters, setting, config = job.setting.parameters, job.setting, job.run.config
    privacy = config.privacy
    if job.mechanism.protects and setting.noise_multiplier:
        asked = f" at epsilon {at_most(privacy.epsilon)}" if privacy.epsilon is not None else ""
        noise = f"delta {at_most(setting.delta, 3)}, noise multiplier {at_least(setting.noise_multiplier, 5)}"
        who, strength = job.mechanism.unit, f"{job.mechanism.name}{asked}, {noise}"
        strength += "" if job.mechanism.histograms is None else f"; with it, {job.mechanism.histograms.short}"
    else:
        who, strength = "nobody", "no privacy"
    count = f"{many(parameters.units, 'unit')} with {many(parameters.rows, 'row')}"
    last = job.run.checkpoints.last()
    is_done = last is not None and last.step == job.mechanism.all_steps
    lines = {
        "who": f"{who} ({count})",
        "how strongly": strength,
        "cost": f"{job.mechanism.all_steps:,} steps, about {parameters.expected_batch:g} {job.mechanism.draws} in each",
        "time": "short: no step is left to take" if is_done else _TIME,
        "where": f"{job.run.folder}; all settings are in {job.run.config_path.name}",
    }
    return "\n".join(f"  {name:<14}{line}" for name, line in lines.items())


def evaluation(found: dict[str, float | int]) -> str:
    """Format the loss, and the perplexity or, if rows have classes, the accuracy."""
    if "perplexity" in found:
        perplexity = found["perplexity"]
        shown = f"{perplexity:.1f}" if perplexity < ABSURD else f"{perplexity:.1e} or more"
        return f"loss {found['loss']:.4f}, perplexity {shown}"
    return f"loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}"


def step(report: Report) -> str:
    """Say in a few words what a step came to."""
    parts = [f"{report.units} clipped together" if report.units != report.rows else f"{report.rows} rows"]
    if report.loss is not None:
        parts.append(f"loss {report.loss:.3f}")
    if report.clipped is not None:
        parts.append(f"{report.clipped:.0%} clipped")
    if report.left_out:
        parts.append(f"{report.left_out} with no finite gradient, counted as zero")
    return ", ".join(parts)
