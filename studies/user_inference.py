"""Whether it can be told who a model was trained on (Kandpal et al. 2023): rows protected, and whole users.

stories260K reads what some senders of 20 Newsgroups wrote; as many others are held out. User inference has a few rows
of each and asks which of the two they are. Without privacy, with DP-SGD for one row, and at the same epsilon for a
whole user, by sampling rows (ELS) and by sampling users (ULS).
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confide.auditing.attack import Options
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most, percent_at_least, percent_at_most
from studies import corpora, main
from studies.attacked import attacked, epsilon_of, in_table

EPSILON = 8.0
STEPS = 400
DOCUMENTS = 2000
BATCH, CHUNKS = 128.0, 4  # rows a step, and of a user where users are drawn
USERS, ROWS = 500, 4
FPR = 0.01

METHODS: dict[str, tuple[float, dict[str, Any]]] = {
    "no DP": (BATCH / CHUNKS, {"mechanism": "none", "rows_per_unit": CHUNKS, "selection": "random-chunk"}),
    "DP-SGD": (BATCH, {"mechanism": "dp-sgd", "epsilon": EPSILON}),
    "ELS": (BATCH, {"mechanism": "els", "epsilon": EPSILON, "rows_per_unit": CHUNKS}),
    "ULS": (
        BATCH / CHUNKS,
        {"mechanism": "uls", "epsilon": EPSILON, "rows_per_unit": CHUNKS, "selection": "random-chunk"},
    ),
}
"""What a step is expected to draw, rows or users, and the mechanism: each computes as many rows."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    unit, epsilon: as claimed, None where nothing is; users: trained on, of those that were asked about; auroc and tpr
    (at a false positive rate of 1%): (value, low, high) at 95%; ceiling: of the latter, for any attack, where the claim
    sets one.
    """

    method: str
    unit: str
    epsilon: float | None
    perplexity: float
    users: int
    auroc: tuple[float, float, float]
    tpr: tuple[float, float, float]
    ceiling: float | None


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, ask about the users, and make the table."""
    console = Console()
    common = {
        "data": corpora.posts(data, "20newsgroups", 0.5) | {"max_documents": DOCUMENTS},
        "model": str(corpora.stories(data, folder / "stories260K")),
    }
    train = {"steps": STEPS, "learning_rate": 5e-3, "schedule": "linear"}
    rows = [
        _row(method, common | {"privacy": own, "train": train | {"batch": batch}}, folder, console)
        for method, (batch, own) in METHODS.items()
    ]
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _row(method: str, raw: dict[str, Any], folder: Path, console: Console) -> Row:
    options = Options(attacks=("users",), users=USERS, rows=ROWS)
    _, outcome, found = attacked(method.replace(" ", "-"), raw, folder, options, console)
    assert outcome.final
    rates = found["users"]["rates"]
    low = next(rate for rate in rates["true_positive_rate"] if rate["fpr"] == FPR)
    bounds = dict(map(tuple, found["ceiling"]["true_positive_rate"])) if "ceiling" in found else {}
    epsilon = epsilon_of(outcome)
    return Row(
        method,
        "" if epsilon is None else outcome.guarantee.unit,
        epsilon,
        float(outcome.final["perplexity"]),
        rates["members"],
        tuple(rates["auroc"][key] for key in ("value", "low", "high")),
        tuple(low[key] for key in ("value", "low", "high")),
        bounds.get(FPR),
    )


def _table(rows: list[Row]) -> str:
    lines = [
        "| training | protects | epsilon | perplexity, held out | users asked about | AUROC (95%) | "
        f"found at {FPR:.0%} false positives (95%) | at most, by the claim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.method,
            row.unit.partition(":")[0],
            in_table(row.epsilon),
            f"{row.perplexity:.2f}",
            str(row.users),
            _measured(row.auroc),
            _shares(row.tpr),
            "" if row.ceiling is None else percent_at_most(row.ceiling),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _measured(found: tuple[float, float, float]) -> str:
    value, low, high = found
    return f"{value:.3f} ({at_least(low, places=3)} to {at_most(high, places=3)})"


def _shares(found: tuple[float, float, float]) -> str:
    value, low, high = found
    return f"{value:.1%} ({percent_at_least(low)} to {percent_at_most(high)})"


if __name__ == "__main__":
    main(run)
