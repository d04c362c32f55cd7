"""The few parts that pictures share: colours and words of an SVG."""

import html
import math

INK, FAINT, BLUE, RED, GOLD, GREEN = "#1f2933", "#d5dbe1", "#3b6ea8", "#b4451f", "#b58900", "#4b7f52"


def text(
    x: float,
    y: float,
    words: str,
    size: int = 12,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    """Write one line of text at (x, y)."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{INK}">{html.escape(words)}</text>'
    )


def round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least so much: from one tick to the next."""
    unit = 10.0 ** math.floor(math.log10(least))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least)


def opening(width: float, height: float, title: str) -> list[str]:
    """Start a stand-alone picture on white."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="100%" role="img" '
        f'style="max-width:{width:g}px" font-family="system-ui, Helvetica, Arial, sans-serif" fill="{INK}">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
    ]
