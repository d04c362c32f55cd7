"""Draw the figures of a page, each with the same values as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confide.auditing.picture import audit_panels
from confide.privacy.guarantee import Guarantee
from confide.reporting.claim_lines import Table
from confide.reporting.facts import Measured
from confide.utils.chart import Bars, Panel, Points, panels_svg
from confide.utils.rounding import at_least, at_most
from confide.utils.svg import BLUE, FAINT, GOLD, GREEN, INK, RED

# Colours of a stand-alone picture, and the page's own names of them, which follow light and dark.
_THEME = {INK: "ink", FAINT: "line", BLUE: "first", RED: "second", GREEN: "third", GOLD: "fourth"}


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows, and its values."""

    title: str
    says: str
    svg: str
    table: Table


def themed(svg: str) -> str:
    """Make a stand-alone picture follow the colours of the page."""
    for colour, name in _THEME.items():
        svg = svg.replace(f'"{colour}"', f'"var(--{name})"')
    return svg.replace('fill="#ffffff"', 'fill="none"')


def _figure(panel: Panel | Bars, says: str, table: Table) -> Figure:
    return Figure(panel.title, says, themed(panels_svg(panel.title, [panel], without_titles=True)), table)


def curve(guarantee: Guarantee) -> Figure | None:
    """Draw epsilon against delta, with the claimed point; None where no noise was added."""
    if not guarantee.curve or guarantee.epsilon == 0:
        return None
    points = sorted((delta, epsilon) for epsilon, delta in guarantee.curve)
    panel = Panel(
        "Epsilon at other values of delta",
        "delta",
        "epsilon",
        {"the whole curve": points, "the claim": [(guarantee.delta, guarantee.epsilon)]},
        log_x=True,
        decades=True,
        above=("the whole curve", "the claim"),
    )
    rows = [(at_most(delta, 2), at_most(epsilon)) for delta, epsilon in reversed(points)]
    return _figure(
        panel,
        "One amount of noise gives many pairs of epsilon and delta. All of them hold at once.",
        Table(("delta", "epsilon, at most"), rows),
    )


def training(measured: Measured) -> list[Figure]:
    """Draw losses, the share of clipped units and the learning rate over the steps."""
    found = []
    losses = {
        "held out": _points(
            (done, values["loss"]) for done, what, values in measured.evaluations if "loss" in values
        ),
        "of the drawn rows": _points((step["step"] + 1, step.get("loss")) for step in measured.steps),
    }
    lines = {name: points for name, points in losses.items() if points}
    if lines:
        says = "The loss says how surprised the model is by a word. Lower is better."
        found.append(_lines("Loss", "steps", "loss", lines, says))
    for key, reach, title, says in (
        (
            "clipped",
            (0.0, 1.0),
            "Units whose gradient was clipped",
            "A gradient longer than the clip norm is shortened to it. This is the share of units it happened to.",
        ),
        ("learning_rate", (0.0,), "Learning rate", "How far each step moves the weights."),
    ):
        points = _points((step["step"] + 1, step.get(key)) for step in measured.steps)
        if points:
            found.append(_lines(title, "steps", key.replace("_", " "), {title.lower(): points}, says, reach))
    return found


def rows_per_unit(measured: Measured) -> Figure | None:
    """Draw how many units have how many rows; None if the rows are gone."""
    if not measured.units_by_rows:
        return None
    bars = {f"{low:,}": float(number) for low, number in measured.units_by_rows.items()}
    panel = Bars(
        "How many rows the units have", "rows of a unit, from this number to the next", "units", bars
    )
    rows = [(_bin(low), f"{number:,}") for low, number in measured.units_by_rows.items()]
    return _figure(
        panel, "A row is a piece of text that the model reads at once.", Table(("rows", "units"), rows)
    )


def audit(found: Mapping[str, Any]) -> list[Figure]:
    """Draw what attacks found, beside what the claim allows."""
    figures = []
    for panel in audit_panels(found):
        if isinstance(panel, Bars):
            rows = [(name, f"{height:.2f}") for name, height in panel.bars.items()]
            limits = [(name, f"{height:.2f}") for name, height in panel.limits.items()]
            most, null = panel.limits.values()
            says = (
                f"How easily the model gives up a planted number. At {at_most(most, 3)} it is the model's first guess. "
                f"A model that never saw the numbers gives {null:.1f}. Each dot is one number."
            )
            figures.append(_figure(panel, says, Table((panel.x, f"{panel.y}, mean"), rows + limits)))
        else:
            says = "The line is what the attack found. The truth may lie anywhere in the band (95%)."
            figures.append(_figure(panel, says, _table_of_rates(panel)))
    return figures


def _table_of_rates(panel: Panel) -> Table:
    bands = {x: (low, high) for x, low, high in panel.band}
    limits = {name: dict(panel.lines[name]) for name in panel.dashed if name in panel.lines}
    rows = []
    for x, y in next(iter(panel.lines.values())):
        low, high = bands.get(x, (y, y))
        cells = [f"{x:g}", f"{y:.3f}", f"{at_least(low, places=3)} to {at_most(high, places=3)}"]
        rows.append(
            [*cells, *(at_most(limit[x], places=3) if x in limit else "-" for limit in limits.values())]
        )
    return Table((panel.x, panel.y, "95% interval", *limits), rows)


def _lines(
    title: str, x: str, y: str, lines: Mapping[str, Points], says: str, reach: Sequence[float] = ()
) -> Figure:
    at = sorted({place for points in lines.values() for place, _ in points})
    if len(at) > _ROWS:
        at = [at[i * (len(at) - 1) // (_ROWS - 1)] for i in range(_ROWS)]
    values = [dict(points) for points in lines.values()]
    rows = [
        [f"{place:,.0f}", *(f"{own[place]:.4g}" if place in own else "-" for own in values)] for place in at
    ]
    return _figure(Panel(title, x, y, lines, reach=reach), says, Table((x, *lines), rows))


_ROWS = 40  # of a table beside a line of many points; the first and the last are among them


def _points(values: Any) -> Points:
    return [(float(x), float(y)) for x, y in values if isinstance(y, int | float) and abs(y) < float("inf")]


def _bin(low: int) -> str:
    high = 2 * low - 1
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def compared(title: str, x: str, y: str, runs: Sequence[tuple[str, float, float]]) -> Figure:
    """Draw one point for each run."""
    panel = Panel(title, x, y, {"runs": sorted((a, b) for _, a, b in runs)}, log_x=True)
    rows = [(name, at_most(a), f"{b:.4g}") for name, a, b in runs]
    return _figure(panel, "Further left is more private. Lower is better.", Table(("run", x, y), rows))
