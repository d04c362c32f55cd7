"""What an audit found, as a picture: exposure by how often a number was planted, and rates beside their ceiling."""

from typing import Any

from confide.chart import Panel, panels_svg


def audit_svg(found: dict[str, Any]) -> str | None:
    """Of the result of `attack.audit`; None where there is nothing to draw."""
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
        )
    ]


def _rates(found: dict[str, Any]) -> list[Panel]:
    if "membership" not in found:
        return []
    name = found["membership"]["strongest"]
    rates = sorted(found["membership"]["attacks"][name]["true_positive_rate"], key=lambda rate: rate["fpr"])
    lines = {
        name: [(rate["fpr"], rate["value"]) for rate in rates],
        "95%, from": [(rate["fpr"], rate["low"]) for rate in rates],
        "to": [(rate["fpr"], rate["high"]) for rate in rates],
    }
    if "ceiling" in found:
        lines["ceiling"] = [(fpr, bound) for fpr, bound in sorted(found["ceiling"]["true_positive_rate"])]
    return [Panel("Members found", "false positive rate", "true positive rate", lines, log_x=True)]
