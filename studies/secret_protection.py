"""Secret protection on arXiv abstracts (Ganesh et al. 2025, section 5.1, Figure 1; 002).

As in the paper, words of middling document frequency are the secrets, with a prior of 1e-10 and a posterior drawn from
2e-4 to 1e-3; a small masked model is fine-tuned; rows are weighed by the linear program at several c. Words that stand
in private text are chosen from that text, as in the paper: a study, not a way to release.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.config.schema import Config
from confide.privacy import mechanisms
from confide.privacy.accounting import Accountant, least_noise_for_secrets
from confide.privacy.mechanisms.secret import SecretProtection
from confide.privacy.row_weights import Spread, need
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.files import whole_file
from confide.utils.rounding import at_least
from studies.runner import corpora
from studies.runner.findings import MARGIN, Finding, has_taught, paired, taught
from studies.runner.graphs import config_of, shape_of
from studies.runner.grid import NOTHING, TRIAL, Arm, Grid
from studies.runner.models import pretrained
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.tables import losses
from studies.runner.texts import TEXTS

TEXT, C = "abstracts", "secrets.program.c"
PRIOR, POSTERIORS = 1e-10, (2e-4, 1e-3)
QUIET, KL, BLOW_UP, GREEDY = "no noise", "kl", "blow-up", "blow-up, rows kept greedily"
TENTH = "kl, about a tenth of the noise"
PLAIN, GAUSSIAN = {"target": "kl"}, {"target": "gaussian"}
_NOISED: Mapping[str, tuple[Accountant, dict[str, str], float]] = {
    TENTH: ("kl", PLAIN, 10.0**2),
    KL: ("kl", PLAIN, 1.0),
    BLOW_UP: ("blow-up", GAUSSIAN, 1.0),
    GREEDY: ("blow-up", GAUSSIAN | {"solver": "greedy"}, 1.0),
}
"""Accountant, program, and how many times the divergence from prior to posterior may be: noise falls by its root."""
_SMALL: dict[str, Any] = {
    "ranks": (2000, 6000),  # of words by document frequency
    # Greedy caps are whole. At c = 1/16 the most frequent secrets may have 0.9 to 1.05 rows: rounding would decide.
    "quiet": (1.0, *(9 * 2.0**-k for k in range(4, 10))),
    "noised": (1.0, 9 * 2.0**-5, 9 * 2.0**-7),
    "rates": (1e-3, 3e-3, 1e-2),
    "batch": 128.0,
    "steps": 40,
    "pretraining": 4000,
    "paragraphs": None,
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "ranks": (1000, 1040),
        "quiet": (1.0, 0.5),
        "noised": (1.0, 0.5),
        "rates": (1e-3,),
        "batch": 4.0,
        "steps": 1,
        "pretraining": 1,
        "paragraphs": 8,
        "seeds": 1,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "ranks": (50_000, 150_000),
        "quiet": tuple(2.0**-k for k in range(11)),
        "noised": tuple(2.0**-k for k in range(0, 11, 2)),
        "batch": 2048.0,
        "steps": 2000,
    },
}
ACCOUNTANTS: tuple[Accountant, ...] = ("kl", "renyi", "blow-up")
_WORD = re.compile(r"[^\W\d_]{3,}")


# what is trained -----------------------------------------------------------------------------------------------
def secret_words(work: Work, ease: float = 1.0) -> Path:
    """Write the secrets, or find them: a CSV of words with their priors and posteriors.

    Args:
        ease: of how many times the divergence from prior to posterior the posteriors are. The program's weights stay
            as they are, since all limits grow alike, and the noise by KL falls by about its root.
    """
    first, last = _SIZES[work.scale]["ranks"]
    path = work.folder / "texts" / f"secrets-{first}-{last}{'' if ease == 1 else f'-x{ease:g}'}.csv"
    if not path.exists():
        frequency: Counter[str] = Counter()
        with lzma.open(work.source(TEXTS[TEXT].source), "rt", encoding="utf-8") as lines:
            for line in lines:
                frequency.update({word.lower() for word in _WORD.findall(json.loads(line)["text"])})
        ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[first:last]
        allowed = eased(np.random.default_rng(0).uniform(*POSTERIORS, len(ranked)), ease)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as building, open(building, "w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["word", "prior", "posterior"])
            table.writerows([word, PRIOR, at_least(r, 6)] for word, r in zip(ranked, allowed, strict=True))
    return path


def eased(posteriors: NDArray[np.float64], ease: float) -> NDArray[np.float64]:
    """Return posteriors whose divergence from the prior is `ease` times as large; `float64[K]`, to 9 digits."""
    if ease == 1:
        return posteriors
    prior = np.full(len(posteriors), PRIOR)
    asked = ease * need("kl", prior, posteriors)
    low, high = posteriors.copy(), np.full(len(posteriors), 1 - 1e-9)
    for _ in range(60):
        middle = (low + high) / 2
        above = need("kl", prior, middle) > asked
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low


def model(work: Work) -> Path:
    """Return a model as small as BERT-Tiny, pretrained here on WikiText-2; at `full`, the name of BERT-Tiny."""
    if work.scale is Scale.FULL:
        return Path("google/bert_uncased_L-2_H-128_A-2")
    size, folder = _SIZES[work.scale], work.folder / "models"
    data = work.source("wikitext-2").parent
    text = corpora.written(corpora.wikitext(data, "train"), folder / "wikitext.jsonl", size["paragraphs"])
    raw = {
        "model": str(corpora.roberta(folder / "bert-tiny", layers=2)),
        "task": "masked-lm",
        "data": {"train": str(text), "eval": None, "max_length": 128, "duplicates": False},
        "privacy": {"mechanism": "none", "published_key": "study secret-protection pretraining"},
        "train": {
            "steps": size["pretraining"],
            "batch": 8.0 if work.scale is Scale.TINY else 64.0,
            "learning_rate": 1e-3,
            "warmup": size["pretraining"] // 10,
            "schedule": "linear",
            "checkpoint_every": 1000,
            "micro_tokens": 8192,
        },
        "run": str(folder / "pretraining"),
    }
    return pretrained(raw, "a masked model on WikiText-2", work)


def _shared(work: Work) -> dict[str, Any]:
    """Return the keys of every run."""
    size = _SIZES[work.scale]
    return {
        "task": "masked-lm",
        "adapter.kind": "full",
        "data.unit": None,
        "data.max_length": 128,
        "train.steps": size["steps"],
        "train.batch": size["batch"],
        "train.schedule": "linear",
        "train.micro_tokens": 8192,
    }


def _protected(
    work: Work, accountant: Accountant, program: Mapping[str, str], ease: float = 1.0
) -> dict[str, Any]:
    return {
        "privacy.mechanism": "secret",
        "privacy.accountant": accountant,
        "secrets.words": str(secret_words(work, ease)),
        "secrets.recall": 1.0,
        **{f"secrets.program.{name}": value for name, value in program.items()},
    }


def grids(work: Work) -> tuple[Grid, Grid, Grid]:
    """Return the runs without noise, on the rows of the paper's program; those with noise; and those kept greedily.

    At c = 1 all rows count, greedily too, so greedy bounding has no run there.
    """
    size = _SIZES[work.scale]
    rates = {"train.learning_rate": size["rates"]}
    quiet = Arm(QUIET, _protected(work, "kl", PLAIN) | {"privacy.epsilon": math.inf}, rates)
    noised = {name: Arm(name, _protected(work, *each), rates) for name, each in _NOISED.items()}
    greedy, below = noised.pop(GREEDY), size["noised"][1:]

    def grid(arms: tuple[Arm, ...], at: Sequence[float], tuned: Sequence[float]) -> Grid:
        return Grid(STUDY.name, (TEXT,), model, _shared(work), arms, {C: at}, {C: tuned}, size["seeds"])

    ends = (size["quiet"][0], size["quiet"][-1])
    return (
        grid((quiet,), size["quiet"], ends),
        grid(tuple(noised.values()), size["noised"], size["noised"]),
        grid((greedy,), below, below),
    )


def measure(work: Work) -> list[Row]:
    quiet, *noised = grids(work)
    rows = spreads(work)
    rows += quiet.measured(work)
    return rows + [row for grid in noised for row in grid.measured(work) if row["arm"] != NOTHING]


def spreads(work: Work) -> list[Row]:
    """Return what the program keeps at each c, and the noise that each accountant then asks for (Figure 1 a and c)."""
    size, found = _SIZES[work.scale], []
    programs: tuple[tuple[str, dict[str, str], Sequence[float]], ...] = (
        (QUIET, PLAIN, size["quiet"]),
        (BLOW_UP, GAUSSIAN, size["noised"]),
        (GREEDY, _NOISED[GREEDY][1], size["noised"]),
    )
    shape = shape_of(_config(work, "kl", PLAIN), work)
    columns = {"study": STUDY.name, "scale": str(work.scale), "text": TEXT, "part": "spread", **version()}
    for arm, program, cs in programs:
        for c in cs:
            mechanism = mechanisms.build(_config(work, "kl", program, c))
            assert isinstance(mechanism, SecretProtection)
            spread = Spread.of(mechanism.weights(shape))
            row = columns | {"arm": arm, C: c, "rows": shape.rows, "secrets": shape.units}
            row |= {"kept": spread.kept / shape.rows, "effective": spread.effective}
            if arm == QUIET:
                population, targets = mechanism.population(shape), mechanism.targets(shape)
                for accountant in ACCOUNTANTS:
                    row[accountant] = least_noise_for_secrets(population, targets, accountant)
            found.append(row)
    return found


def _config(work: Work, accountant: Accountant, program: Mapping[str, str], c: float = 1.0) -> Config:
    keys = {"model": str(model(work)), **_shared(work), **_protected(work, accountant, program), C: c}
    return config_of(TEXT, keys, work, STUDY.name)


# what was found ------------------------------------------------------------------------------------------------
def _at(rows: Sequence[Row], arm: str, c: float) -> dict[int, float]:
    return losses(rows, {"arm": arm, C: c})


def _cs(rows: Sequence[Row], arm: str) -> list[float]:
    """Return the values of c at which an arm was trained, the largest first."""
    return sorted({row[C] for row in rows if row["arm"] == arm and row["part"] == "test"}, reverse=True)


def chosen_c(rows: Sequence[Row], arm: str) -> float | None:
    """Return the c below 1 with the least validation loss, at its best learning rate; None if none was tried."""
    tried = [
        row
        for row in rows
        if (row["arm"], row["part"], row.get("key")) == (arm, "validation", TRIAL) and row[C] < 1
    ]
    return min(tried, key=lambda row: row["loss"])[C] if tried else min(_cs(rows, arm), default=None)


def _spread(rows: Sequence[Row], arm: str) -> dict[float, Row]:
    return {row[C]: row for row in rows if row["part"] == "spread" and row["arm"] == arm}


def findings(rows: Sequence[Row]) -> list[Finding]:
    quiet, place = _spread(rows, QUIET), "Figure 1"
    order = sorted(quiet, reverse=True)
    least = order[-1]
    kept = [quiet[c]["kept"] for c in order]
    found = [
        Finding(
            "The smaller c is, the fewer rows keep any weight.",
            f"{place} (a)",
            "the largest rise of the share of rows kept from one c to the next smaller one",
            (max(b - a for a, b in pairwise(kept)),),
            high=0.005,
            is_exact=True,
            unit="share",
        ),
        Finding(
            "Without noise, the rows that the program leaves out cost at most about 0.04 of loss.",
            f"{place} (b)",
            f"test loss at c = {least:.3g} less that at c = 1; the paper's least c is 1/1024",
            paired(_at(rows, QUIET, least), _at(rows, QUIET, 1.0)),
            high=0.045,
            unit="loss",
        ),
        Finding(
            "By the KL bound, the program reduces the noise multiplier by about 8 times.",
            f"{place} (c)",
            f"noise multiplier at c = 1 as a multiple of that at c = {least:.3g}; the paper's least c is 1/1024",
            (quiet[1.0]["kl"] / quiet[least]["kl"],),
            low=7.5,
            is_exact=True,
            unit="times",
        ),
    ]
    base = next(row["loss"] for row in rows if row["arm"] == NOTHING)
    gains = tuple(loss - base for loss in _at(rows, QUIET, 1.0).values())
    statistic = "test loss at c = 1 less that of the model before"
    found.append(taught("Without noise, fine-tuning on all rows", statistic, gains, unit="loss"))
    for arm in (TENTH, KL, BLOW_UP):
        c = chosen_c(rows, arm)
        if c is None:
            continue
        gains = tuple(loss - base for loss in _at(rows, arm, c).values())
        statistic = f"test loss at c = {c:.3g} less that of the model before"
        found.append(taught(f"With the noise ({arm}), fine-tuning", statistic, gains, unit="loss"))
        if not has_taught(gains):
            continue  # where noise drowns everything, weights of rows change nothing
        found.append(
            Finding(
                f"With the noise ({arm}), to weigh rows beats no weighing.",
                f"{place} (d)",
                f"test loss at c = {c:.3g}, which validation chose, less that at c = 1",
                paired(_at(rows, arm, c), _at(rows, arm, 1.0)),
                high=-MARGIN,
                family="weighing",
                unit="loss",
                is_beyond=arm != TENTH,
            )
        )
    if (c := chosen_c(rows, TENTH)) is not None:
        whole = _at(rows, TENTH, 1.0)
        saved = paired(whole, _at(rows, TENTH, c))
        found.append(
            Finding(
                f"With the noise ({TENTH}), to weigh rows lowers the test loss by about 7.5%.",
                "section 1.1",
                f"test loss at c = 1 less that at c = {c:.3g}, as a share of the former",
                tuple(each / loss for each, loss in zip(saved, whole.values(), strict=True)),
                low=0.07,
                unit="share",
            )
        )
    for name, words in (("blow-up", "the blow-up function"), ("renyi", "Renyi divergences")):
        found.append(
            Finding(
                f"On the same rows, less noise is enough by {words} than by KL.",
                "Lemma 3.2 and section 5.1",
                f"noise multiplier by KL as a multiple of that by {words}, over all c",
                tuple(quiet[c]["kl"] / quiet[c][name] for c in order),
                low=1.0,
                is_exact=True,
                unit="times",
                is_beyond=True,
            )
        )
    for c in _cs(rows, GREEDY):
        if c < 1:
            found.append(
                Finding(
                    f"The program does not do worse than greedy bounding at c = {c:.3g}.",
                    "section 4",
                    "test loss with the program less that with greedy bounding, each with the noise it needs",
                    paired(_at(rows, BLOW_UP, c), _at(rows, GREEDY, c)),
                    high=MARGIN,
                    family="greedy",
                    unit="loss",
                    is_beyond=True,
                )
            )
    return found


# as tables and pictures ----------------------------------------------------------------------------------------
def _mean(values: Mapping[int, float]) -> str:
    """Write the mean loss with its 95% interval over run keys."""
    if not values:
        return ""
    middle = f"{sum(values.values()) / len(values):.3f}"
    if len(values) < 2:
        return middle
    low, high = Finding("", "", "", tuple(values.values())).interval()
    return f"{middle} ({low:.3f} to {high:.3f})"


def tables(rows: Sequence[Row]) -> list[Table]:
    quiet = _spread(rows, QUIET)
    first = next(iter(quiet.values()))
    base = next(row["loss"] for row in rows if row["arm"] == NOTHING)
    cells = [
        [
            f"{c:.3g}",
            f"{row['kept']:.1%}",
            f"{row['effective']:,.0f}",
            _mean(_at(rows, QUIET, c)),
            *(at_least(row[name], 4) for name in ACCOUNTANTS),
        ]
        for c, row in quiet.items()
    ]
    heads = [
        "c",
        "rows kept",
        "effective rows",
        "test loss without noise",
        *(f"noise by {name}" for name in ACCOUNTANTS),
    ]
    note = (
        f"{first['secrets']:,} secrets in {first['rows']:,} abstracts; the model before fine-tuning has a test loss of "
        f"{base:.3f}. c is relative to the least that drops no row; the paper's goes from 2^-6 to 2^4, where no row is "
        "dropped. The paper has a rise of about 0.04 in (b) and a fall of about 8 times in (c). Noise by renyi is that "
        "of the paper's Lemma 3.2 with Renyi divergences in place of KL."
    )
    found = [
        Table("Figure 1 (a), (b), (c): rows of the paper's program, and their noise", heads, cells, note)
    ]
    cells = []
    for arm in _NOISED:
        kept = _spread(rows, QUIET if arm in (TENTH, KL) else arm)
        for c in _cs(rows, arm):
            own = [row for row in rows if (row["arm"], row["part"], row.get(C)) == (arm, "test", c)]
            cells.append(
                [
                    arm,
                    f"{c:.3g}",
                    f"{kept[c]['kept']:.1%}" if c in kept else "",
                    at_least(max(row["noise_multiplier"] for row in own), 4),
                    ", ".join(
                        sorted({f"{json.loads(row['settings'])['train.learning_rate']:g}" for row in own})
                    ),
                    _mean(_at(rows, arm, c)),
                    _mean(dict(enumerate(paired(_at(rows, arm, c), _at(rows, arm, 1.0))))),
                ]
            )
    heads = [
        "noise and rows",
        "c",
        "rows kept",
        "noise multiplier",
        "learning rate",
        "test loss",
        "less that at c = 1",
    ]
    note = (
        "kl has the weights that the paper's targets give, blow-up those of Gaussian targets. About a tenth of the "
        "noise, as in the paper, is what kl asks for where each posterior may have 100 times the divergence: 1.5% to "
        "7.8%. Intervals are of 95% over run keys. Each learning rate was chosen on validation abstracts."
    )
    return [*found, Table("Figure 1 (d): with the noise", heads, cells, note)]


def plots(rows: Sequence[Row]) -> list[Plot]:
    quiet, x = _spread(rows, QUIET), "c, relative to the value that drops no row"

    def curve(arm: str) -> Points:
        found = {c: _at(rows, arm, c) for c in sorted(_cs(rows, arm))}
        return [(c, sum(each.values()) / len(each)) for c, each in found.items()]

    noise: dict[str, Points] = {name: [(c, quiet[c][name]) for c in sorted(quiet)] for name in ACCOUNTANTS}
    kept = [(c, quiet[c]["kept"]) for c in sorted(quiet)]
    panels = [
        Panel("(a) rows with any weight", x, "share of rows", {"kept": kept}, log_x=True),
        Panel("(b) loss without noise", x, "test loss", {QUIET: curve(QUIET)}, log_x=True),
        Panel("(c) noise multiplier", x, "noise multiplier", noise, log_x=True, log_y=True),
        Panel("(d) loss with the noise", x, "test loss", {arm: curve(arm) for arm in _NOISED}, log_x=True),
    ]
    svg = panels_svg("Secret protection on arXiv abstracts, as the linear program is tightened", panels)
    return [Plot("secret-protection", "rows kept, noise and loss as the program is tightened", svg)]


STUDY = Study(
    name="secret-protection",
    paper="002",
    shows=("Figure 1",),
    question="Is it worth training on fewer rows so that each secret needs less noise?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=90,
    deviations="2,663 abstracts in place of 1.9 million, read up to 128 tokens; the words of ranks 2,001 to 6,000, "
    "most of which stand in 3 to 7 abstracts; a masked model of BERT-Tiny's shape with the bundled tokenizer, "
    "pretrained here on WikiText-2; 40 steps of 128 rows. The paper divides all its noise by ten to stand for a larger "
    "data set; here one arm has about that. c falls to 1/57, halved each time; the paper's to 1/1024, for "
    "which batches of 128 are too large here. Abstracts without secrets stay.",
    reads=("arxiv-abstracts-small", "wikitext-2"),
    plots=plots,
)
