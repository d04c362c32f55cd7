"""How much training text a model gives back, by the noise it was trained with (Ganesh et al. 2025, Figures 2 and 3).

stories260K, which has read children's stories alone, reads a few paragraphs of WikiText-2 again and again, until
without noise it knows many by heart. Each row's first 16 tokens are given, and greedy decoding must give back the next
16; what the base model gives back stands beside it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confide.auditing.attack import Options
from confide.utils.chart import Panel, panels_svg
from confide.utils.console import Console
from confide.utils.files import write_text
from studies import corpora, main
from studies.attacked import attacked, epsilon_of, in_table

NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Noise multipliers of DP-SGD; with 0 rows are clipped and nothing else."""
DOCUMENTS = 60
STEPS = 400
PREFIX = SUFFIX = 16
ROWS = 1000


@dataclass(frozen=True)
class Row:
    """One line of the table.

    noise: multiplier, None without clipping; epsilon: as claimed, None where nothing is; perplexity: of held-out text;
    rows: that were asked for; tuned, base: shares of them that the model gives back, (share, low, high) at 95%;
    discoverable: of them, with probability 1/2 in 100 samples.
    """

    noise: float | None
    epsilon: float | None
    perplexity: float
    rows: int
    tuned: tuple[float, float, float]
    base: float
    discoverable: float


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, ask for the rows, and make table and picture (`extraction.svg` in `folder`)."""
    console = Console()
    text = corpora.written(corpora.wikitext(data, "train"), folder / "data/train.jsonl", DOCUMENTS)
    held_out = corpora.written(corpora.wikitext(data, "valid"), folder / "data/valid.jsonl", 300)
    common = {
        "model": str(corpora.stories(data, folder / "stories260K")),
        "data": {"train": str(text), "eval": str(held_out), "max_length": 64, "duplicates": False},
        "train": {"steps": STEPS, "batch": 64.0, "learning_rate": 5e-3, "schedule": "linear"},
    }
    rows = [_row(noise, common, folder, console) for noise in (None, *NOISES)]
    write_text(folder / "extraction.svg", _picture(rows))
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _row(noise: float | None, common: dict[str, Any], folder: Path, console: Console) -> Row:
    privacy: dict[str, Any] = {"mechanism": "none"}
    if noise is not None:
        privacy = {"mechanism": "dp-sgd", "noise_multiplier": noise}
    name = "none" if noise is None else f"noise-{noise:g}"
    options = Options(attacks=("extraction",), users=ROWS, prefix=PREFIX, suffix=SUFFIX)
    _, outcome, found = attacked(name, common | {"privacy": privacy}, folder, options, console)
    assert outcome.final
    greedy = found["extraction"]["greedy"]
    tuned = greedy["tuned"]
    return Row(
        noise,
        epsilon_of(outcome),
        float(outcome.final["perplexity"]),
        greedy["rows"],
        (tuned["share"], tuned["low"], tuned["high"]),
        greedy["base"]["share"],
        found["extraction"]["discoverable"]["tuned"]["share"],
    )


def _picture(rows: list[Row]) -> str:
    noised = [row for row in rows if row.noise]
    ends = [row.noise for row in (noised[0], noised[-1]) if row.noise]
    bare = rows[0]
    panels = [
        Panel(
            "Rows given back",
            "noise multiplier",
            "share of rows",
            {
                "greedy": [(row.noise or 0, row.tuned[0]) for row in noised],
                "100 samples": [(row.noise or 0, row.discoverable) for row in noised],
                "no DP": [(end, bare.tuned[0]) for end in ends],
                "base model": [(end, bare.base) for end in ends],
            },
            log_x=True,
        ),
        Panel(
            "Held-out text",
            "noise multiplier",
            "perplexity",
            {
                "DP-SGD": [(row.noise or 0, row.perplexity) for row in noised],
                "no DP": [(end, bare.perplexity) for end in ends],
            },
            log_x=True,
        ),
    ]
    return panels_svg("Extraction by noise", panels)


def _table(rows: list[Row]) -> str:
    lines = [
        f"| training | epsilon | perplexity, held out | rows | given back, greedy: {SUFFIX} tokens after {PREFIX} | "
        "by the base model | in 100 samples, probability 1/2 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share, low, high = row.tuned
        cells = [
            "no DP" if row.noise is None else f"noise multiplier {row.noise:g}",
            in_table(row.epsilon),
            f"{row.perplexity:.2f}",
            str(row.rows),
            f"{share:.1%} ({low:.1%} to {high:.1%})",
            f"{row.base:.1%}",
            f"{row.discoverable:.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
