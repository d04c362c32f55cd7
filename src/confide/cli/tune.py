"""Define `confide tune`: a sweep over settings, whose cost is counted or declared as not covered."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confide.cli.base import ConfigPath, Json, Overrides, app, print_json, run_of, verb
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.privacy.accounting import Trials
    from confide.reporting.facts import Facts
    from confide.runs.folder import Run
    from confide.tuning.search import Search
    from confide.tuning.sweep import Executor, Swept

_SPACE = (
    "what to try, once for each key: KEY=VALUE,VALUE... or KEY=LOW..HIGH, at the end :log for even logarithms"
)


@app.command()
@verb
def tune(
    config: ConfigPath,
    overrides: Overrides = None,
    space: Annotated[list[str] | None, typer.Option(metavar="KEY=...", help=_SPACE)] = None,
    trials: Annotated[
        float, typer.Option(help="how many runs; in a counted sweep their number is random, with this mean")
    ] = 8,
    shape: Annotated[
        float | None,
        typer.Option(
            help="counted sweep: how the number of runs is drawn: 1 geometric (default), 0 logarithmic"
        ),
    ] = None,
    optuna: Annotated[
        bool,
        typer.Option(
            "--optuna/--counted",
            help="let Optuna choose each trial by the results so far, which the guarantee does not cover",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="run trials side by side on a Ray cluster: `local`, `auto` or an address"
        ),
    ] = None,
    at_once: Annotated[
        int, typer.Option(help="with --optuna --ray: trials that are proposed together", min=1)
    ] = 1,
    plan: Annotated[
        bool, typer.Option("--plan", help="print what counted sweeps cost, and run nothing")
    ] = False,
    as_json: Json = False,
) -> None:
    """Try settings and release the best, with what that costs.

    Example: confide tune mail.yaml --space train.learning_rate=0.0005..0.01:log --trials 8
    """
    run = run_of(config, overrides)
    asked = _Asked(trials, shape, optuna, ray, at_once)
    if plan:
        _plan(run, space or [], asked, as_json)
    else:
        _sweep(run, space or [], asked, as_json)


@dataclass(frozen=True)
class _Asked:
    """The options that define the search."""

    trials: float
    shape: float | None
    optuna: bool
    ray: str | None
    at_once: int

    def counted(self) -> "Trials":
        from confide.privacy.accounting import Trials

        if self.optuna:
            raise InputError("--plan tells what counted sweeps cost: it is not for --optuna")
        return Trials(self.trials, 1.0 if self.shape is None else self.shape)

    def search(self) -> "Search":
        from confide.tuning.search import Adaptive, Independent

        if self.at_once > 1 and not (self.optuna and self.ray):
            raise InputError(
                "--at-once is for --optuna with --ray: else trials need not be proposed together"
            )
        if not self.optuna:
            return Independent(self.counted())
        if self.shape is not None:
            raise InputError(
                "--shape is for a counted sweep: with --optuna the number of trials is not random"
            )
        if self.trials < 2 or self.trials != int(self.trials):
            raise InputError(f"--trials {self.trials:g}: with --optuna a whole number of runs, two or more")
        return Adaptive(int(self.trials), self.at_once)

    def executor(self) -> "Executor":
        if self.ray is None:
            return map
        from confide.tuning.ray_executor import on_ray

        return on_ray(self.ray)


def _sweep(run: "Run", space: list[str], asked: _Asked, as_json: bool) -> None:
    from confide.reporting.facts import Facts
    from confide.reporting.written import write_report
    from confide.tuning.space import Space
    from confide.tuning.sweep import sweep
    from confide.utils.console import Console

    found = sweep(run, Space.of(space), asked.search(), Console(), asked.executor())
    facts = Facts.of(run.root, with_measured=True)
    page = write_report(facts.without_measured(), run.root)
    if as_json:
        print_json(_json(found, run) | {"report": str(page)})
    else:
        _show(found, run, facts, page)


def _json(found: "Swept", run: "Run") -> dict[str, Any]:
    tried = [{"trial": t.number, "settings": t.candidate, "evaluation": t.evaluation} for t in found.trials]
    return {
        "private": {"trials": tried, "best": found.best.number},
        "settings": found.best.candidate,
        "base": found.outcome.base,
        "final": found.outcome.final,
        "guarantee": found.outcome.guarantee.to_json(),
        "release": str(run.release),
    }


def _show(found: "Swept", run: "Run", facts: "Facts", page: Path) -> None:
    from confide.cli import show

    keys = list(found.best.candidate)
    second = "perplexity" if "perplexity" in found.best.evaluation else "accuracy"
    rows = [
        [
            f"{tried.number}{' (best)' if tried is found.best else ''}",
            *(show.number(tried.candidate[key]) for key in keys),
            *(show.number(tried.evaluation[name]) for name in ("loss", second)),
        ]
        for tried in sorted(found.trials, key=lambda tried: tried.loss)
    ]
    show.table(["trial", *keys, "held-out loss", second], rows)
    print("\nThis table is private, the number of its rows too: the guarantee is about the release alone.\n")
    show.outcome(found.outcome, run, facts, page)


def _plan(run: "Run", space: list[str], asked: _Asked, as_json: bool) -> None:
    from confide.cli import show
    from confide.models import loading as models
    from confide.runs.preparation import prepared_data
    from confide.tuning.space import Space
    from confide.tuning.sweep import check_held_out, check_space, prices
    from confide.utils.console import Console
    from confide.utils.rounding import at_least, at_most

    console, trials, tried = Console(), asked.counted(), Space.of(space) if space else None
    with run.locked():
        prepared = prepared_data(run, models.load_tokenizer(run.config), console)
    shape = prepared.train.shape()
    if tried is not None:  # no price depends on it, but whoever asks wants to know if it is possible
        check_held_out(run.config, prepared)
        check_space(tried, asked.search(), run.config, shape)
    found = prices(run.config, shape, trials)
    if as_json:
        print_json(found)
        return
    target = f"epsilon {at_most(found['epsilon'])} at delta {at_most(found['delta'], 3)}"
    print(f"a single run: {target}, noise multiplier {at_least(found['noise_multiplier'], 5)}\n")
    header = [
        "trials on average",
        "19 of 20 at most",
        "epsilon at that noise",
        "noise for that epsilon",
        "noise x",
    ]
    rows = [
        [
            at_most(row["trials"], 6),
            show.number(row["most"]),
            at_most(row["epsilon_at_same_noise"]),
            at_least(row["noise_multiplier"], 5),
            show.number(row["relative_noise"]),
        ]
        for row in found["sweeps"]
    ]
    show.table(header, rows)
