"""Secret protection on arXiv abstracts (Ganesh et al. 2025 section 5.1, Figure 1), at the size of a small corpus.

As in the paper, words of middling document frequency are the secrets, prior 1e-10, posterior uniform in
[2e-4, 1e-3]; rows are weighed by the linear program at several c; noise follows by the paper's KL accountant and
by the blow-up function. The paper divides its noise by ten to stand for a larger data set; this does not. Words
that stand in private text are chosen from that text here, as in the paper: a study, not a way to release.
"""

import csv
import json
import lzma
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from confide.config.loading import check
from confide.config.schema import Config
from confide.models.loading import load_tokenizer
from confide.privacy import mechanisms
from confide.privacy.accounting import Accountant
from confide.privacy.mechanisms.secret import Choice, SecretProtection
from confide.runs.folder import Run
from confide.runs.job import prepared_data
from confide.runs.loop import fine_tune
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.files import write_text
from confide.utils.rounding import at_least
from studies import main

SOURCE = "arxiv-abstracts-small/abstracts.jsonl.xz"
RANKS = (
    2000,
    6000,
)  # of words by document frequency; 50,000 to 150,000 in the paper, of 1.7 million abstracts
PRIOR, POSTERIORS = 1e-10, (2e-4, 1e-3)
TRAINED = (1.0, 0.25, 0.0625)  # the c that are trained on
ACCOUNTANTS: tuple[Accountant, ...] = ("blow-up", "kl")

_WORD = re.compile(r"[^\W\d_]{3,}")


def write_words(source: Path, path: Path) -> int:
    """The secrets, as a CSV of words with their priors and posteriors; their number."""
    frequency: Counter[str] = Counter()
    with lzma.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            frequency.update({word.lower() for word in _WORD.findall(json.loads(line)["text"])})
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[slice(*RANKS)]
    allowed = np.random.default_rng(0).uniform(*POSTERIORS, len(ranked))
    with open(path, "w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["word", "prior", "posterior"])
        table.writerows([word, PRIOR, at_least(r, 6)] for word, r in zip(ranked, allowed, strict=True))
    return len(ranked)


def config(data: Path, folder: Path, c: float, accountant: str) -> Config:
    """The config of one run of the study."""
    source = data / SOURCE
    if not source.exists():
        raise InputError(f"{source}: no such file; give the folder that holds arxiv-abstracts-small")
    words = folder / "words.csv"
    if not words.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_words(source, words)
    return check(
        {
            "model": "bundled",
            "adapter": {"kind": "full"},
            "data": {
                "train": str(source),
                "text": "text",
                "eval": 0.1,
                "max_length": 128,
                "duplicates": False,
            },
            "secrets": {"words": str(words), "recall": 1.0, "program": {"c": c}},
            "privacy": {
                "mechanism": "secret",
                "accountant": accountant,
                "published_key": f"study secret-protection {c:g} {accountant}",
            },
            "train": {
                "steps": 40,
                "batch": 128.0,
                "learning_rate": 2e-3,
                "schedule": "linear",
                "precision": "bf16",
            },
            "run": str(folder / f"c-{c:g}-{accountant}"),
        },
        "study secret-protection",
    )


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Sweep c, train at some of them with either noise and with none, and compare on held-out abstracts."""
    console = Console()
    sweep, secrets, rows = _sweep(data, folder, console)
    losses: dict[str, list[tuple[float, float]]] = {}
    base = None
    for c in TRAINED:
        for accountant in ACCOUNTANTS:
            settings = config(data, folder, c, accountant)
            console.say(f"c = {c:g}, noise by {accountant}")
            private = fine_tune(Run(settings), console)
            if not private.finished:
                raise KeyboardInterrupt
            base = base or private.base
            assert private.final
            losses.setdefault(accountant, []).append((c, private.final["loss"]))
        console.say(f"c = {c:g}, no noise")
        twin = fine_tune(Run(config(data, folder, c, ACCOUNTANTS[0]), twin=True), console)
        if not twin.finished:
            raise KeyboardInterrupt
        assert twin.final
        losses.setdefault("no noise", []).append((c, twin.final["loss"]))
    assert base
    write_text(folder / "figure1.svg", _figure(sweep, rows, losses))
    return {
        "secrets": secrets,
        "rows": rows,
        "base": base,
        "sweep": [_facts(choice, rows) for choice in sweep],
        "losses": losses,
        "markdown": _tables(sweep, rows, secrets, base["loss"], losses),
    }


def _sweep(data: Path, folder: Path, console: Console) -> tuple[list[Choice], int, int]:
    settings = config(data, folder, 1.0, ACCOUNTANTS[0])
    mechanism = mechanisms.build(settings)
    assert isinstance(mechanism, SecretProtection)
    job = Run(settings)
    with job.locked():
        shape = prepared_data(job, load_tokenizer(settings), console).train.shape()
    console.say(f"{shape.units:,} secrets in {shape.rows:,} rows: sweeping c")
    return list(mechanism.sweep(shape)), shape.units, shape.rows


def _facts(choice: Choice, rows: int) -> dict[str, Any]:
    assert choice.spread is not None
    return {
        "c": choice.c,
        "share_kept": choice.spread.kept / rows,
        "effective_rows": choice.spread.effective,
        "noise": choice.noise,
        "impossible": choice.impossible,
    }


def _possible(sweep: list[Choice]) -> list[Choice]:
    return sorted((choice for choice in sweep if choice.impossible is None), key=lambda choice: choice.c)


def _figure(sweep: list[Choice], rows: int, losses: dict[str, list[tuple[float, float]]]) -> str:
    possible = _possible(sweep)
    x, loss = "c, relative to the value that drops no row", "held-out loss"
    kept = [(choice.c, choice.spread.kept / rows) for choice in possible if choice.spread is not None]
    noise: dict[str, Points] = {
        name: [(choice.c, choice.noise[name]) for choice in possible] for name in ACCOUNTANTS
    }
    noised: dict[str, Points] = {name: sorted(losses[name]) for name in ACCOUNTANTS}
    return panels_svg(
        "Secret protection on arXiv abstracts, as the linear program is tightened",
        [
            Panel("(a) rows with any weight", x, "share of rows", {"kept": kept}, log_x=True),
            Panel("(b) loss without noise", x, loss, {"no noise": sorted(losses["no noise"])}, log_x=True),
            Panel("(c) noise multiplier", x, "noise multiplier", noise, log_x=True, log_y=True),
            Panel("(d) loss with the noise", x, loss, noised, log_x=True),
        ],
    )


def _tables(
    sweep: list[Choice], rows: int, secrets: int, base: float, losses: dict[str, list[tuple[float, float]]]
) -> str:
    lines = [
        f"{secrets:,} secrets, {rows:,} rows; loss of the base model {base:.3f}.",
        "",
        "| c | rows kept | effective rows | noise multiplier by blow-up | by kl | ratio | loss without noise | "
        "loss, blow-up | loss, kl |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = {name: dict(points) for name, points in losses.items()}
    for choice in sweep:
        assert choice.spread is not None
        cells = [f"{choice.c:g}", f"{choice.spread.kept / rows:.1%}", f"{choice.spread.effective:,.0f}"]
        if choice.impossible is not None:
            lines.append("| " + " | ".join([*cells, "the batch is too large", *[""] * 5]) + " |")
            continue
        ours, theirs = (choice.noise[name] for name in ACCOUNTANTS)
        cells += [at_least(ours, 5), at_least(theirs, 5), f"{theirs / ours:.1f}"]
        for name in ("no noise", *ACCOUNTANTS):
            loss = found[name].get(choice.c)
            cells.append("" if loss is None else f"{loss:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
