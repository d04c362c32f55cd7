"""Show results as a person reads them, on standard output."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.utils.rounding import at_least, at_most, percent_at_least, percent_at_most

if TYPE_CHECKING:
    from confide.reporting.facts import Facts
    from confide.runs.folder import Run
    from confide.runs.loop import Outcome


def table(header: list[str], rows: list[list[str]]) -> None:
    """Align columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def number(value: Any) -> str:
    """Format a value as a number."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return (
            f"{value:.1e}"
            if abs(value) >= 1e15
            else f"{value:,.0f}"
            if abs(value) >= 1000
            else f"{value:.4g}"
        )
    return str(value)


def above(value: Any, digits: int = 4) -> str:
    """Format an upper bound on an attacker, if it is known; see `rounding`."""
    return "-" if value is None else at_most(value, digits)


def below(value: Any, digits: int = 5) -> str:
    """Format a protective value with the digits that noise is calibrated to, so that it is printed as it is."""
    return "-" if value is None else at_least(value, digits)


def preparation(facts: dict[str, Any]) -> None:
    """Show the counts and statistics of a preparation."""
    for name, count in facts["counts"].items():
        print(f"{number(count):>12}  {name}")
    print()
    header = ["", "units", "rows", "tokens", "rows a unit: min", "median", "mean", "max"]
    rows = []
    for name, side in (("train", facts), ("public", facts.get("public")), ("held out", facts.get("eval"))):
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
    if "canaries" in facts:
        print(
            f"\nthe units to train on count {number(facts['canaries']['count'])} canaries, made up for an audit"
        )
    if "redaction" in facts:
        _redacted(facts["redaction"])
    if "duplicates" in facts:
        print("\nA unit's own words may survive in another's documents:")
        for sentence in facts["duplicates"]["sentences"]:
            print(f"  {sentence}")


_MASKED = {
    "rows_with_finding": "rows in which something was found",
    "rows_cut_off": "rows whose own text is longer than a row may be: the end of it is left out",
    "tokens_cut_off": "tokens left out so",
    "duplicates_dropped": "documents dropped as duplicates of others",
}


def _redacted(found: dict[str, Any]) -> None:
    """Show what was masked before rows were cut, in all and by each kind of finding."""
    kinds = sorted(found["kinds"].items(), key=lambda entry: -entry[1]["tokens"])
    rows = [
        [name, *(number(kind[key]) for key in ("spans", "tokens")), f"{kind['share']:.2%}"]
        for name, kind in kinds
    ]
    spans = sum(kind["spans"] for _, kind in kinds)
    print()
    table(
        ["masked", "spans", "tokens", "of all tokens"],
        [*rows, ["all", number(spans), number(found["tokens_masked"]), f"{found['share']:.2%}"]],
    )
    print()
    for name, what in _MASKED.items():
        if found[name] or name != "duplicates_dropped":
            print(f"{number(found[name]):>12}  {what}")


def secrets(facts: dict[str, Any], examples: Iterable[tuple[str, str]]) -> None:
    """Show how many secrets of each class were found, and masked examples."""
    rows = [
        [name, *(number(found[key]) for key in ("secrets", "mentions", "most"))]
        for name, found in sorted(facts["classes"].items())
    ]
    table(["class", "secrets", "pairs of secret and row", "most rows of one"], rows)
    print(f"\n{number(facts['rows_with'])} rows hold a secret, {number(facts['rows_without'])} hold none\n")
    for name, count in facts["counts"].items():
        print(f"{number(count):>12}  {name}")
    for name, context in examples:
        print(f"{name}: {context}")


def solution(found: dict[str, Any]) -> None:
    """Show the solution of a linear program."""
    for name in ("secrets", "rows", "incidences", "rows_kept", "weights", "effective_rows"):
        print(f"{number(found[name]):>12}  {name.replace('_', ' ')}")
    print(f"{above(found['largest_probability']):>12}  largest probability of a row in a step")
    print(f"{number(found['epochs']):>12}  uses of a row of weight 1 over all steps")
    for name, noise in found["noise_multiplier"].items():
        print(f"{below(noise):>12}  noise multiplier by {name}")


_EXAMPLES = 12  # examples of masked text: one for each of the kinds that mask most


def redaction(facts: dict[str, Any], examples: dict[str, str]) -> None:
    """Show how much each kind of finding masks, with an example of each, and the comparison with annotations."""
    found = sorted(facts["kinds"].items(), key=lambda entry: -entry[1]["tokens"])
    rows = [
        [name, *(number(kind[key]) for key in ("spans", "documents")), *_shares(kind)]
        for name, kind in found
        if kind["spans"]
    ]
    masked = facts["masked"]
    if not facts["spans"]:
        print(f"nothing was found in {number(facts['documents'])} documents: look at `detector`\n")
    whole = ["all", number(facts["spans"]), number(masked["documents"]), *_shares(masked)]
    table(["kind", "findings", "documents", "of tokens", "of characters"], [*rows, whole])
    print(f"\n{number(facts['documents'])} documents, {number(facts['tokens'])} tokens")
    absent = [name for name, kind in found if not kind["spans"]]
    if absent:
        print(f"found nowhere: {', '.join(absent)}")
    if examples:
        print()
    for name in [name for name, _ in found if name in examples][:_EXAMPLES]:
        print(f"{name}: {examples[name]}")
    if "against" in facts:
        _annotated(facts["against"])
    print()


def _shares(tally: dict[str, Any]) -> list[str]:
    from confide.sensitive.redaction.page import percent

    return [percent(tally["share_of_tokens"]), percent(tally["share_of_characters"])]


def _annotated(found: dict[str, Any]) -> None:
    """Show recall of annotated spans, by kind, and precision."""
    from confide.sensitive.redaction.page import percent

    keys = ("recall_of_spans", "recall_of_whole_spans", "recall_of_characters")
    rows = [
        [name, number(kind["spans"]), *(percent(kind[key]) for key in keys)]
        for name, kind in [*found["kinds"].items(), ("all", found)]
    ]
    print(f"\nagainst the spans of the field {found['field']!r}:")
    table(["annotated as", "spans", "found in part", "found whole", "of characters"], rows)
    print(
        f"precision: {percent(found['precision_of_characters'])} of the characters found, and "
        f"{percent(found['precision_of_places'])} of the places found overlap an annotation; what is sensitive "
        "and was not annotated counts against it"
    )


def marks(facts: dict[str, Any]) -> None:
    """Show the result of a screened sample, and what to write into the config."""
    import yaml

    rows = [
        [
            str(place),
            *(number(draw[key]) for key in ("documents", "words", "masked", "missed")),
            f"{draw['missed'] / draw['words']:.3%}",
        ]
        for place, draw in enumerate(facts["draws"], 1)
    ]
    table(["draw", "documents", "words", "masked", "missed", "missing rate"], rows)
    low, high = facts["interval"]
    print(
        f"\n{number(facts['documents'])} of {number(facts['of'])} documents screened, "
        f"{number(facts['missed_strings'])} texts missed"
    )
    print(
        f"missing rate {percent_at_most(facts['missing_rate'], 3)} of words, 95% interval "
        f"{percent_at_least(low, 3)} to {percent_at_most(high, 3)}"
    )
    print(f"  by {facts['interval_by']}")
    if facts["recall"] is None:
        print("recall: nothing was masked and nothing missed in this sample, so it tells nothing of it")
    else:
        print(
            f"recall about {percent_at_least(facts['recall'], 2)}: masked words among the masked and "
            f"the missed, which takes "
            "all that is masked to be sensitive"
        )
    print(
        "\nin the config, to train on what was screened, or on all documents with light noise (epsilon: what that"
    )
    print("may spend of privacy.epsilon, as you choose):")
    for settings in facts["config"]:
        line = yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10**6)
        print(f"  redacted: {line.strip()}")


def outcome_facts(outcome: "Outcome") -> dict[str, Any]:
    """Return the facts of a finished run."""
    return {
        "steps": outcome.steps,
        "halted": outcome.halted,
        "base": outcome.base,
        "after": outcome.after,
        "final": outcome.final,
        "guarantee": outcome.guarantee.to_json(),
    }


def outcome(outcome: "Outcome", run: "Run", facts: "Facts", page: Path | None = None) -> None:
    """Show how a run ended, the most important first: the claim, and where the model is."""
    if outcome.halted:
        print(f"ended after step {outcome.steps} of {outcome.of}: {outcome.halted}\n")
    claim(run, facts, page)
    between = [(f"after stage {name}", side) for name, side in outcome.after.items()]
    sides = [("base", outcome.base), *between, ("trained", outcome.final)]
    found = [(name, side) for name, side in sides if side]
    if found:
        keys = [key for key in ("loss", "perplexity", "accuracy", "tokens", "rows") if key in found[-1][1]]
        keys = keys[: keys.index("tokens") + 1] if "tokens" in keys else keys
        print()
        table(["held out", *keys], [[name, *(number(side[k]) for k in keys)] for name, side in found])


def claim(run: "Run", facts: "Facts", page: Path | None) -> None:
    """Show the claim of a finished run in four lines, what weakens it, and where the model is.

    Args:
        facts: of the run, with what was measured.
        page: the page that was made of the run, if one was.
    """
    from confide.reporting.verdict import answers

    guarantee = facts.guarantee
    for answer in answers(facts):
        print(f"| {answer.question:<18} {answer.short}{f': {answer.figures}' if answer.figures else ''}")
    nothing = guarantee.short() if guarantee.notion == "none" else []
    estimates = [f"an estimate: {reason}" for reason in guarantee.estimates]
    about = [] if nothing else [f"the figures are about {guarantee.protected_output.rstrip('.')}"]
    for sentence in [*nothing, *about, *estimates, *guarantee.weakness()]:
        print(f"  {sentence}")
    print(f"\nreleased: {run.release}{' (not private)' if run.twin else ''}")
    print(f"the whole claim: {page or run.release / 'README.md'}")


def evaluation(found: dict[str, Any]) -> None:
    """Show the figures of an evaluation."""
    for name, value in found.items():
        print(f"{name:<11} {number(value)}")


def personalisation(found: dict[str, Any], weights: str = "tokens") -> None:
    """Show the effect of training on half of each held-out user's rows on the other half.

    Args:
        weights: the unit of a user's weight: tokens, or rows if these have classes.
    """
    low, high = found["interval"]
    before, after = found["by_tokens"]
    print(f"\npersonalised for {number(found['users'])} held-out users, {number(found['skipped'])} skipped")
    table(
        ["loss on the other half", "before", "after", "difference"],
        [
            [
                "mean over users",
                *map(number, (found["loss_before"], found["loss_after"], found["difference"])),
            ],
            [f"weighted by {weights}", *map(number, (before, after, after - before))],
        ],
    )
    print(f"95% interval of the mean difference over users: {number(low)} to {number(high)}")
    print(f"{number(found['improved'])} of {number(found['users'])} users improved")
    print(
        f"{number(found['epochs'])} epochs of {found['optimizer']} at learning rate {number(found['learning_rate'])}"
    )
    if found["tried"]:
        losses = ", ".join(f"{number(loss)} at {number(rate)}" for rate, loss in found["tried"])
        print(f"  chosen by the loss of {number(found['users_choosing'])} other users: {losses}")


def checks(found: dict[str, Any]) -> None:
    """Show the checks of `confide verify`."""
    for check in found["checks"]:
        print(f"{'ok  ' if check['ok'] else 'FAIL'}  {check['name']}: {check['detail']}")


def audited(found: dict[str, Any]) -> None:
    """Show the results of the attacks on a run."""
    claim = found["claim"]
    print(f"verdict: {found['verdict']}")
    if found["verdict"] != "nothing claimed":
        print(
            f"claim: epsilon {at_most(claim['epsilon'])} at delta {at_most(claim['delta'], 3)}, {claim['adjacency']}, "
            f"unit: {claim['unit']}"
        )
    for game in found.get("games", []):
        print(f"  {game['words']}")
    if "by_perplexity" in found:
        print("\nlearnt of canaries, in nats, by their perplexity under the base model")
        rows = [
            [f"{own['low']:.4g} to {own['high']:.4g}", *(_learnt(own, *names) for names in _SIDES)]
            for own in found["by_perplexity"]
        ]
        table(["perplexity", "planted", "not planted"], rows)
    if "repeated" in found:
        print(f"  {found['repeated']['words']}")
    if "exposure" in found:
        exposed = found["exposure"]
        how = "" if exposed["ranks"] == "exact" else f", {exposed['ranks']}"
        print(f"\nexposure in bits{how}, of {at_most(exposed['most'], places=2)} at most")
        rows = [
            [
                name,
                number(own["count"]),
                f"{own['mean']:.2f}",
                f"{own['null_mean']:.2f}",
                "" if own["p_value"] is None else at_most(own["p_value"], 2),
            ]
            for name, own in exposed["groups"].items()
        ]
        table(["canaries", "secrets", "mean", "of an untouched model", "p-value"], rows)
    if "membership" in found or "users" in found:
        print()
        rows = [_rates(name, own) for name, own in found.get("membership", {}).get("attacks", {}).items()]
        if "users" in found:
            rows.append(_rates("users", found["users"]["rates"]))
        if "ceiling" in found:
            most = found["ceiling"]
            rows.append(
                [
                    "the guarantee's ceiling",
                    at_most(most["auroc"], places=3),
                    "",
                    at_most(dict(most["true_positive_rate"])[0.01], places=3),
                    "",
                ]
            )
        table(["membership", "AUROC", "95%", "found at 1% false alarms", "95%"], rows)
    if "extraction" in found:
        own = found["extraction"]
        print(f"\nextraction: given {own['prefix']} tokens of a row, the next {own['suffix']} word for word")
        kinds = {
            "greedy": "greedily",
            "discoverable": f"in {own['samples']} samples, with probability {own['probability']:g}",
        }
        rows = []
        for kind, how in kinds.items():
            shares = [own[kind][side] for side in ("tuned", "base", "difference")]
            cells = [f"{share['share']:.1%}" for share in shares]
            rows.append([how, number(own[kind]["rows"]), *cells, _percents(shares[2])])
        table(["", "rows", "this model", "base model", "difference", "95%"], rows)
    for name, why in found.get("left_out", {}).items():
        print(f"\nleft out: {name}: {why}")
    print("\nWhat is printed here was computed from private rows, and no guarantee covers it.")


_SIDES = (("learnt", "planted"), ("by_chance", "others"))


def _learnt(bucket: dict[str, Any], mean: str, count: str) -> str:
    return "" if bucket[mean] is None else f"{bucket[mean]:.2f} ({bucket[count]})"


def _rates(name: str, rates: dict[str, Any]) -> list[str]:
    area, low = rates["auroc"], rates["true_positive_rate"][0]
    return [
        name,
        f"{area['value']:.3f}",
        _interval(area),
        f"{low['value']:.3f}",
        _interval(low),
    ]


def _interval(found: dict[str, Any]) -> str:
    return f"{at_least(found['low'], places=3)} to {at_most(found['high'], places=3)}"


def _percents(found: dict[str, Any]) -> str:
    return f"{percent_at_least(found['low'])} to {percent_at_most(found['high'])}"
