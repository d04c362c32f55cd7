"""Show plans and suggestions, as a person reads them."""

from typing import Any

from confide.cli.show import above, below, number, table
from confide.privacy.guarantee import Guarantee
from confide.privacy.strength import LARGE_DELTA
from confide.utils.rounding import at_least, at_most

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


_SHOWN = {
    "epsilon": above,
    "noise_multiplier": below,
}


def _cell(key: str, value: Any) -> str:
    return _SHOWN.get(key, number)(value)


def plan(found: dict[str, Any]) -> None:
    """Show a plan."""
    chosen = found["chosen"]
    if chosen["epsilon"] is None:
        print("mechanism none: no privacy is claimed")
    elif found["guarantee"]["notion"] == "none":
        print("\n".join(found["warnings"]), end="\n\n")
    else:
        adjacency = found["guarantee"]["adjacency"]
        print(f"epsilon {above(chosen['epsilon'])} at delta {at_most(chosen['delta'], 3)}, {adjacency}")
        print(f"  one unit is {found['guarantee']['unit'].rstrip('.')}")
        if "histograms" in found:
            print(f"  released with the model: {found['histograms']}")
        for what, epsilon in found["guarantee"]["epsilons"]:
            print(f"  {above(epsilon)} {what}")
        for reason in found["guarantee"]["estimates"]:
            print(f"  an estimate: {reason}")
        for warning in found["warnings"]:
            print(f"  warning: {warning}")
        is_told = any(warning.startswith(LARGE_DELTA) for warning in found["warnings"])
        for sentence in Guarantee.from_json(found["guarantee"]).weakness():
            if not (is_told and sentence.startswith(LARGE_DELTA)):
                print(f"  {sentence}")
        if found.get("verdict"):
            first, *rest = found["verdict"]["words"]
            first = f"verdict: {found['verdict']['grade']}. {first[:1].upper()}{first[1:]}"
            print("\n  ".join([f"\n{first}", *rest]))
        print()
    phases = found.get("stages", [])
    if len(phases) > 1:
        rows = [[phase["name"], number(phase["steps"]), below(phase["noise_multiplier"])] for phase in phases]
        table(["steps of the run", "how many", "noise multiplier"], rows)
        print("\nthe noised ones beside their neighbours; compute counts all:")
    if "larger_priors" in found:
        _secret_plan(found)
    else:
        rows = [[_cell(key, chosen[key]) for key in _COLUMNS.values()]]
        rows += [
            [_cell(key, r[key]) for key in _COLUMNS.values()]
            for r in found["neighbours"]
            if "impossible" not in r
        ]
        table(list(_COLUMNS), rows)
    for row in found["neighbours"]:
        if "impossible" in row:
            print(f"{row['change']}: not possible: {row['impossible']}")
    for row in found.get("what_if", []):
        print(
            f"were there {number(row['units'])} units, {number(row['times_users'])} times as many: noise multiplier "
            f"{below(row['noise_multiplier'])}, noise per gradient {number(row['noise_per_gradient'])}, at delta "
            f"{at_most(row['delta'], 3)} ({row['note']})"
        )
    print(f"\nnoise per gradient: {found['measure']}")
    if "nearness" in found:
        _nearness(found["nearness"])
    if "split" in found:
        _split(found["split"])
    print(
        f"tokens {number(chosen['tokens'])}, about {chosen['operations']:.2g} floating-point operations (estimate)"
    )
    parts = {name: f"{size / 2**30:.2f}" for name, size in found["memory"].items()}
    print(
        f"needs about {found['memory_bytes'] / 2**30:.2f} GiB of memory at the peak of a step (estimate), of which "
        f"weights {parts['weights']}, sums and states of what trains {parts['trained']}, activations "
        f"{parts['activations']}, logits {parts['logits']}"
        + (f", gaps {parts['gaps']}" if found["memory"]["gaps"] else "")
    )
    if "devices" in found:
        _devices(found["devices"])
    if "gradients_bytes" in found:
        size = found["gradients_bytes"] / 2**30
        print(
            f"and {size:.2f} GiB for a gradient of every unit, in memory or else in a file of the run folder"
        )
    if found.get("verdict"):
        print(f"\nthe verdict was {found['verdict']['basis']}")


def _devices(found: dict[str, Any]) -> None:
    """Show a run on devices that are not here."""
    (needed, there), (mean, least) = found["memory"], found["utilisation"]
    step, hours = found["seconds_per_step"], found["hours"]
    whole = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    print(
        f"\non {found['devices']} (estimate, at a fifth of the peak in bf16): {step:.2g} s a step, {whole} in all; "
        f"{found['micro_tokens']:,} tokens a micro-batch, {needed / 2**30:.1f} of {there / 2**30:.0f} GiB on each"
    )
    if not found["fits"]:
        print("  this does not fit: try adapter.kind: lora, base.quantise, or train.distributed=fsdp")
    if found["way"] != "one":
        print(
            f"  they are busy {mean:.0%} of the time with the drawn rows, {least:.0%} in the worst of a few steps"
        )


def _nearness(found: dict[str, Any]) -> None:
    """Show the tau that would be needed, by measured gradients."""
    quantiles = ", ".join(map(number, found["quantiles"]))
    print(
        f"\nof {found['users']} units, {found['k']} rows each, at the base model: gradients of median norm "
        f"{number(found['median_norm'])}, in units of which 10%, 50% and 90% of pairs are at most {quantiles} apart\n"
        f"privacy.tau {number(found['tau'])} is the least with which a step would pass but for noise: "
        f"{number(found['ratio'])} median norms (tau / clip norm, to be held against the `noise x` of uls); no "
        "guarantee covers a tau that is chosen from this\n"
    )


def _split(found: dict[str, Any]) -> None:
    """Show rows and users per step, by measured gradients."""
    print(
        "\nEstimate-and-Double (Charles et al. 2024, Algorithm 3), "
        f"by gradients of {found['users']} units at the base model:"
    )
    factors = [
        [
            number(p["n"]),
            number(p["k"]),
            *("-" if p[by] is None else f"x {p[by]:.3f}" for by in ("by_k", "by_n")),
        ]
        for p in found["path"]
    ]
    table(["units a step", "rows of each", "noise with twice the rows", "with twice the units"], factors)
    last, own, ours = found["path"][-1], found["noise"], found["noise_of_config"]
    where = f"train.batch={number(last['n'])} and privacy.rows_per_unit={last['k']}"
    print(
        f"so {where}: noise {own:.3g} on a gradient, clipped at its median norm; this config's {ours:.3g}. No "
        "guarantee covers what is chosen from this"
    )
    if own > ours:
        print(
            "one doubling at a time did not find the least: this config has less noise than where its path ends"
        )
    print()


def suggestions(found: dict[str, Any]) -> None:
    """Show settings of one target and budget, the most promising first, and what to write into the config."""
    import yaml

    columns = "mechanism sampling rows_per_unit batch steps learning_rate noise_multiplier noise_per_gradient".split()
    if found["learning_rate"] is None:
        columns.remove("learning_rate")
    for key, none in (("buffers", 0), ("bands", 1)):
        if any(row[key] > none for row in found["ranked"]):
            columns.insert(columns.index("sampling") + 1, key)
    rows = [
        [
            str(row["place"]),
            *(_cell(key, row[key]) for key in (*columns, "rows_seen")),
            f"{row['operations']:.2g}",
        ]
        for row in found["ranked"]
    ]
    header = ["", *(column.replace("_", " ") for column in columns), "rows seen", "operations"]
    table(header, rows)
    print()
    for row in found["ranked"]:
        print(f"{row['place']}. {row['reason']}")
    fewest, most = found["nearly"]
    if fewest < most:
        print(
            f"\nby this rule some settings of {fewest} to {most} steps come within a tenth of the first, or beyond it"
        )
    print(
        f"\n{found['considered']:,} settings that compute {found['budget_rows']:,.0f} rows, "
        f"{found['impossible']:,} of them not possible; {found['basis']}"
    )
    if correlated := found["correlated"]:
        key = "buffers" if correlated["buffers"] else "bands"
        settings = f"privacy.{key}={correlated[key]} and privacy.sampling={correlated['sampling']}"
        print(
            f"not in the ranking: with {settings} the weights of the first one would hold "
            f"{number(correlated['noise_in_weights'])} times as much noise. It asks for a learning rate about "
            f"{number(correlated['rate_factor'])} times as high (docs/noisy-training.md)"
        )
    if found["warning"]:
        print(f"\nwarning: {found['warning']}")
    public = "Try others with `confide tune`, which counts its trials, or on public text"
    if told := found["learning_rate"]:
        print(
            f"learning rate by the rule: {told['by_rule']:g} for {told['steps']} steps, {told['schedule']} (yours: "
            f"{told['of_config']:g}). In a study of 24 to 96 steps a linear fall did no better"
        )
        if told["untried"]:
            print(f"nobody has tried this rate with {' and '.join(told['untried'])}. {public}")
    else:
        print(
            "the rule knows no learning rate for what trains here, so yours is kept. The order assumes that each "
            f"setting has a rate that suits it. {public}"
        )
    first = found["ranked"][0]["settings"]
    if "privacy.scales" in first:
        print(
            "the first one has privacy.scales, of which the ranking knows nothing. In a study of two small models they "
            "had 3% to 20% less perplexity, the least where noise was largest"
        )
    if "privacy.common_tokens" in first:
        print(
            "it has privacy.common_tokens as well, which the ranking does not know, either. In a study of the bundled "
            "model on made-up mails these scales had 18% less perplexity with it than without"
        )
    nested: dict[str, dict[str, Any]] = {}
    for key, value in found["ranked"][0]["settings"].items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    print("\nthe first one, for the config:\n")
    print(yaml.safe_dump(nested, sort_keys=False), end="")


def _secret_plan(found: dict[str, Any]) -> None:
    """Show the sweep over c of a program that protects secrets, and what larger priors would cost."""
    rows = [
        [
            row["change"],
            number(row["rows_kept"]),
            f"{row['share_kept']:.1%}",
            number(row["effective_rows"]),
            number(row["effective_rows_per_step"]),
            number(row["epochs"]),
            *(below(row["noise"][name]) for name in ("blow-up", "kl")),
            number(row["noise_per_gradient"]),
        ]
        for row in found["neighbours"]
        if "impossible" not in row
    ]
    header = ["program", "rows kept", "share", "effective rows", "effective a step", "epochs"]
    table([*header, "noise by blow-up", "by kl", "noise per gradient"], rows)
    print(f"\nthis config: noise multiplier {below(found['chosen']['noise_multiplier'])}")
    print("  the same posteriors, or ten times the prior where that is more, for larger priors as well:")
    for row in found["larger_priors"]:
        print(f"  {below(row['noise_multiplier'])} with priors up to {at_least(row['prior'], 3)}")
    reached = found["guarantee"]["reconstruction"]
    print("a guess that succeeds by itself with chance p succeeds with the model with at most r:")
    print("  " + "; ".join(f"p = {at_least(p, 3)}: r = {at_most(r, 3)}" for p, r in reached))
