"""The verb `account`: what numbers alone tell of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confide.cli.base import Json, app, check_new, print_json, verb

if TYPE_CHECKING:
    from confide.planning.account import Account


@app.command()
@verb
def account(
    process: Annotated[str, typer.Argument(metavar="PROCESS", help="uls, els, group or dp-sgd")],
    units: Annotated[
        int | None, typer.Option(metavar="N", help="how many units there are; els, group: if known")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="number of rows (els, group: those in use; uls: for the default of delta alone)",
        ),
    ] = None,
    rows_per_unit: Annotated[
        int | None, typer.Option(metavar="G", help="els, group: the most rows of a user in use")
    ] = None,
    batch: Annotated[
        float | None, typer.Option(metavar="B", help="units (uls) or rows that a step draws on average")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="Q", help="instead of --batch: the probability of each unit or row"),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="T", help="how many steps the run has")] = None,
    epsilon: Annotated[float | None, typer.Option(metavar="E", help="the target")] = None,
    noise: Annotated[
        float | None, typer.Option(metavar="S", help="the noise multiplier, relative to the clip norm")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(metavar="D", help="default: that of a run with so many rows and units")
    ] = None,
    adjacency: Annotated[
        str, typer.Option(metavar="A", help="zero-out, add-or-remove or replace-one")
    ] = "zero-out",
    sampling: Annotated[str, typer.Option(metavar="S", help="poisson, truncated or bins")] = "poisson",
    max_batch: Annotated[
        int | None, typer.Option(metavar="B", help="truncated: the most units or rows of a step")
    ] = None,
    bands: Annotated[
        int, typer.Option(metavar="N", help="uls, dp-sgd: steps over which the noise is correlated")
    ] = 1,
    buffers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="with --sampling bins, in place of --bands: all later steps take noise back, by so many buffers",
        ),
    ] = 0,
    trials: Annotated[
        float | None,
        typer.Option(metavar="N", help="count the best of so many trials on average, as tune does"),
    ] = None,
    histograms: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="uls, dp-sgd: noise multiplier of histograms that are released with the model"
        ),
    ] = None,
    as_json: Json = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="draw epsilon by delta, and what the best test finds"),
    ] = None,
) -> None:
    """Find epsilon, delta, noise or steps from the other numbers.

    It needs no data and no config. Give two of --epsilon, --noise and --steps, and the third is found; give all three,
    and delta is found. The numbers are those that a run of these counts and this delta would claim.

    Example: confide account uls --units 2000 --batch 200 --steps 500 --epsilon 8
    """
    from confide.planning.account import account as answered
    from confide.planning.account import drawn
    from confide.planning.asked import Asked
    from confide.utils.files import write_text

    check_new(plot, "--plot", made_again=".svg")
    asked = Asked(
        process=process,
        units=units,
        rows=rows,
        rows_per_unit=rows_per_unit,
        batch=batch,
        rate=rate,
        steps=steps,
        epsilon=epsilon,
        noise_multiplier=noise,
        delta=delta,
        adjacency=adjacency,
        sampling=sampling,
        max_batch=max_batch,
        bands=bands,
        buffers=buffers,
        trials=trials,
        histograms=histograms,
    )
    found = answered(asked)
    if plot is not None:
        write_text(plot, drawn(found))
    print_json(found.to_json()) if as_json else _show(found)


def _show(found: "Account") -> None:
    from confide.cli.show import above, table
    from confide.utils.rounding import at_least, at_most, one_in_at_least, one_in_at_most, percent_at_most

    print(found.answer)
    for warning in found.warnings:
        print(f"  warning: {warning}")
    print("\nassumed:")
    for what, words in found.assumptions:
        print(f"  {what}: {words.rstrip('.')}")
    if not found.curve:
        return
    print()
    table(["delta", "epsilon"], [[at_most(delta, 3), above(epsilon)] for epsilon, delta in found.curve])
    print()
    rates = [[at_least(fpr, 3), percent_at_most(tpr)] for fpr, tpr in found.true_positive_rates]
    table(["false positives of the best test", "true positives at most"], rates)
    guesses = [[one_in_at_least(prior), one_in_at_most(found)] for prior, found in found.reconstruction]
    print()
    table(["a blind guess at a unit's text", "with the model at most"], guesses)
    print(f"\nadvantage of the best test over a coin: at most {above(found.advantage)}")
