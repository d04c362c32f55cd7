"""Draw the pictures of docs/concepts.md: `python scripts/pictures.py` writes them to docs/pictures.

Each is an SVG with its own background and two sets of colours, so that it can be read in light and dark.
"""

import html
import math
from collections.abc import Callable
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDTH = 720

STYLE = """
text { font: 14px system-ui, Helvetica, Arial, sans-serif; fill: #1f2933; }
.small { font-size: 12.5px; } .strong { font-weight: 650; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: #ffffff; } .line { stroke: #616e7c; stroke-width: 1.6; fill: none; } .head { fill: #616e7c; }
.plain { fill: #eef2f7; stroke: #9aa5b1; }
.blue { fill: #d6e6f7; stroke: #2f6fb0; } .red { fill: #fbdfd5; stroke: #b4451f; }
.green { fill: #dcefdd; stroke: #3f7d46; } .gold { fill: #fbeec4; stroke: #9a7500; }
.gone { fill: none; stroke: #9aa5b1; stroke-dasharray: 4 4; } .dash { stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb; } .paper { fill: #1b2129; } .line { stroke: #9aa5b1; } .head { fill: #9aa5b1; }
.plain { fill: #2b333d; stroke: #7b8794; }
.blue { fill: #1d3a57; stroke: #6aa5dd; } .red { fill: #57291b; stroke: #e58a66; }
.green { fill: #203f24; stroke: #7fbf86; } .gold { fill: #4a3b0c; stroke: #d9b23c; } .gone { stroke: #7b8794; }
}
"""


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """Write a line of text."""
    named = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, *lines: str) -> str:
    """Draw a box with lines of text in its middle; the first is bold if there are several."""
    parts = [f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>']
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    for number, words in enumerate(lines):
        kinds = "middle strong" if number == 0 and len(lines) > 1 else "middle small" if number else "middle"
        parts.append(text(x + width / 2, top + 18 * number, words, kinds))
    return "\n".join(parts)


def arrow(x: float, y: float, to_x: float, to_y: float, kinds: str = "line") -> str:
    """Draw an arrow."""
    angle = math.atan2(to_y - y, to_x - x)
    back, side = 9, 4.5
    base_x, base_y = to_x - back * math.cos(angle), to_y - back * math.sin(angle)
    across_x, across_y = side * math.sin(angle), -side * math.cos(angle)
    points = [(to_x, to_y), (base_x + across_x, base_y + across_y), (base_x - across_x, base_y - across_y)]
    tip = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return (
        f'<line class="{kinds}" x1="{x:g}" y1="{y:g}" x2="{base_x:.1f}" y2="{base_y:.1f}"/>'
        f'<polygon class="head" points="{tip}"/>'
    )


def line(x: float, y: float, to_x: float, to_y: float, kinds: str = "line") -> str:
    """Draw a line."""
    return f'<line class="{kinds}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>'


def dot(x: float, y: float, radius: float, kind: str) -> str:
    """Draw a filled circle."""
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'


def step() -> tuple[int, str, list[str]]:
    """Draw one step of training."""
    parts = []
    stages = (
        ("plain", "1 Draw", "each unit by its", "own secret coin"),
        ("blue", "2 Read", "one gradient for", "each drawn unit"),
        ("gold", "3 Clip", "no gradient longer", "than the clip norm"),
        ("red", "4 Add noise", "to the sum of all,", "from a secret key"),
        ("green", "5 Move", "the weights, after", "the ledger has it"),
    )
    for number, (kind, *lines) in enumerate(stages):
        x = 12 + 142 * number
        parts.append(box(x, 24, 122, 82, kind, *lines))
        if number:
            parts.append(arrow(x - 20, 65, x - 2, 65))
    parts.append(arrow(641, 108, 641, 150))
    parts.append(line(641, 150, 73, 150))
    parts.append(arrow(73, 150, 73, 110))
    parts.append(text(360, 142, "again, for as many steps as were planned", "middle small"))
    parts.append(
        text(
            360,
            176,
            "One unit can move the sum by the clip norm at most. The noise hides that much.",
            "middle",
        )
    )
    return (
        192,
        "One step: draw units, read, clip each unit's gradient, add noise to the sum, move the weights",
        parts,
    )


def unit_row_chunk() -> tuple[int, str, list[str]]:
    """Draw how texts become rows and chunks."""
    parts = [text(16, 28, "A unit: all text of one person", "strong")]
    for x, width, name in ((16, 170, "mail 1"), (196, 92, "mail 2"), (298, 236, "mail 3")):
        parts.append(box(x, 40, width, 36, "blue", name))
    parts.append(text(552, 63, "texts", "small"))
    parts.append(text(16, 112, "Rows: each text is cut at the bound", "strong"))
    for x, width in ((16, 112), (134, 52), (196, 92), (298, 112), (416, 112), (534, 12)):
        parts.append(box(x, 124, width, 36, "plain", "row" if width > 40 else ""))
    parts.append(text(560, 147, "6 rows", "small"))
    parts.append(text(16, 196, "Chunks: windows at random places, new in each step", "strong"))
    parts.append('<rect class="plain" x="16" y="208" width="530" height="36" rx="7"/>')
    for x, name in ((90, "step 1"), (262, "step 2"), (398, "step 3")):
        parts.append(box(x, 208, 112, 36, "gold", name))
    parts.append(text(560, 231, "all text, joined", "small"))
    return 262, "One person's three mails are cut into six rows, or read as chunks at random places", parts


def adjacency() -> tuple[int, str, list[str]]:
    """Draw the three pairs of worlds."""
    parts = []
    for number, (name, said) in enumerate(
        (
            ("zero-out", ("the unit's text counts", "for nothing")),
            ("add-or-remove", ("the unit is not", "in the data")),
            ("replace-one", ("the unit's text says", "something else")),
        )
    ):
        x = 16 + 238 * number
        parts.append(text(x + 106, 26, name, "middle strong"))
        for top, world in ((40, "one world"), (116, "the other")):
            parts.append(text(x, top + 14, world, "small"))
            for place, letter in enumerate("ABC"):
                left = x + 70 * place
                kind = "blue" if letter == "B" else "plain"
                words = letter
                if top > 100 and letter == "B":
                    kind, words = (("gone", "0"), ("gone", ""), ("red", "B′"))[number]
                parts.append(box(left, top + 22, 62, 34, kind, words))
        parts.append(text(x + 106, 200, said[0], "middle small"))
        parts.append(text(x + 106, 217, said[1], "middle small"))
    return 232, "Three kinds of neighbouring worlds: zero-out, add-or-remove and replace-one", parts


def poisson() -> tuple[int, str, list[str]]:
    """Draw who takes part in which step."""
    drawn = {1: (0, 3, 4), 2: (2,), 3: (), 4: (1, 3, 6, 7), 5: (0, 5)}
    parts = [text(16, 30, "units", "strong")]
    for unit in range(8):
        parts.append(text(138 + 62 * unit, 30, "ABCDEFGH"[unit], "middle strong"))
    for step_number, units in drawn.items():
        y = 26 + 34 * step_number
        parts.append(text(16, y + 5, f"step {step_number}", ""))
        for unit in range(8):
            parts.append(dot(138 + 62 * unit, y, 11, "blue" if unit in units else "gone"))
        parts.append(text(626, y + 5, f"{len(units)} drawn" if units else "nobody", "small"))
    parts.append(
        text(16, 236, "Each unit tosses its own coin in each step. So the number that is drawn varies.")
    )
    return 252, "Poisson draws: in five steps three, one, no, four and two of eight units are drawn", parts


def clip_noise() -> tuple[int, str, list[str]]:
    """Draw clipping to a circle, and noise on the sum."""
    parts = []
    for left, name in ((120, "gradients"), (360, "clipped"), (600, "sum, with noise")):
        parts.append(text(left, 26, name, "middle strong"))
    reach = 48
    arrows = ((100, -0.35), (34, -1.25), (66, 0.8))
    for centre, clipped in ((120, False), (360, True)):
        parts.append(f'<circle class="gone" cx="{centre}" cy="120" r="{reach}"/>')
        for length, angle in arrows:
            shown = min(length, reach) if clipped else length
            parts.append(arrow(centre, 120, centre + shown * math.cos(angle), 120 + shown * math.sin(angle)))
    total_x = sum(min(length, reach) * math.cos(angle) for length, angle in arrows) * 0.6
    total_y = sum(min(length, reach) * math.sin(angle) for length, angle in arrows) * 0.6
    for radius in (56, 42, 28, 14):
        parts.append(dot(560 + total_x, 120 + total_y, radius, "red"))
    parts.append(arrow(560, 120, 560 + total_x, 120 + total_y))
    parts.append(text(120, 208, "one is too long", "middle small"))
    parts.append(text(360, 208, "none leaves the circle", "middle small"))
    parts.append(text(600, 208, "where it ends is blurred", "middle small"))
    parts.append(arrow(228, 190, 286, 190))
    parts.append(arrow(446, 190, 504, 190))
    return 226, "Long gradients are cut to the circle of the clip norm; the sum is blurred by noise", parts


EPSILONS = (0.1, 0.5, 1, 2, 3, 5, 8)


def at_most_from_even(epsilon: float) -> float:
    """Return what a belief of 1/2 can become at most, if delta is left aside."""
    return 1 / (1 + math.exp(-epsilon))


def epsilon() -> tuple[int, str, list[str]]:
    """Draw what a belief of one half can become."""
    parts = [text(16, 26, "An attacker thinks 50%. After a look at the model, at most:", "strong")]
    for number, value in enumerate(EPSILONS):
        y = 42 + 28 * number
        belief = at_most_from_even(value)
        # Rounded up, as every bound on an attacker is.
        shown = math.ceil(belief * 1e4) / 1e2 if belief > 0.99 else math.ceil(belief * 1e2)
        parts.append(text(110, y + 16, f"epsilon {value:g}", "end"))
        parts.append(f'<rect class="plain" x="122" y="{y}" width="500" height="21" rx="4"/>')
        kind = "green" if value <= 1 else "gold"
        parts.append(f'<rect class="{kind}" x="122" y="{y}" width="{500 * belief:.1f}" height="21" rx="4"/>')
        parts.append(text(632, y + 16, f"{shown:g}%"))
    bottom = 42 + 28 * len(EPSILONS)
    parts.append(line(372, 40, 372, bottom, "line dash"))
    parts.append(text(372, bottom + 16, "50%", "middle small"))
    return bottom + 28, "What a belief of 50% can become at most, for seven values of epsilon", parts


def audit() -> tuple[int, str, list[str]]:
    """Draw what an audit shows beside what is claimed."""
    parts = []
    rows = (
        ("consistent", 150, 300, 220),
        ("underpowered", 110, 250, 330),
        ("violation", 390, 520, 270),
    )
    for number, (verdict, shown, could, claimed) in enumerate(rows):
        y = 54 + 62 * number
        parts.append(text(16, y + 5, verdict, "strong"))
        parts.append(line(144, y, 690, y))
        parts.append(f'<rect class="blue" x="144" y="{y - 9}" width="{shown}" height="18" rx="4"/>')
        parts.append(f'<rect class="gone" x="144" y="{y - 9}" width="{could}" height="18" rx="4"/>')
        parts.append(line(144 + claimed, y - 20, 144 + claimed, y + 20))
        parts.append(text(144 + claimed, y - 24, "claimed", "middle small"))
    parts.append(text(144, 224, "filled: what the guesses showed", "small"))
    parts.append(text(372, 224, "dashed: the most they could have shown", "small"))
    parts.append(text(690, 206, "epsilon", "end small"))
    return (
        240,
        "Three verdicts of an audit: what was shown and could have been shown, beside the claim",
        parts,
    )


def which_unit() -> tuple[int, str, list[str]]:
    """Draw the decision tree for the unit."""
    questions = (
        ("Must all of a person's text be safe?", "Has each row one owner?", None),
        ("Is one row at a time enough?", "dp-sgd", "unit: one row"),
        ("Only certain words in a text?", "selective", "unit: what is sensitive in one row"),
        ("Only things that you can name?", "secret", "unit: the named secret"),
    )
    parts = []
    for number, (question, answer, unit) in enumerate(questions):
        y = 20 + 92 * number
        parts.append(box(16, y, 268, 50, "plain", question))
        if number:
            parts.append(arrow(150, y - 42, 150, y - 1))
            parts.append(text(160, y - 16, "no", "small"))
        parts.append(text(292, y + 19, "yes", "small"))
        if unit is None:
            parts.append(arrow(286, y + 25, 326, y + 25))
            parts.append(box(328, y, 222, 50, "plain", answer))
            parts.append(arrow(552, y + 12, 590, y + 4))
            parts.append(text(557, y + 2, "yes", "small"))
            parts.append(box(592, y - 14, 116, 34, "green", "uls"))
            parts.append(arrow(552, y + 38, 590, y + 48))
            parts.append(text(557, y + 58, "no", "small"))
            parts.append(box(592, y + 32, 116, 34, "green", "owners"))
        else:
            parts.append(arrow(286, y + 25, 326, y + 25))
            parts.append(box(328, y, 262, 50, "green", answer, unit))
    parts.append(arrow(150, 346, 150, 386))
    parts.append(text(160, 372, "no", "small"))
    parts.append(box(16, 388, 268, 44, "red", "none: nobody is protected"))
    return 448, "A tree of four questions that leads to uls, owners, dp-sgd, selective, secret or none", parts


# The share of the gain of training without privacy: docs/results/beyond.md, `recipe`, constant rate and first beta 0.6.
MEASURED = ((3, 87), (8, 92))


def price() -> tuple[int, str, list[str]]:
    """Draw what a smaller epsilon cost in one study."""
    parts = [text(16, 26, "How much of the non-private gain was kept (20 Newsgroups)", "strong")]
    rows = (*((f"epsilon {value}", share) for value, share in MEASURED), ("not private", 100.0))
    for number, (name, share) in enumerate(rows):
        y = 42 + 34 * number
        kind = "green" if number < len(MEASURED) else "red"
        parts.append(text(110, y + 18, name, "end"))
        parts.append(f'<rect class="{kind}" x="122" y="{y}" width="{5 * share:g}" height="25" rx="4"/>')
        parts.append(text(632, y + 18, f"{share:g}%"))
    return (
        156,
        "At epsilon {} and {} a study kept {}% and {}% of what training without privacy gains".format(
            *(number for numbers in zip(*MEASURED, strict=True) for number in numbers)
        ),
        parts,
    )


PICTURES: dict[str, Callable[[], tuple[int, str, list[str]]]] = {
    "step": step,
    "unit-row-chunk": unit_row_chunk,
    "adjacency": adjacency,
    "poisson": poisson,
    "clip-noise": clip_noise,
    "epsilon": epsilon,
    "audit": audit,
    "which-unit": which_unit,
    "price": price,
}


def drawn(name: str) -> str:
    """Return a picture as SVG."""
    height, title, parts = PICTURES[name]()
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for each in PICTURES:
        (OUT / f"{each}.svg").write_text(drawn(each))
