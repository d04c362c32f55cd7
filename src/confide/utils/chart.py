"""Line charts in a grid, as one stand-alone SVG."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confide.utils.rounding import at_least, at_most
from confide.utils.svg import BLUE, FAINT, GOLD, GREEN, INK, RED, opening, round_step, text

WIDTH, HEIGHT = 420, 300  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 62, 48
COLOURS = (BLUE, RED, GREEN, GOLD)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One chart: lines by name, each a sequence of (x, y) by rising x; axes linear or in logs.

    Attributes:
        above, below: lines that bound a quantity from above or from below; their values are rounded in that direction.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False
    above: Sequence[str] = ()
    below: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not any(self.lines.values()):
            raise ValueError(f"{self.title}: nothing to draw")
        if len(self.lines) > len(COLOURS):
            raise ValueError(f"{self.title}: {len(self.lines)} lines, and there are {len(COLOURS)} colours")

    def value(self, name: str, y: float) -> str:
        """Write a value of a line as the reader sees it."""
        if name in self.above:
            return at_most(y)
        return at_least(y) if name in self.below else f"{y:.4g}"


def panels_svg(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """Draw the panels, row by row, under a title."""
    down = -(-len(panels) // columns)
    parts = opening(columns * WIDTH, down * HEIGHT + 36, title)
    parts.append(text(16, 26, title, size=17, weight=600))
    for place, panel in enumerate(panels):
        x, y = place % columns * WIDTH, 36 + place // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _drawn(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    across = _Axis.of([x for x, _ in points], panel.log_x, LEFT, WIDTH - RIGHT)
    up = _Axis.of([y for _, y in points], panel.log_y, HEIGHT - BOTTOM, TOP)
    parts = [text(LEFT, 22, panel.title, size=13, weight=600)]
    for tick in up.ticks():
        parts.append(f'<path d="M{LEFT} {up.place(tick):.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(text(LEFT - 6, up.place(tick) + 4, up.label(tick), size=11, anchor="end"))
    for tick in across.ticks():
        parts.append(
            text(across.place(tick), HEIGHT - BOTTOM + 16, across.label(tick), size=11, anchor="middle")
        )
    parts.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{INK}"/>')
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, panel.x, anchor="middle"))
    parts.append(
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" font-size="12" '
        f'text-anchor="middle">{html.escape(panel.y)}</text>'
    )
    start = float(LEFT)
    for (name, line), colour in zip(panel.lines.items(), COLOURS[: len(panel.lines)], strict=True):
        path = "L".join(f"{across.place(x):.1f} {up.place(y):.1f}" for x, y in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in line:
            parts.append(
                f'<circle cx="{across.place(x):.1f}" cy="{up.place(y):.1f}" r="3" fill="{colour}">'
                f"<title>{html.escape(name)}: {x:.4g}, {panel.value(name, y)}</title></circle>"
            )
        if len(panel.lines) > 1:
            parts.append(f'<rect x="{start:.0f}" y="36" width="10" height="10" fill="{colour}"/>')
            parts.append(text(start + 15, 45, name))
            start += 30 + 6.6 * len(name)
    return parts


@dataclass(frozen=True)
class _Axis:
    """Maps values to places; in logs of base 2 if the axis is logarithmic."""

    low: float
    high: float
    log: bool
    first: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float], log: bool, first: float, last: float) -> "_Axis":
        scaled = [math.log2(value) for value in values] if log else list(values)
        low, high = min(scaled), max(scaled)
        room = 0.05 * (high - low) or (0.5 if log else abs(high) / 2 or 1)
        return cls(low - room, high + room, log, first, last)

    def place(self, value: float) -> float:
        scaled = math.log2(value) if self.log else value
        return self.first + (self.last - self.first) * (scaled - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """Write a tick in words; powers of two below 1 as fractions."""
        return f"1/{round(1 / tick):,}" if self.log and tick < 1 else f"{tick:.4g}"

    def ticks(self) -> list[float]:
        """Return at most seven round values within the axis."""
        if self.log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            step = max(1, math.ceil(len(powers) / 6))
            return [2.0**power for power in powers[::step]]
        step_size = round_step((self.high - self.low) / 5)
        start = math.ceil(self.low / step_size)
        return [place * step_size for place in range(start, math.floor(self.high / step_size) + 1)]
