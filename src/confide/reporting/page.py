"""Make the page of a run: one HTML file that loads nothing, for people who are not engineers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from confide import __version__
from confide.reporting import figures, texts
from confide.reporting.claim_lines import Table, lines
from confide.reporting.compare import Comparison
from confide.reporting.facts import Facts, Measured
from confide.reporting.figures import Figure
from confide.reporting.glossary import Links
from confide.reporting.verdict import VERDICTS, advice, answers
from confide.utils.rounding import at_most

if TYPE_CHECKING:
    from jinja2 import Template


def page(facts: Facts) -> str:
    """Return the whole HTML document of one run.

    What was measured on private rows is on it only if `facts` holds it. The page then says so at its top.
    """
    measured = facts.measured
    choices, start = _choices(facts)
    return _template("report.html").render(
        _shared(),
        facts=facts,
        guarantee=facts.guarantee,
        answers=answers(facts),
        advice=advice(facts),
        lines=lines(facts.guarantee, facts.course),
        curve=figures.curve(facts.guarantee),
        choices=choices,
        start=start,
        measured=measured,
        training=figures.training(measured) if measured else [],
        data=_data(measured) if measured else None,
        audit=_audit(measured) if measured else None,
        texts=texts.section(facts),
        commands=_commands(facts),
    )


def _shared() -> dict[str, Any]:
    """Return what every page has: style, script, the script's digest for the content policy, links to terms."""
    script = _text("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {
        "style": _text("report.css"),
        "script": script,
        "script_digest": digest,
        "version": __version__,
        "link": Links(),
    }


def comparison(found: Comparison) -> str:
    """Return the HTML document that compares runs."""
    return _template("comparison.html").render(_shared(), found=found)


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    loader = FunctionLoader(_text)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return (resources.files("confide") / "bundled" / "report" / name).read_text("utf-8")


def _choices(facts: Facts) -> tuple[Sequence[tuple[str, str]], int]:
    """Return (delta, epsilon at most) for the claim and the curve at smaller deltas, and the claim's place.

    A larger delta has a smaller epsilon, which would look like a better claim of the same model.
    """
    points = {delta: epsilon for epsilon, delta in facts.guarantee.curve}
    claimed = facts.guarantee.delta
    if points:
        points[claimed] = facts.guarantee.epsilon
    deltas = sorted((delta for delta in points if delta <= claimed), reverse=True)
    choices = [(at_most(delta, 3), at_most(points[delta])) for delta in deltas]
    return choices, deltas.index(claimed) if points else 0


def _data(measured: Measured) -> dict[str, Any] | None:
    if measured.data is None:
        return None
    sides = [("to train on", measured.data), ("held out", measured.data.get("eval"))]
    rows = [
        [
            name,
            *(f"{side[key]:,}" for key in ("units", "rows", "tokens")),
            *(f"{side['rows_per_unit'][key]:,.4g}" for key in ("min", "median", "mean", "max")),
        ]
        for name, side in sides
        if side
    ]
    head = ("", "units", "rows", "tokens", "rows of a unit: least", "median", "mean", "most")
    shared = " ".join((measured.data.get("duplicates") or {}).get("sentences", ()))
    return {"table": Table(head, rows), "shared": shared, "figure": figures.rows_per_unit(measured)}


def _audit(measured: Measured) -> dict[str, Any] | None:
    found = measured.audit
    if found is None:
        return None
    drawn: list[Figure] = figures.audit(found)
    return {
        "verdict": found["verdict"],
        "means": VERDICTS[found["verdict"]],
        "games": [game["words"] for game in found.get("games", [])],
        "figures": drawn,
        "left_out": found.get("left_out", {}),
    }


def _commands(facts: Facts) -> list[tuple[str, str]]:
    """Return the commands that check a run and make its page: (command, what it does)."""
    run = facts.name
    if facts.course is None:  # a release alone: audit and verify take a run
        return [(f"confide report {run}", "made this page")]
    return [
        ("confide train CONFIG.yaml", "trained the model; the config is in the run folder"),
        (f"confide audit {run}", "attacks the claim"),
        (f"confide verify {run}", "checks clipping and noise with other code"),
        (f"confide report {run}", "made this page"),
    ]
