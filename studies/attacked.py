"""A run of a study, trained and then attacked; what was found is kept, so that a study that was stopped goes on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confide.auditing.attack import Options, audit
from confide.config.loading import check
from confide.privacy.guarantee import Guarantee
from confide.privacy.mechanisms.statement import PUBLISHED_KEY
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import Outcome, fine_tune
from confide.utils.console import Console
from confide.utils.files import write_text
from confide.utils.rounding import at_most


def attacked(
    name: str, raw: dict[str, Any], folder: Path, options: Options, console: Console
) -> tuple[Run, Outcome, dict[str, Any]]:
    """Train a config in `folder`/`name`, or resume, and attack it, or read what an attack has found.

    Its run key is published, so that the numbers can be repeated.
    """
    where = f"study {folder.name}, {name}"
    raw = raw | {"run": str(folder / name)}
    raw["privacy"] = raw["privacy"] | {"published_key": where}
    run = Run(check(raw, where))
    console.say(name)
    outcome = fine_tune(run, console)
    if not outcome.finished:
        raise KeyboardInterrupt
    asked = {"options": asdict(options) | {"attacks": list(options.attacks)}, "steps": outcome.steps}
    found = json.loads(run.audit_path.read_text("utf-8")) if run.audit_path.exists() else {}
    if any(found.get(key) != value for key, value in asked.items()):
        console.say(f"{name}: {', '.join(options.attacks)}")
        found = audit(Job.of(run, console), options).to_json() | asked
        write_text(run.audit_path, json.dumps(found, indent=2) + "\n")
    return run, outcome, found


def epsilon_of(outcome: Outcome) -> float | None:
    """As claimed; None where nothing is."""
    guarantee = outcome.guarantee
    return None if guarantee.notion == "none" else guarantee.epsilon


def in_table(epsilon: float | None) -> str:
    return "inf" if epsilon is None else at_most(epsilon, 3)


def is_estimate(guarantee: Guarantee) -> bool:
    """Whether the figures would be an estimate with a secret run key, too; studies publish theirs."""
    return any(reason != PUBLISHED_KEY for reason in guarantee.estimates)
