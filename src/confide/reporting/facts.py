"""Collect what a page tells of one run: its claim, and what was measured on private rows only if that is asked for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confide.data.unit_graph import UnitGraph
from confide.privacy.guarantee import Guarantee
from confide.randomness.seal import Broken, Seal
from confide.reporting.happened import Course
from confide.runs.evidence import model_id
from confide.runs.folder import Run
from confide.runs.records import RECORD, read_record
from confide.runs.released import GUARANTEE, Released, is_run, run_of
from confide.synthesis.remembered import PRIVATE, PUBLIC, remembered
from confide.training.metrics import read_metrics
from confide.utils.errors import InputError


@dataclass(frozen=True)
class Measured:
    """What was measured on private rows. The guarantee does not cover it.

    Attributes:
        data: statistics of the training rows, as `confide prepare --json` prints them; None if they are gone.
        units_by_rows: how many units have so many rows, or up to twice as many less one; by 1, 2, 4, 8 and so on.
        steps: one report for each step.
        evaluations: (steps taken, name, values), in order; the names are "base", "during", "final" and "after PHASE".
        twin: the evaluation of the non-private twin; None if none was trained.
        audit: the facts of `confide audit`; None if none was made of this model.
        config: the settings, as YAML.
        texts: what was measured of text that the model has written, by its digest.
    """

    data: Mapping[str, Any] | None
    units_by_rows: Mapping[int, int]
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[tuple[int, str, Mapping[str, Any]]]
    twin: Mapping[str, Any] | None
    audit: Mapping[str, Any] | None
    config: str
    texts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def evaluation(self, name: str) -> Mapping[str, Any] | None:
        """Return the newest evaluation of this name."""
        return next((values for _, what, values in reversed(self.evaluations) if what == name), None)

    @property
    def seconds(self) -> float:
        """How long the steps took, added up."""
        return float(sum(step.get("seconds") or 0.0 for step in self.steps))


@dataclass(frozen=True)
class Facts:
    """What a page tells of one run.

    Attributes:
        name: the name of the run's folder.
        base: the base model's name, in public; "" where only a release is at hand, which does not say.
        task: what the model was trained for; "" where only a release is at hand.
        checked: weights and guarantee were compared with what the run sealed when it released them.
        refuted: an audit of this model has refuted the claim.
        course: what the run knows of its own course; None where only a release is at hand.
        measured: None unless it was asked for.
        texts: what is known of text that the model has written, by its digest, from the release alone.
    """

    name: str
    guarantee: Guarantee
    base: str
    task: str
    checked: bool
    measured: Measured | None = None
    refuted: bool = False
    course: Course | None = None
    texts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, with_measured: bool = False, twin: bool = False) -> "Facts":
        """Read the facts of a finished run, of a sweep, or of a release without its run.

        Args:
            folder: the run folder, or a copy of its `release/`.
            with_measured: also what was measured on private rows.
            twin: of the run's non-private twin.

        Raises:
            InputError: nothing was released there; or a release alone, which holds nothing that was measured.
        """
        if (whole := run_of(folder)) != folder:
            raise InputError(f"{folder} is the release of a run: give the run folder, {whole}")
        if (folder / GUARANTEE).is_file() and not is_run(folder):
            if with_measured:
                raise InputError(
                    f"{folder}: a release alone holds nothing that was measured; give the run folder, or leave "
                    "--private out"
                )
            return cls(folder.resolve().name, Guarantee.load(folder / GUARANTEE), "", "", checked=False)
        released = Released.of(folder, twin)
        audit = _audit(released.run)
        return cls(
            folder.resolve().name,
            released.guarantee,
            released.base_name,
            released.facts.name,
            checked=_is_sealed(released),
            refuted=audit is not None and audit["verdict"] == "violation",
            measured=_measured(released) if with_measured else None,
            course=Course.of(released.run, audit is not None),
            texts={} if twin else remembered(folder, released.folder, PUBLIC),
        )

    def without_measured(self) -> "Facts":
        """Return the facts that may be handed on."""
        return replace(self, measured=None)

    def to_json(self) -> dict[str, Any]:
        """Return all facts. The key `measured` is there only if it was asked for."""
        found: dict[str, Any] = {
            "run": self.name,
            "base": self.base,
            "task": self.task,
            "checked": self.checked,
            "refuted": self.refuted,
            "guarantee": self.guarantee.to_json(),
        }
        if self.course is not None:
            found["not_covered"] = [
                {"what": item, "here": self.course.here(item)} for item in self.guarantee.not_covered
            ]
        if self.texts:
            found["texts"] = dict(self.texts)
        if self.measured is not None:
            found["measured"] = {
                "data": self.measured.data,
                "units_by_rows": dict(self.measured.units_by_rows),
                "seconds": self.measured.seconds,
                "evaluations": [
                    {"done": done, "evaluation": what} | dict(values)
                    for done, what, values in self.measured.evaluations
                ],
                "steps": list(self.measured.steps),
                "twin": self.measured.twin,
                "audit": self.measured.audit,
                "texts": dict(self.measured.texts),
            }
        return found


def _is_sealed(released: Released) -> bool:
    """Tell whether the record that the released files were compared with is sealed by the run's key."""
    run = released.run
    if run.config.privacy.published_key is None and not (run.root / "key").is_file():
        return False
    try:
        Seal(run.key()).read_json(run.released_path, "released")
    except (Broken, OSError):
        return False
    return released.folder == run.release  # a sweep's own release is not of this record


def _measured(released: Released) -> Measured:
    run = released.run
    steps, evaluations = _metrics(run.metrics_path)
    of_twin = []
    if not run.twin:
        twin = run.root / "twin" / run.metrics_path.name
        of_twin = [values for _, what, values in _metrics(twin)[1] if what == "final"]
    data, bins = None, {}
    if (run.data / RECORD).is_file():
        data = read_record(run.data, run.data_key())["facts"]
        bins = UnitGraph.open(run.data / "train").rows_per_unit().in_doubling_bins()
    return Measured(
        data,
        bins,
        steps,
        evaluations,
        of_twin[-1] if of_twin else None,
        _audit(run),
        run.config.to_yaml(),
        {} if run.twin else remembered(run.root, released.folder, PRIVATE),
    )


def _metrics(path: Path) -> tuple[list[Mapping[str, Any]], list[tuple[int, str, Mapping[str, Any]]]]:
    """Return the reports of steps and the evaluations of a metrics file."""
    steps: list[Mapping[str, Any]] = []
    evaluations: list[tuple[int, str, Mapping[str, Any]]] = []
    for line in read_metrics(path) if path.is_file() else []:
        done = line.get("done")
        if not isinstance(done, int):
            continue
        if "evaluation" in line:
            values = {key: value for key, value in line.items() if key not in ("done", "evaluation", "on")}
            evaluations.append((done, str(line["evaluation"]), values))
        elif "step" in line:
            steps.append(line)
    return steps, evaluations


def _audit(run: Run) -> Mapping[str, Any] | None:
    """Return the audit of this model; one of a model that lay here before does not count."""
    if not run.audit_path.is_file():
        return None
    found: dict[str, Any] = json.loads(run.audit_path.read_text("utf-8"))
    return found if found.get("model") == model_id(run) else None
