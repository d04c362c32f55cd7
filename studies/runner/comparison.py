"""Hold what a study finds now against what the repository keeps of it: does its command still make its numbers?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from studies.runner.pages import shown

Entry = dict[str, Any]

SAME, INSIDE, OUTSIDE = "the same", "inside the interval", "outside the interval"
VERDICT = "another figure of the same verdict, of other code"
NEW, MISSING = "not kept before", "kept, and not found now"
_NEARLY = 1e-3
"""Figures that differ by less than this share count as the same: another processor rounds otherwise."""


@dataclass(frozen=True)
class Compared:
    """A finding beside the one that is kept of the same claim.

    Attributes:
        outcome: one of the constants above.
        kept, now: entries of the register; None where there is none.
    """

    claim: str
    outcome: str
    kept: Entry | None
    now: Entry | None

    @property
    def is_another_verdict(self) -> bool:
        return self.kept is not None and self.now is not None and self.kept["verdict"] != self.now["verdict"]


def compared(
    found: Sequence[Entry],
    register: Sequence[Entry],
    name: str,
    scale: str,
    text: str | None = None,
    follows_code: bool = False,
) -> list[Compared]:
    """Compare the findings of a study with those of the register, claim by claim.

    Args:
        found: of a run, as the register would keep them.
        register: what is kept, of all studies.
        name: of the study.
        text: the one text that was run on: claims about others are not missed.
        follows_code: the study measures the code of the repository, so that the same verdict is enough.
    """
    kept = {each["claim"]: each for each in register if (each["study"], each["scale"]) == (name, scale)}
    now = {each["claim"]: each for each in found}
    claims = dict.fromkeys([*now, *(kept if text is None else ())])
    return [
        Compared(
            claim, _outcome(kept.get(claim), now.get(claim), follows_code), kept.get(claim), now.get(claim)
        )
        for claim in claims
    ]


def _outcome(kept: Entry | None, now: Entry | None, follows_code: bool) -> str:
    if kept is None:
        return NEW
    if now is None:
        return MISSING
    before, after = kept["mean"], now["mean"]
    if math.isclose(before, after, rel_tol=_NEARLY, abs_tol=1e-12):
        return SAME
    if follows_code and kept["verdict"] == now["verdict"]:
        return VERDICT
    if kept["confidence"] is None:  # computed, so chance has no part in it
        return OUTSIDE
    low, high = kept["interval"]
    is_inside = low is not None and high is not None and low <= after <= high
    return INSIDE if is_inside else OUTSIDE


def told(name: str, rows: Sequence[Compared]) -> str:
    """Tell how many figures of a study are still what they were, and show each one that is not."""
    count = {
        outcome: sum(each.outcome == outcome for each in rows)
        for outcome in (SAME, INSIDE, VERDICT, OUTSIDE, NEW, MISSING)
    }
    parts = ", ".join(f"{many} {outcome}" for outcome, many in count.items() if many)
    others = sum(each.is_another_verdict for each in rows)
    lines = [f"{name}: {len(rows)} findings: {parts or 'none'}; {others} with another verdict"]
    for each in rows:
        if each.outcome in (SAME, INSIDE, VERDICT) and not each.is_another_verdict:
            continue
        lines.append(f"  {each.outcome}: {each.claim}")
        lines += [
            f"    {when}: {_written(entry)}"
            for when, entry in (("kept", each.kept), ("now", each.now))
            if entry
        ]
    return "\n".join(lines) + "\n"


def _written(entry: Entry) -> str:
    return f"{shown(entry)}, {entry['verdict']}, {entry['date']}"


def is_kept(rows: Sequence[Compared]) -> bool:
    """Tell whether every claim that is kept was found again, with a figure inside its interval."""
    return all(each.outcome in (SAME, INSIDE, VERDICT, NEW) for each in rows)
