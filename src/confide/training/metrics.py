"""Write the measurements of a run as JSONL, and tell its trackers. Private rows make them, so none is released."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confide.training.trackers import Tracker

PRIVATE = "private: computed from private rows, not covered by the guarantee"


class Metrics:
    """Step reports and evaluations of one run, one JSON object per line.

    Args:
        trackers: they are told each loss, rate and time as well.
    """

    def __init__(self, path: Path, trackers: Sequence[Tracker] = ()):
        self.path, self._trackers = path, trackers
        self.lines: list[dict[str, Any]] = []

    def resume(self, done: int) -> None:
        """Drop what was measured after the last checkpoint, since those steps are taken again."""
        if self.path.exists():
            self.lines = [line for line in read_metrics(self.path) if _steps(line) <= done and done > 0]
        text = "".join(json.dumps(line) + "\n" for line in [{"note": PRIVATE}, *self.lines[1:]])
        self.path.write_text(text, "utf-8")
        self.lines = [json.loads(line) for line in text.splitlines()]

    def step(self, report: dict[str, Any]) -> None:
        done = report["step"] + 1
        self._write({"done": done, **report})
        names = ("loss", "clipped", "learning_rate", "seconds")
        self._tell({f"train/{name}": report[name] for name in names if report.get(name) is not None}, done)

    def evaluation(self, what: str, done: int, found: dict[str, Any], rows: str | None = None) -> None:
        """Write an evaluation.

        Args:
            rows: a name of the rows it was evaluated on.
        """
        self._write({"done": done, "evaluation": what, "on": rows, **found})
        names = ("loss", "perplexity", "accuracy")  # classes have no perplexity
        self._tell({f"eval/{name}": found[name] for name in names if name in found}, done)

    def last(self, what: str) -> dict[str, Any] | None:
        """Return the newest evaluation of this name."""
        found = [line for line in self.lines if line.get("evaluation") == what]
        hidden = {"done", "evaluation", "on"}
        return {k: v for k, v in found[-1].items() if k not in hidden} if found else None

    def since_lowest(self) -> int:
        """Return how many evaluations came after the one with the lowest loss; those of a stage's end do not count."""
        losses = [
            line["loss"] if math.isfinite(line["loss"]) else math.inf
            for line in self.lines
            if line.get("evaluation") in ("base", "during")
        ]
        return len(losses) - 1 - losses.index(min(losses)) if losses else 0

    def is_evaluated(self, what: str, rows: str | None) -> bool:
        """Return True if the newest evaluation of this name was on these rows."""
        found = [line for line in self.lines if line.get("evaluation") == what]
        return bool(found) and rows is not None and found[-1].get("on") == rows

    def guarantee(self, values: Mapping[str, Any]) -> None:
        """Tell the trackers the guarantee of the released model, and the learning rates."""
        rates = {
            line["done"]: line["learning_rate"]
            for line in self.lines
            if line.get("learning_rate") is not None
        }
        for tracker in self._trackers:
            tracker.guarantee(values, rates)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()

    def _write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def _tell(self, values: Mapping[str, float], done: int) -> None:
        for tracker in self._trackers:
            tracker.scalars(values, done)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file; a line that a run did not finish writing is left out."""
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return [line for line in map(_parse, lines) if line]


def gap_closed(base: float, private: float, nonprivate: float) -> float:
    """Return the share of the gap in loss between base and non-private model that the private run closes."""
    return (base - private) / (base - nonprivate)


def _steps(line: dict[str, Any]) -> float:
    """Return the number of steps after which a line was measured; infinite if the line does not say."""
    done = line.get("done", 0)
    return done if isinstance(done, int) else math.inf


def _parse(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None  # the run died while writing it
    if not isinstance(found, dict) or (
        "evaluation" in found and not isinstance(found.get("loss"), int | float)
    ):
        return None
    return found
