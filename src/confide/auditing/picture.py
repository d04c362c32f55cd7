"""An audit's results as pictures: exposure by how often a number was planted, and rates beside their ceiling."""

from collections.abc import Mapping
from typing import Any

from confide.utils.chart import Bars, Panel, panels_svg

ROWS_BY = "reference"
"""The one attack on rows that is drawn, the same for every run: the best of seven would be the luckiest."""


def audit_svg(found: Mapping[str, Any]) -> str | None:
    """Draw the result of `attack.audit`; return None if there is nothing to draw."""
    panels = audit_panels(found)
    return panels_svg(f"Audit: {found['verdict']}", panels) if panels else None


def audit_panels(found: Mapping[str, Any]) -> list[Panel | Bars]:
    """Return a chart for each result that has figures to draw."""
    return [*_exposure(found), *_rates(found)]


def _exposure(found: Mapping[str, Any]) -> list[Bars]:
    groups = found.get("exposure", {}).get("groups", {}).values()
    planted = sorted((own for own in groups if own["insertions"]), key=lambda own: float(own["insertions"]))
    if not planted:
        return []
    names = [f"planted {own['insertions']:,} times" for own in planted]
    return [
        Bars(
            "Exposure of planted numbers",
            "",
            "bits",
            {name: own["mean"] for name, own in zip(names, planted, strict=True)},
            {name: own["exposures"] for name, own in zip(names, planted, strict=True)},
            {
                "most there can be": found["exposure"]["most"],
                "a model that never saw them": planted[0]["null_mean"],
            },
        )
    ]


def _rates(found: Mapping[str, Any]) -> list[Panel]:
    drawn = {}
    if "membership" in found:
        drawn["Rows that an attack found"] = found["membership"]["attacks"][ROWS_BY]
    if "users" in found:
        drawn["Units that an attack found"] = found["users"]["rates"]
    return [_beside_ceiling(title, rates, found.get("ceiling")) for title, rates in drawn.items()]


def _beside_ceiling(title: str, rates: Mapping[str, Any], ceiling: Mapping[str, Any] | None) -> Panel:
    points = sorted(rates["true_positive_rate"], key=lambda rate: rate["fpr"])
    lines = {"found": [(rate["fpr"], rate["value"]) for rate in points]}
    if ceiling is not None:
        name = "most that the claim allows"
        lines[name] = [(fpr, bound) for fpr, bound in sorted(ceiling["true_positive_rate"])]
    else:
        name = ""
    return Panel(
        title,
        "false alarms",
        "share found",
        lines,
        log_x=True,
        decades=True,
        above=(name,),
        dashed=(name,),
        band=[(rate["fpr"], rate["low"], rate["high"]) for rate in points],
        band_name="95% interval",
    )
