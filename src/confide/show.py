"""Results as a person reads them, on standard output."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide.finetuning import Outcome
    from confide.runs import Run


def table(header: list[str], rows: list[list[str]]) -> None:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def histogram(graph: Path) -> str:
    from confide.histogram import histogram_svg
    from confide.units import UnitGraph

    return histogram_svg(UnitGraph.open(graph).shape().rows_per_unit)


def preparation(facts: dict[str, Any]) -> None:
    for name, count in facts["counts"].items():
        print(f"{number(count):>12}  {name}")
    print()
    header = ["", "units", "rows", "tokens", "rows a unit: min", "median", "mean", "max"]
    rows = []
    for name, side in (("train", facts), ("held out", facts.get("eval"))):
        if side:
            per_unit = side["rows_per_unit"]
            cells = [
                side["units"],
                side["rows"],
                side["tokens"],
                *(per_unit[k] for k in ("min", "median", "mean", "max")),
            ]
            rows.append([name, *map(number, cells)])
    table(header, rows)
    if "duplicates" in facts:
        print("\nA unit's own words may survive in another's rows:")
        for sentence in facts["duplicates"]["sentences"]:
            print(f"  {sentence}")


_COLUMNS = {
    "": "change",
    "mechanism": "mechanism",
    "batch": "batch",
    "steps": "steps",
    "noise multiplier": "noise_multiplier",
    "noise per gradient": "noise_per_gradient",
    "noise x": "relative_noise",
    "compute x": "relative_compute",
}


def plan(found: dict[str, Any]) -> None:
    chosen = found["chosen"]
    if chosen["epsilon"] is None:
        print("mechanism none: no privacy is claimed")
    else:
        print(f"epsilon {number(chosen['epsilon'])} at delta {chosen['delta']:.3g}\n")
    rows = [[number(chosen[key]) for key in _COLUMNS.values()]]
    rows += [
        [number(r[key]) for key in _COLUMNS.values()] for r in found["neighbours"] if "impossible" not in r
    ]
    table(list(_COLUMNS), rows)
    for row in found["neighbours"]:
        if "impossible" in row:
            print(f"{row['change']}: not possible: {row['impossible']}")
    print("\nnoise per gradient: standard deviation on the mean clipped gradient, in units of the clip norm")
    print(
        f"tokens {number(chosen['tokens'])}, about {chosen['operations']:.2g} floating-point operations (estimate)"
    )
    print(f"memory at the peak of a step about {found['memory_bytes'] / 2**30:.2f} GiB (estimate)")


def outcome_facts(outcome: "Outcome") -> dict[str, Any]:
    return {
        "steps": outcome.steps,
        "base": outcome.base,
        "final": outcome.final,
        "guarantee": outcome.guarantee.to_json(),
    }


def outcome(outcome: "Outcome", run: "Run") -> None:
    found = [(name, side) for name, side in (("base", outcome.base), ("trained", outcome.final)) if side]
    if found:
        keys = ["loss", "perplexity", "accuracy", "tokens"]
        table(["held out", *keys], [[name, *(number(side[k]) for k in keys)] for name, side in found])
        print()
    for sentence in outcome.guarantee.sentences():
        print(sentence)
    print(f"\nreleased: {run.release}" + ("  (not private)" if run.twin else ""))


def evaluation(found: dict[str, Any]) -> None:
    for name, value in found.items():
        print(f"{name:<11} {number(value)}")


def checks(found: dict[str, Any]) -> None:
    for check in found["checks"]:
        print(f"{'ok  ' if check['ok'] else 'FAIL'}  {check['name']}: {check['detail']}")
