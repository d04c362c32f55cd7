"""The register of findings, and the measurements that it was made from: `studies/measured/`, part of the repository."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confide.utils.files import write_text
from studies.runner import store
from studies.runner.findings import Judged, judged
from studies.runner.study import Row, Scale, Study

KEPT = Path(__file__).parents[1] / "measured"


def command(study: Study, scale: Scale, text: str | None = None) -> str:
    """Return what makes the measurements of a study, on all of its texts or on one."""
    options = (f" --text {text}" if text else "") + (" --data data" if study.reads else "")
    return f"confide study {study.name} --scale {scale}{options}"


def record(
    study: Study,
    scale: Scale,
    rows: Sequence[Row],
    date: str,
    folder: Path = KEPT,
    text: str | None = None,
) -> None:
    """Keep measurements, and what was found in them, in place of those that were kept before.

    Args:
        date: of the measurements, as 2026-11-26.
        text: the one text that they are of, if the study has others. What was kept of the others stays, so that no
            text can be dropped by running another one.
    """
    measured = folder / f"{study.name}-{scale}.parquet"
    if text is not None and measured.exists():
        others_kept = [row for row in store.read(measured) if row.get("text") not in (text, None)]
        rows, text = [*others_kept, *rows], None if others_kept else text
    store.write(rows, measured)
    _judge(study, scale, rows, date, folder, text)


def _judge(
    study: Study, scale: Scale, rows: Sequence[Row], date: str, folder: Path, text: str | None
) -> None:
    """Keep what is found in measurements, in place of what was found before."""
    path = folder / "register.json"
    others = [each for each in _entries(path) if (each["study"], each["scale"]) != (study.name, str(scale))]
    own = [entry(study, scale, each, rows, date, text) for each in judged(study.findings(rows))]
    write_text(path, json.dumps(others + own, indent=1) + "\n")


def entry(
    study: Study, scale: Scale, found: Judged, rows: Sequence[Row], date: str, text: str | None = None
) -> dict[str, Any]:
    """Return a finding as the register keeps it; a bound or a limit that does not exist is null."""
    finding = found.finding
    return {
        "paper": study.paper,
        "place": finding.place,
        "is_beyond": finding.is_beyond or not study.paper,
        "is_check": finding.is_check,
        "is_late": finding.is_late,
        "claim": finding.claim,
        "verdict": found.verdict,
        "statistic": finding.statistic,
        "unit": finding.unit,
        "mean": sum(finding.values) / len(finding.values),
        "interval": [_finite(limit) for limit in found.interval],
        "confidence": None if finding.is_exact else round(found.confidence, 6),
        "holds_between": [_finite(finding.low), _finite(finding.high)],
        "keys": len(finding.values),
        "over": finding.over,
        "freedom": finding.pooled.freedom if finding.pooled else None,
        "study": study.name,
        "scale": str(scale),
        "command": command(study, scale, text),
        "text": text,
        "versions": sorted({row["version"] for row in rows if row.get("version")}),
        "devices": sorted({row["device"] for row in rows if row.get("device")}),
        "date": date,
    }


def judge_anew(study: Callable[[str], Study], folder: Path = KEPT) -> None:
    """Judge the measurements that are kept by the claims and the rule as they are now.

    Args:
        study: finds a study by its name.
    """
    measured = {(each["study"], each["scale"]): each for each in kept(folder)}
    for (name, scale), each in measured.items():
        rows = store.read(folder / f"{name}-{scale}.parquet")
        _judge(study(name), Scale(scale), rows, each["date"], folder, each["text"])


def kept(folder: Path = KEPT) -> list[dict[str, Any]]:
    """Return the register."""
    return _entries(folder / "register.json")


def _entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
