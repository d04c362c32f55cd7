"""Charts of lines, bands and bars in a grid, as one stand-alone SVG."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from confide.utils.rounding import at_least, at_most
from confide.utils.svg import BLUE, FAINT, GOLD, GREEN, INK, RED, opening, round_step, text

WIDTH, HEIGHT = 420, 300  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 62, 48
COLOURS = (BLUE, RED, GREEN, GOLD)

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Panel:
    """One chart: lines by name, each a sequence of (x, y) by rising x; axes linear or in logs.

    Attributes:
        decades: the ticks of a logarithmic x-axis are powers of ten, not of two.
        above, below: lines that bound a quantity from above or from below; their values are rounded in that direction.
        dashed: lines that limit the others, such as a ceiling.
        band: (x, low, high): an area between two values, such as an interval around a line.
        band_name: what the area is.
        reach: values that the y-axis reaches besides those of the lines, such as those of the panels beside this one.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    decades: bool = False
    dashed: Sequence[str] = ()
    band: Band = ()
    band_name: str = ""
    reach: Sequence[float] = ()

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


@dataclass(frozen=True)
class Bars:
    """One chart of bars from zero, by name.

    Attributes:
        bars: the heights.
        dots: further values beside a bar, such as those that it is the mean of.
        limits: lines across all bars, such as the highest value there can be.
    """

    title: str
    x: str
    y: str
    bars: Mapping[str, float]
    dots: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.bars:
            raise ValueError(f"{self.title}: nothing to draw")


def panels_svg(
    title: str, panels: Sequence[Panel | Bars], columns: int = 2, without_titles: bool = False
) -> str:
    """Draw the panels, row by row, under a title.

    Args:
        without_titles: the titles stand beside the picture already.
    """
    columns = min(columns, len(panels))
    down = -(-len(panels) // columns)
    top = -20 if without_titles else 36
    parts = opening(columns * WIDTH, down * HEIGHT + top, title)
    if not without_titles:
        parts.append(text(16, 26, title, size=17, weight=600))
    for place, panel in enumerate(panels):
        x, y = place % columns * WIDTH, top + place // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        drawn = _lines(panel) if isinstance(panel, Panel) else _bars(panel)
        parts += drawn[1:] if without_titles else drawn
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(panel: Panel | Bars, up: "_Axis") -> list[str]:
    """Draw the title, the axes' names and the ticks of the y-axis."""
    parts = [text(LEFT, 22, panel.title, size=13, weight=600)]
    for tick in up.ticks():
        parts.append(f'<path d="M{LEFT} {up.place(tick):.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(text(LEFT - 6, up.place(tick) + 4, up.label(tick), size=11, anchor="end"))
    parts.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{INK}"/>')
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, panel.x, anchor="middle"))
    parts.append(
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" font-size="12" '
        f'text-anchor="middle" fill="{INK}">{html.escape(panel.y)}</text>'
    )
    return parts


def _lines(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    edges = [(x, y) for x, low, high in panel.band for y in (low, high)]
    across = _Axis.of([x for x, _ in points], panel.log_x, LEFT, WIDTH - RIGHT, panel.decades)
    up = _Axis.of([*panel.reach, *(y for _, y in points + edges)], panel.log_y, HEIGHT - BOTTOM, TOP)
    parts = _frame(panel, up)
    for tick in across.ticks():
        parts.append(
            text(across.place(tick), HEIGHT - BOTTOM + 16, across.label(tick), size=11, anchor="middle")
        )
    legend = _Legend()
    if panel.band:
        there = [f"{across.place(x):.1f} {up.place(high):.1f}" for x, _, high in panel.band]
        back = [f"{across.place(x):.1f} {up.place(low):.1f}" for x, low, _ in reversed(panel.band)]
        area = "L".join(there + back)
        parts.append(f'<path d="M{area}Z" fill="{BLUE}" fill-opacity="0.18" stroke="none"/>')
    for (name, line), colour in zip(panel.lines.items(), COLOURS[: len(panel.lines)], strict=True):
        path = "L".join(f"{across.place(x):.1f} {up.place(y):.1f}" for x, y in line)
        dashes = ' stroke-dasharray="6 4"' if name in panel.dashed else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        for x, y in line:
            parts.append(
                f'<circle cx="{across.place(x):.1f}" cy="{up.place(y):.1f}" r="{2 if len(line) > 60 else 3}" '
                f'fill="{colour}">'
                f"<title>{html.escape(name)}: {x:.4g}, {panel.value(name, y)}</title></circle>"
            )
        if len(panel.lines) > 1 or panel.band:
            parts += legend.entry(name, colour)
    if panel.band:
        parts += legend.entry(panel.band_name, BLUE, opacity=0.18)
    return parts


def _bars(panel: Bars) -> list[str]:
    dots = [y for values in panel.dots.values() for y in values]
    up = _Axis.of([0.0, *panel.bars.values(), *dots, *panel.limits.values()], False, HEIGHT - BOTTOM, TOP)
    up = replace(up, low=0.0)
    parts = _frame(panel, up)
    step = (WIDTH - LEFT - RIGHT) / len(panel.bars)
    for place, (name, height) in enumerate(panel.bars.items()):
        middle, y = LEFT + step * (place + 0.5), up.place(max(height, 0.0))
        width = min(0.6 * step, 64)
        parts.append(
            f'<rect x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{BLUE}" fill-opacity="0.55">'
            f"<title>{html.escape(name)}: {height:.4g}</title></rect>"
        )
        parts.append(text(middle, HEIGHT - BOTTOM + 16, name, size=11, anchor="middle"))
        for value in panel.dots.get(name, ()):
            parts.append(
                f'<circle cx="{middle:.1f}" cy="{up.place(value):.1f}" r="3" fill="{INK}" fill-opacity="0.6">'
                f"<title>{html.escape(name)}: {value:.4g}</title></circle>"
            )
    legend = _Legend()
    for (name, height), colour in zip(panel.limits.items(), COLOURS[1:], strict=False):
        y = up.place(height)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{colour}" stroke-width="2" stroke-dasharray="6 4"/>'
        )
        parts += legend.entry(name, colour)
    return parts


class _Legend:
    """Names of lines beside their colours, from left to right; a second line below takes those that do not fit."""

    def __init__(self) -> None:
        self.start, self.top = float(LEFT), 36

    def entry(self, name: str, colour: str, opacity: float = 1.0) -> list[str]:
        width = 30 + 6.6 * len(name)
        if self.start > LEFT and self.start + width - 15 > WIDTH:  # after the last name no room is needed
            self.start, self.top = float(LEFT), self.top + 13
        start, self.start = self.start, self.start + width
        return [
            f'<rect x="{start:.0f}" y="{self.top}" width="10" height="10" fill="{colour}" '
            f'fill-opacity="{opacity:g}"/>',
            text(start + 15, self.top + 9, name),
        ]


@dataclass(frozen=True)
class _Axis:
    """Maps values to places; in logs of base 2 if the axis is logarithmic.

    Attributes:
        decades: ticks are powers of ten.
    """

    low: float
    high: float
    log: bool
    first: float
    last: float
    decades: bool = False

    @classmethod
    def of(
        cls, values: Sequence[float], log: bool, first: float, last: float, decades: bool = False
    ) -> "_Axis":
        scaled = [math.log2(value) for value in values] if log else list(values)
        low, high = min(scaled), max(scaled)
        room = 0.05 * (high - low) or (0.5 if log else abs(high) / 2 or 1)
        return cls(low - room, high + room, log, first, last, decades)

    def place(self, value: float) -> float:
        scaled = math.log2(value) if self.log else value
        return self.first + (self.last - self.first) * (scaled - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """Write a tick in words; powers of two below 1 as fractions."""
        if self.decades:
            return f"1e{round(math.log10(tick))}"
        return f"1/{round(1 / tick):,}" if self.log and tick < 1 else f"{tick:.4g}"

    def ticks(self) -> list[float]:
        """Return at most seven round values within the axis."""
        if self.decades:
            low, high = (math.log10(2.0**end) for end in (self.low, self.high))
            tens = range(math.ceil(low), math.floor(high) + 1)
            return [10.0**power for power in tens[:: max(1, math.ceil(len(tens) / 6))]]
        if self.log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            step = max(1, math.ceil(len(powers) / 6))
            return [2.0**power for power in powers[::step]]
        step_size = round_step((self.high - self.low) / 5)
        start = math.ceil(self.low / step_size)
        return [place * step_size for place in range(start, math.floor(self.high / step_size) + 1)]
