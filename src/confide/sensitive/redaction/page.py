"""Make the page of `confide redact`: one HTML file without scripts; it loads nothing and contains no masked text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from confide.sensitive.detectors import asked
from confide.sensitive.redaction.pieces import Piece

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

    from confide.config.schema import Config
    from confide.sensitive.redaction.preview import Preview, Shown

_LONGEST = 4000  # the most readable characters of a document that are shown
_ROWS = 12  # of a table that are shown; the rest is folded away
_BLANK = re.compile(r"\n\s*\n\s*\n")  # more than one blank line, which the page shows as one
_ANGLE = 137.5  # degrees between neighbouring hues: no two hues are close, however many there are


def page(preview: Preview, config: Config) -> str:
    """Return the whole HTML document."""
    facts = preview.facts
    kinds, against = _kinds(facts["kinds"]), facts.get("against")
    masks_annotated = config.detector.spans is not None
    return _template().render(
        facts=facts,
        kinds=kinds,
        index={kind["name"]: kind["index"] for kind in kinds},
        groups=[
            ("The first documents", [_cut(shown, masks_annotated) for shown in preview.first]),
            ("Documents drawn from the rest", [_cut(shown, masks_annotated) for shown in preview.drawn]),
        ],
        detectors=describe(config),
        source=config.data.train,
        against=against,
        annotations=sorted(against["kinds"].items(), key=lambda entry: -entry[1]["spans"]) if against else [],
        most=_ROWS,
        masks_annotated=masks_annotated,
    )


def describe(config: Config) -> str:
    """Describe the detectors in words; only the names of expressions, since expressions may contain sensitive text."""
    detector = config.detector
    parts = [each.describe(settings) for each, settings in asked(detector)]
    if detector.words is not None:
        parts.append(f"the words of {detector.words}")
    if detector.expressions:
        parts.append(f"expressions {', '.join(detector.expressions)}")
    if detector.spans is not None:
        parts.append(f"the spans in {detector.spans}")
    return "; ".join(parts)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters |= {
        "percent": percent,
        "count": "{:,}".format,
        "plural": _plural,
        "breakable": _breakable,
    }
    source = resources.files("confide") / "bundled" / "redaction.html"
    return environment.from_string(source.read_text("utf-8"))


def _breakable(name: str) -> Markup:
    """Return a name that may wrap to the next line after each underscore."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split("(?<=_)", name))


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float | None) -> str:
    """Format a share as 12.3%; 0% and 100% are only shown if they are exact."""
    if share is None:
        return "-"
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{share:.1%}" if 0 < share < 1 else f"{share:.0%}"


def _kinds(facts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the kinds, those that mask most first, each with its colour and the width of its bar."""
    most = max((tally["share_of_tokens"] for tally in facts.values()), default=0) or 1
    ordered = sorted(facts.items(), key=lambda entry: -entry[1]["tokens"])
    return [
        dict(tally)
        | {
            "name": name,
            "index": number,
            "hue": f"{210 + number * _ANGLE:.0f}",
            "width": f"{100 * tally['share_of_tokens'] / most:.1f}",
        }
        for number, (name, tally) in enumerate(ordered)
    ]


def _cut(shown: Shown, masks_annotated: bool) -> dict[str, Any]:
    """Return a document for the page; a long text is cut off."""
    kept: list[Piece] = []
    room = _LONGEST
    for piece in shown.pieces:
        if room <= 0:
            break
        kept.append(piece if piece.masked else Piece(piece.text[:room]))
        room -= len(piece.text)
    left = sum(len(piece.text) for piece in shown.pieces) - sum(len(piece.text) for piece in kept)
    return {
        "where": shown.where,
        "masked": sum(bool(piece.kinds or (piece.missed and masks_annotated)) for piece in shown.pieces),
        "missed": sum(bool(piece.missed) for piece in shown.pieces),
        "pieces": [piece if piece.masked else Piece(_BLANK.sub("\n\n", piece.text)) for piece in kept],
        "left": left,
    }
