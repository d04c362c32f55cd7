"""Run the main job, from text to a private model and its non-private twin, on bundled data and a bundled model."""

import json
import lzma
from importlib.resources import files
from pathlib import Path

from confide.auditing.of_run import audit_run
from confide.auditing.options import Options
from confide.auditing.result import Audit
from confide.cli import show, show_plans
from confide.config.loading import check
from confide.config.schema import Config
from confide.models.loading import load_model, load_tokenizer
from confide.planning.cost import Size
from confide.planning.plan import plan as planned_for
from confide.planning.progress import BETAS, COMMON_TOKENS, SCALED, STEADY
from confide.planning.verdict import verdict
from confide.reporting.facts import Facts
from confide.reporting.verdict import VERDICTS
from confide.reporting.written import write_report
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.runs.preparation import prepared_data
from confide.training.metrics import gap_closed
from confide.utils.console import Console
from confide.utils.files import whole_file, write_text
from confide.utils.rounding import at_most

MAILS = files("confide").joinpath("bundled", "helpdesk.jsonl.xz")
"""Mails of 2,000 invented customers, which `scripts/make_helpdesk.py` of the repository makes."""


CANARIES = 100
"""Made-up units among the customers, so that the audit has something to guess."""


def config(folder: Path) -> Config:
    """Return the config that quickstart trains. It is also written to the folder, to be changed and used again."""
    return check(
        {
            "model": "bundled",
            "adapter": {"kind": "matrices"},
            "data": {
                "train": str(folder / "helpdesk.jsonl"),
                "text": "text",
                "unit": "customer",
                "eval": 0.03,
                "max_length": 32,
            },
            "privacy": {
                "mechanism": "uls",
                "epsilon": 8.0,
                "rows_per_unit": 1,
                "selection": "random-chunk",
                "sampling": "bins",
                "bands": 10,  # steps of an epoch
                "scales": dict(SCALED),
                "common_tokens": COMMON_TOKENS,
            },
            "train": {
                "steps": 20,  # two epochs
                "batch": 200.0,
                "learning_rate": 1.3e-2,
                "twin_learning_rate": STEADY,
                "betas": BETAS,
                "checkpoint_every": 10,
            },
            # The audit tokenises every number that a canary might have had: of six digits that took a minute.
            "canaries": {"count": CANARIES, "family": "digits", "digits": 5},
            "run": str(folder / "run"),
        },
        "quickstart",
    )


def run(folder: Path, as_json: bool = False) -> None:
    """Prepare, plan, train with user-level privacy and without, compare, attack the claim, write the page."""
    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(folder)
    mails = folder / "helpdesk.jsonl"
    if not mails.exists():
        console.say(f"writing a helpdesk corpus of 2,000 made-up customers to {mails}")
        with MAILS.open("rb") as packed, whole_file(mails) as building:
            building.write_bytes(lzma.decompress(packed.read()))
    write_text(folder / "config.yaml", settings.to_yaml())

    job = Run(settings)
    prepared = prepared_data(job, load_tokenizer(settings), console)
    if not as_json:
        show.preparation(prepared.facts)
        print()
        shape, size = prepared.train.shape(), Size.of(load_model(settings))
        planned = planned_for(settings, shape, size)
        show_plans.plan(planned.to_json() | {"verdict": verdict(settings, shape, size, planned.chosen)})
        print()
    console.say("training with user-level privacy")
    private = _finished(fine_tune(job, console))
    console.say("training the non-private twin on the same draws, at a learning rate that suits it")
    twin = _finished(fine_tune(Run(settings, twin=True), console))
    console.say("attacking the claim")
    audit = audit_run(job, console, Options(("claim",)))
    facts = Facts.of(job.root, with_measured=True)
    write_report(facts.without_measured(), job.root)
    page = write_report(facts, job.root)
    _compare(job, facts, private, twin, audit, page, as_json)


def _finished(outcome: Outcome) -> Outcome:
    """Return the outcome, or stop here if the training was stopped: nothing more is begun then."""
    if not outcome.finished:
        raise KeyboardInterrupt
    return outcome


def _compare(
    job: Run, known: Facts, private: Outcome, twin: Outcome, audit: Audit, page: Path, as_json: bool
) -> None:
    assert private.base
    assert private.final
    assert twin.final
    share = gap_closed(private.base["loss"], private.final["loss"], twin.final["loss"])
    if as_json:
        facts = show.outcome_facts(private) | {"twin": twin.final, "gap_closed": share}
        facts |= {"audit": audit.to_json(), "report": str(page)}
        print(json.dumps(facts, indent=2))
        return
    rows = [
        ("base model", private.base, "-"),
        ("private", private.final, at_most(private.guarantee.epsilon, 3)),
    ]
    rows.append(("not private, at its own rate", twin.final, "infinite"))
    show.table(
        ["held-out customers", "epsilon", "loss", "perplexity"],
        [
            [name, epsilon, show.number(side["loss"]), show.number(side["perplexity"])]
            for name, side, epsilon in rows
        ],
    )
    kept = (
        "Training without privacy did worse"
        if share > 1
        else f"The private model keeps {share:.0%} of the gain in loss of training without privacy"
    )
    print(f"\n{kept}.\n")
    show.claim(job, known, page)
    print(f"\nattacked with {CANARIES} made-up customers: {audit.verdict}. {VERDICTS[audit.verdict]}")
    print(f'try what they say: confide generate {job.root} "Hello, my invoice" --beside base,twin')
    print("next: `confide init YOUR-DATA --out mine.yaml` looks at your own text and writes a config for it")
