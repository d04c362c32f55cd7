"""Write the measurements of a run as JSONL and to TensorBoard. They are made from private rows and never released."""

import json
import math
from pathlib import Path
from typing import Any

PRIVATE = "private: computed from private rows, not covered by the guarantee"


class Metrics:
    """Step reports and evaluations of one run, one JSON object per line."""

    def __init__(self, path: Path, tensorboard: Path):
        self.path, self.tensorboard = path, tensorboard
        self.lines: list[dict[str, Any]] = []
        self._writer: Any = None

    def resume(self, done: int) -> None:
        """Drop what was measured after the last checkpoint, since those steps are taken again."""
        if self.path.exists():
            kept = [
                line
                for line in map(_parse, self.path.read_text("utf-8", errors="replace").splitlines())
                if line
            ]
            self.lines = [line for line in kept if _steps(line) <= done and done > 0]
        text = "".join(json.dumps(line) + "\n" for line in [{"note": PRIVATE}, *self.lines[1:]])
        self.path.write_text(text, "utf-8")
        self.lines = [json.loads(line) for line in text.splitlines()]

    def step(self, report: dict[str, Any]) -> None:
        done = report["step"] + 1
        self._write({"done": done, **report})
        for name in ("loss", "clipped", "learning_rate", "seconds"):
            if report.get(name) is not None:
                self._scalar(f"train/{name}", report[name], done)

    def evaluation(self, what: str, done: int, found: dict[str, Any], rows: str | None = None) -> None:
        """Write an evaluation.

        Args:
            rows: a name of the rows it was evaluated on.
        """
        self._write({"done": done, "evaluation": what, "on": rows, **found})
        for name in ("loss", "perplexity", "accuracy"):
            if name in found:  # classes have no perplexity
                self._scalar(f"eval/{name}", found[name], done)

    def last(self, what: str) -> dict[str, Any] | None:
        """Return the newest evaluation of this name."""
        found = [line for line in self.lines if line.get("evaluation") == what]
        hidden = {"done", "evaluation", "on"}
        return {k: v for k, v in found[-1].items() if k not in hidden} if found else None

    def is_evaluated(self, what: str, rows: str | None) -> bool:
        """Return True if the newest evaluation of this name was on these rows."""
        found = [line for line in self.lines if line.get("evaluation") == what]
        return bool(found) and rows is not None and found[-1].get("on") == rows

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def _scalar(self, name: str, value: float, done: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.tensorboard), purge_step=done)
        self._writer.add_scalar(name, value, done)


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
