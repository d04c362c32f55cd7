"""The figures of benchmarks/step.py as a table and a chart."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

WIDTH, LABEL, BAR, GAP, TOP = 760, 300, 13, 14, 64
INK, FAINT, TIME, MEMORY = "#1f2933", "#9aa5b1", "#3b6ea8", "#c9a227"


def table(rows: Sequence[Row]) -> str:
    """Markdown: one line for each method."""
    lines = [
        "| case | method | k | time / plain | quartiles | least | time / confide | seconds | memory / plain | MB "
        "| clipped sum off by |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["time_quartiles"]
        error = "" if row.get("sum_error") is None else f"{row['sum_error']:.1e}"
        if row.get("sum_wrong"):
            error += " (WRONG)"
        cells = [
            row["case"],
            row["method"],
            str(row["k"]),
            f"{row['time_ratio']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row['least_ratio']:.3f}",
            "" if row["confide_ratio"] is None else f"{row['confide_ratio']:.2f}",
            f"{row['seconds']:.3f}",
            f"{row['memory_ratio']:.3f}",
            f"{row['memory_bytes'] / 1e6:.0f}",
            error,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts_table(rows: Sequence[Row]) -> str:
    """Markdown: milliseconds of each method's step by part."""
    shown = [row for row in rows if "parts" in row]
    names = list(dict.fromkeys(name for row in shown for name in row["parts"]))
    titles = [f"{row['method']} k={row['k']}, {row['case']}" for row in shown]
    lines = ["| part, ms a step | " + " | ".join(titles) + " |", "|---" * (len(shown) + 1) + "|"]
    for name in names:
        values = [f"{1e3 * row['parts'][name]:.1f}" if name in row["parts"] else "" for row in shown]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    totals = [f"{1e3 * sum(row['parts'].values()):.1f}" for row in shown]
    return "\n".join([*lines, "| all | " + " | ".join(totals) + " |"])


def chart(title: str, rows: Sequence[Row]) -> str:
    """A stand-alone SVG: time and memory of each method in units of ordinary training's."""
    longest = max(1.2, *(max(row["time_ratio"], row["memory_ratio"]) for row in rows))
    scale = (WIDTH - LABEL - 70) / longest
    height = TOP + len(rows) * (2 * BAR + GAP) + 12
    one = LABEL + scale
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15" font-weight="600">{html.escape(title)}</text>',
        f'<text x="12" y="44"><tspan fill="{TIME}">■</tspan> time and <tspan fill="{MEMORY}">■</tspan> peak '
        "memory of a step; ordinary training = 1</text>",
    ]
    y = TOP
    for row in rows:
        name = f"{row['method']}, k = {row['k']} ({row['case'].split(',')[0]})"
        lines.append(f'<text x="{LABEL - 8}" y="{y + BAR + 4}" text-anchor="end">{html.escape(name)}</text>')
        for offset, key, colour in ((0, "time_ratio", TIME), (BAR, "memory_ratio", MEMORY)):
            width = scale * row[key]
            lines.append(
                f'<rect x="{LABEL}" y="{y + offset}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'
                f'<text x="{LABEL + width + 5:.1f}" y="{y + offset + BAR - 3}" font-size="11">{row[key]:.2f}</text>'
            )
        y += 2 * BAR + GAP
    lines.append(
        f'<path d="M{one:.1f} {TOP - 6}V{height - 8}" stroke="{FAINT}" stroke-dasharray="3 3"/></svg>'
    )
    return "\n".join(lines)
