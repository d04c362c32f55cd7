"""An audit's results as a picture: exposure by how often a number was planted, and rates next to their ceiling."""

from typing import Any

from confide.utils.chart import Panel, panels_svg

ROWS_BY = "reference"


def audit_svg(found: dict[str, Any]) -> str | None:
    """Draw the result of `attack.audit`; return None if there is nothing to draw."""
    panels = [*_exposure(found), *_rates(found)]
    if not panels:
        return None
    return panels_svg(f"audit: {found['verdict']}", panels)


def _exposure(found: dict[str, Any]) -> list[Panel]:
    planted = sorted(
        (
            (float(own["insertions"]), own)
            for own in found.get("exposure", {}).get("groups", {}).values()
            if own["insertions"]
        ),
        key=lambda pair: pair[0],
    )
    if not planted:
        return []
    ends = (planted[0][0], planted[-1][0])
    lines = {
        "mean": [(times, own["mean"]) for times, own in planted],
        "highest": [(times, max(own["exposures"])) for times, own in planted],
        "untouched model": [(times, planted[0][1]["null_mean"]) for times in ends],
        "most": [(times, found["exposure"]["most"]) for times in ends],
    }
    return [
        Panel(
            "Exposure of planted numbers",
            "documents that hold the number",
            "bits",
            lines,
            log_x=len(planted) > 1,
            above=("most",),
        )
    ]


def _rates(found: dict[str, Any]) -> list[Panel]:
    """Draw the rates of one attack on rows, the same for every run: the best of seven would be the luckiest."""
    drawn = {}
    if "membership" in found:
        drawn[f"Rows found ({ROWS_BY})"] = found["membership"]["attacks"][ROWS_BY]
    if "users" in found:
        drawn["Users found"] = found["users"]["rates"]
    return [_beside_ceiling(title, rates, found.get("ceiling")) for title, rates in drawn.items()]


def _beside_ceiling(title: str, rates: dict[str, Any], ceiling: dict[str, Any] | None) -> Panel:
    points = sorted(rates["true_positive_rate"], key=lambda rate: rate["fpr"])
    lines = {
        "measured": [(rate["fpr"], rate["value"]) for rate in points],
        "95%, from": [(rate["fpr"], rate["low"]) for rate in points],
        "to": [(rate["fpr"], rate["high"]) for rate in points],
    }
    if ceiling is not None:
        lines["ceiling"] = [(fpr, bound) for fpr, bound in sorted(ceiling["true_positive_rate"])]
    x, y = "false positive rate", "true positive rate"
    return Panel(title, x, y, lines, log_x=True, above=("to", "ceiling"), below=("95%, from",))
