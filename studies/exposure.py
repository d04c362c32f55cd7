"""How far planted numbers can be told from the model (Wu et al. 2022, Figure 1; Shi et al. 2022, Figures 2 to 4).

"My ID is 341752" stands 1, 10, 100 or 1,000 times in the Schema-Guided Dialogues, and the number's exact rank among
all 10^6 of six digits is looked up in the model: without privacy, by DP-SGD, with adaptive noise, redacted, and
fine-tuned twice, where the detector catches the numbers and where it misses them. Six digits in a row are what it
catches; the rest of what is sensitive is annotated in the data. Exposure is log2(10^6 / rank): at most 19.9, 1.44 on
average for a model that has not seen the number.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confide.auditing.attack import Options
from confide.runs.preparation import load
from confide.utils.chart import Panel, panels_svg
from confide.utils.console import Console
from confide.utils.files import write_text
from studies import corpora, main
from studies.attacked import attacked, epsilon_of, in_table, is_estimate

TIMES = (1, 10, 100, 1000)
EACH = 4  # numbers planted so often
EPSILON = 3.0
STEPS = 40

_ANNOTATED = {"spans": "spans"}
_CAUGHT = _ANNOTATED | {"expressions": {"NUMBER": r"\d{6}"}}
METHODS: dict[str, dict[str, Any]] = {
    "no DP": {"privacy": {"mechanism": "none"}},
    "DP-SGD": {"privacy": {"mechanism": "dp-sgd", "epsilon": EPSILON}},
    "adaptive": {"privacy": {"mechanism": "adaptive", "epsilon": EPSILON}},
    "redacted, numbers caught": {"privacy": {"mechanism": "redacted"}, "detector": _CAUGHT},
    "redacted, numbers missed": {"privacy": {"mechanism": "redacted"}, "detector": _ANNOTATED},
    "selective, numbers caught": {
        "privacy": {"mechanism": "selective", "epsilon": EPSILON},
        "detector": _CAUGHT,
        "redacted": {"steps": STEPS // 2},
    },
    "selective, numbers missed": {
        "privacy": {"mechanism": "selective", "epsilon": EPSILON},
        "detector": _ANNOTATED,
        "redacted": {"steps": STEPS // 2},
    },
}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    epsilon: of one row, as claimed, None where nothing is; missed: of `numbers`, how many the detector did not find,
    None without one; exposures: of the numbers, by how often they were planted; absent: of those that were not, if any
    """

    method: str
    epsilon: float | None
    is_estimate: bool
    perplexity: float
    numbers: int
    missed: int | None
    exposures: dict[int, list[float]]
    absent: list[float]


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, rank the numbers, and make table and picture (`exposure.svg` in `folder`)."""
    console = Console()
    common = _common(data, folder)
    rows = [_row(method, own, common, folder, console) for method, own in METHODS.items()]
    write_text(folder / "exposure.svg", _picture(rows))
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _common(data: Path, folder: Path) -> dict[str, Any]:
    """What all runs share: the model of `study selective`, and its dialogues."""
    text = corpora.written(corpora.dialogues(data, "train"), folder / "data/train.jsonl", 2000)
    held_out = corpora.written(corpora.dialogues(data, "dev"), folder / "data/dev.jsonl", 200)
    return {
        "model": str(corpora.stories(data, folder / "stories260K")),
        "data": {
            "train": str(text),
            "eval": str(held_out),
            "text": "turns",
            "max_length": 64,
            "duplicates": False,
        },
        "train": {"steps": STEPS, "batch": 512.0, "learning_rate": 2e-3},
    }


def _row(method: str, own: dict[str, Any], common: dict[str, Any], folder: Path, console: Console) -> Row:
    masks = "detector" in own
    # Where rows are protected half of the canaries are not there; where text is, each holds one of two numbers.
    count = len(TIMES) * EACH * (1 if masks else 2)
    raw = common | own | {"canaries": {"count": count, "insertions": list(TIMES)}}
    if "redacted" in own:
        raw["train"] = common["train"] | {"steps": STEPS - own["redacted"]["steps"]}
    name = method.replace(",", "").replace(" ", "-")
    options = Options(attacks=("exposure",), secrets=len(TIMES) * EACH * 2)
    trained, outcome, found = attacked(name, raw, folder, options, console)
    prepared = load(trained.config, trained.data, trained.data_key())
    assert outcome.final
    assert prepared is not None
    groups = found["exposure"]["groups"].values()
    by_times = {group["insertions"]: group["exposures"] for group in groups}
    absent = by_times.pop(0, [])
    return Row(
        method,
        epsilon_of(outcome),
        is_estimate(outcome.guarantee),
        float(outcome.final["perplexity"]),
        count,
        prepared.facts["canaries"]["missed"] if masks else None,
        dict(sorted(by_times.items())),
        absent,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _picture(rows: list[Row]) -> str:
    """Draw Wu et al. 2022's Figure 1 and Shi et al. 2022's Figures 2 to 4: numbers detected and missed."""
    panels = [
        Panel(
            title,
            "documents that hold the number",
            "mean exposure, bits",
            {
                row.method.split(",")[0]: [(float(times), _mean(own)) for times, own in row.exposures.items()]
                for row in rows
                if row.method == "no DP" or row.method.partition(",")[2] == which
            },
            log_x=True,
        )
        for title, which in (
            ("Rows protected", ""),
            ("Text protected, numbers caught", " numbers caught"),
            ("Text protected, numbers missed", " numbers missed"),
        )
    ]
    return panels_svg("Exposure of planted numbers of six digits", panels, columns=3)


def _table(rows: list[Row]) -> str:
    times = " | ".join(f"{count:,} times" for count in TIMES)
    lines = [
        f"| method | epsilon of one row | perplexity | numbers missed | mean exposure (of how many numbers): "
        f"not planted | {times} |",
        "|---|---|---|---|---|" + "---|" * len(TIMES),
    ]
    for row in rows:
        columns = [row.absent, *(row.exposures.get(count, []) for count in TIMES)]
        cells = [
            row.method,
            in_table(row.epsilon) + (", an estimate" if row.is_estimate else ""),
            f"{row.perplexity:.2f}",
            "" if row.missed is None else f"{row.missed} of {row.numbers}",
            *(f"{_mean(own):.1f} ({len(own)})" if own else "" for own in columns),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
