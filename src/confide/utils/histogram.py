"""A picture of how many rows the units have, as inline SVG."""

from confide.utils.svg import BLUE, FAINT, INK, RED, opening, round_step, text
from confide.utils.tally import Tally

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 76, 64
BAR, MARK = BLUE, RED


def histogram_svg(rows_per_unit: Tally) -> str:
    """Draw units by their number of rows as a stand-alone SVG element.

    Bins double in width: 1, 2-3, 4-7, 8-15, ... so that one row and 90,000 rows fit in one picture.
    """
    bins = rows_per_unit.most.bit_length()
    units = rows_per_unit.in_bins([1 << place for place in range(bins + 1)])
    ticks = _ticks(max(units))
    facts = (
        f"{_plural(rows_per_unit.number, 'unit')}; rows of a unit: median {rows_per_unit.median:,.4g}, "
        f"mean {rows_per_unit.mean:,.4g}, most {rows_per_unit.most:,}"
    )
    parts = [
        *opening(WIDTH, HEIGHT, f"Rows per unit. {facts}"),
        text(LEFT, 28, "Rows per unit", size=18, weight=600),
        text(LEFT, 50, facts, size=13),
    ]
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(text(LEFT - 8, y + 4, _short(tick), anchor="end"))
    step = (WIDTH - LEFT - RIGHT) / bins
    middle_bin = int(rows_per_unit.median).bit_length() - 1
    for place, number in enumerate(units):
        parts += _bar(place, number, step, ticks[-1], MARK if place == middle_bin else BAR)
    parts.append(f'<rect x="{WIDTH - RIGHT - 122}" y="40" width="11" height="11" fill="{MARK}"/>')
    parts.append(text(WIDTH - RIGHT, 50, "holds the median", anchor="end"))
    parts.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="{INK}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        text(
            middle,
            HEIGHT - 14,
            "rows of a unit (each bar spans twice the range of the one before)",
            size=13,
            anchor="middle",
        )
    )
    parts.append(
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" font-size="13" '
        'text-anchor="middle">units</text>'
    )
    return "\n".join([*parts, "</svg>"])


def _bar(place: int, number: int, step: float, top: int, colour: str) -> list[str]:
    low, high = 1 << place, (2 << place) - 1
    roomy = step >= 72
    name = f"{low:,}" if low == high else f"{low:,}–{high:,}" if roomy else f"{_short(low)}+"
    middle, base = LEFT + step * (place + 0.5), HEIGHT - BOTTOM
    y = min(_y(number, top), base - 1) if number else base  # one unit among a million is still seen
    width = min(0.84 * step, 96)
    size = 12 if roomy else 10
    return [
        f'<rect x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{base - y:.1f}" '
        f'fill="{colour}"><title>{_plural(number, "unit")} with {low:,} to {high:,} rows</title></rect>',
        text(middle, y - 5, f"{number:,}" if roomy else _short(number), size=size, anchor="middle"),
        text(middle, base + 18, name, size=size, anchor="middle"),
    ]


def _y(units: float, top: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP - 16) * units / top


def _ticks(largest: int) -> list[int]:
    """Return zero to at least `largest` in at most six round steps."""
    step = int(round_step(max(1.0, largest / 5)))
    return list(range(0, largest + step, step))


def _short(number: int) -> str:
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if number >= 10 * unit:
            return f"{number / unit:.0f}{name}"
    return f"{number:,}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
