"""How much text a model gives back, by the noise it was trained with (Ganesh et al. 2025, Figures 2 and 3; 002)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from confide.auditing.extraction import extract
from confide.data.cutting import Cutter
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.models.names import BUNDLED, location
from confide.runs.folder import Run
from confide.runs.loop import Outcome
from confide.utils.chart import Panel, panels_svg
from confide.utils.files import write_text
from confide.utils.rounding import at_least, at_most
from studies.runner import corpora
from studies.runner.findings import MARGIN, Finding, interval, paired
from studies.runner.grid import NOTHING, Arm, Grid, Keys
from studies.runner.models import gemma, stories
from studies.runner.planted import generator, planted
from studies.runner.released import released
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity
from studies.runner.texts import TEXTS

NOISE = "privacy.noise_multiplier"
BARE, NOISED = "no DP", "DP-SGD"
SUFFIX = 16
LEAST, MOST = (
    56,
    120,
)  # tokens of a passage, so that it is one row and has the longest prefix and what follows
SMALL_NOISE = 0.01
"""The paper calls noise multipliers from here on large."""
LITTLE = 0.02
"""A share of passages that counts as none."""

_SMALL: dict[str, Any] = {
    "documents": 6000,
    "noises": (0.0, 1e-3, 1e-2, 3e-2, 1e-1, 1.0),
    "copies": (1, 10, 100),
    "each": 40,
    "prefixes": (8, 16, 32),
    "batch": 32.0,
    "steps": 300,
    "rate": 5e-3,
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "documents": 6,
        "noises": (0.0, 1e-3, 1.0),
        "copies": (1, 2),
        "each": 2,
        "prefixes": (8, 32),
        "batch": 2.0,
        "steps": 1,
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "documents": None,
        "batch": 512.0,
        "steps": 1500,
        "rate": 1e-3,
    },
}


@dataclass(frozen=True)
class Passages:
    """The passages of each run key: of all that there are, coins of the key plant `each` so often, and as many never.

    Those that are never planted tell what a model gives back of text that it did not read.

    Attributes:
        source: JSON lines with a field `text` for each passage.
        prefixes: tokens that the model is given, from the passage's beginning; it must give back the next `SUFFIX`.
    """

    source: str
    copies: tuple[int, ...]
    each: int
    prefixes: tuple[int, ...]

    def of(self, key: str) -> dict[int, list[str]]:
        """Return the passages by how often they are planted, 0 for never."""
        texts = [json.loads(line)["text"] for line in Path(self.source).read_text("utf-8").splitlines()]
        times = (0, *self.copies)
        drawn = generator(key, "passages").choice(len(texts), self.each * len(times), replace=False)
        chosen = [texts[place] for place in drawn.tolist()]
        return {
            count: chosen[place * self.each : (place + 1) * self.each] for place, count in enumerate(times)
        }

    def texts(self, key: str) -> list[tuple[str, int]]:
        """Return the texts to plant, each with how often."""
        return [(text, times) for times, texts in self.of(key).items() for text in texts if times]

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        """Return the share of passages that the trained model gives back, greedily, by copies and prefix."""
        key = run.config.privacy.published_key
        assert key is not None
        by_times = self.of(key)
        found: Row = {}
        with released(run) as job, tempfile.TemporaryDirectory() as folder:
            graph = _graph([text for own in by_times.values() for text in own], job.tokenizer, Path(folder))
            for prefix in self.prefixes:
                rows = np.arange(graph.n_rows)
                given = iter(extract(job.model, graph, rows, prefix, SUFFIX).greedy.tolist())
                for times, own in by_times.items():
                    found[share_of(times, prefix)] = sum(next(given) for _ in own) / len(own)
        return found


def share_of(times: int, prefix: int) -> str:
    """Return the column of the share of passages that stood so often and were begun with so many tokens."""
    return f"given back of {times} after {prefix}"


def _graph(texts: Sequence[str], tokenizer: Any, folder: Path) -> UnitGraph:
    """Write texts as rows, cut as training text is: one row each."""
    with GraphWriter(folder, vocabulary=len(tokenizer)) as writer:
        for text, rows in zip(texts, Cutter(tokenizer, True, MOST + 8).rows(texts), strict=True):
            (row,) = rows
            writer.add(row.tokens, [text])
    return UnitGraph.open(folder)


def beginnings(texts: Sequence[str], tokenizer: Any) -> Iterator[str]:
    """Yield the beginning of each text that is long enough: as many whole words as fill one row."""
    for text in texts:
        words = text.split(" ")
        for count in range(min(len(words), MOST), 0, -4):
            passage = " ".join(words[:count])
            length = len(tokenizer(passage).input_ids)
            if length <= MOST:
                if length >= LEAST:
                    yield passage
                break


def model(work: Work) -> Path:
    """Return stories260K; at `full` a Gemma-2 that is trained from scratch, as in the paper."""
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    return gemma(work, shape) if work.scale is Scale.FULL else stories(work)


# what is trained -----------------------------------------------------------------------------------------------
def _passages(work: Work) -> Passages:
    """Take the passages from the validation split of WikiText-2: the text comes from its training split alone."""
    size, own = _SIZES[work.scale], _tokenizer(work)
    path = work.folder / "texts" / f"passages-{Path(own).name}.jsonl"
    if not path.exists():
        data = work.source("wikitext-2").parent
        texts = [each["text"][:1500] for each in corpora.wikitext(data, "valid")]
        tokenizer = AutoTokenizer.from_pretrained(own)
        twice = 2 * size["each"] * (1 + len(size["copies"]))
        found = islice(beginnings(texts, tokenizer), twice)
        lines = [json.dumps({"text": text}) + "\n" for text in found]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(lines))
    return Passages(str(path), size["copies"], size["each"], size["prefixes"])


def grids(work: Work) -> list[Grid]:
    """Return the runs without privacy, and those at each noise multiplier."""
    size, passages = _SIZES[work.scale], _passages(work)
    plants = partial(_with_passages, work, passages)
    keys = {
        "tokenizer": BUNDLED if work.scale is Scale.FULL else None,
        "adapter.kind": "full",
        "data.max_length": MOST + 8,
        "data.unit": None,
        "privacy.delta": 1e-5,
        "train.batch": size["batch"],
        "train.steps": size["steps"],
        "train.learning_rate": size["rate"],
        "train.schedule": "linear",
    }
    return [
        Grid(
            name="extraction",
            texts=("articles",),
            model=model,
            keys=keys,
            arms=(Arm(name, {"privacy.mechanism": mechanism}, derived=plants, look=passages),),
            at=at,
            tuned_at={},
            seeds=size["seeds"],
        )
        for name, mechanism, at in ((BARE, "none", {}), (NOISED, "dp-sgd", {NOISE: size["noises"]}))
    ]


def _tokenizer(work: Work) -> str:
    """Return whose tokenizer is used: that of the model, or the bundled one if it has none."""
    return location(BUNDLED) if work.scale is Scale.FULL else str(model(work))


def _with_passages(work: Work, passages: Passages, keys: Keys) -> Keys:
    source = TEXTS["articles"].parts(work)["train"]
    texts = passages.texts(keys["privacy.published_key"])
    return {**keys, "data.train": str(planted(source, texts, _SIZES[work.scale]["documents"]))}


def measure(work: Work) -> list[Row]:
    return [row for grid in grids(work) for row in grid.measured(work) if row["arm"] != NOTHING]


# what was found ------------------------------------------------------------------------------------------------
def _noises(rows: Sequence[Row]) -> list[float]:
    return sorted({row[NOISE] for row in rows if row.get(NOISE) is not None})


def _losses(rows: Sequence[Row], noise: float | None) -> dict[int, float]:
    """Return the test loss by run key at a noise multiplier, or without privacy."""
    return losses(rows, {"arm": BARE} if noise is None else {"arm": NOISED, NOISE: noise})


def shares(rows: Sequence[Row], noise: float | None, times: int, prefix: int) -> dict[int, float]:
    """Return by run key the share of passages that are given back."""
    arm, column = (BARE if noise is None else NOISED), share_of(times, prefix)
    return {row["key"]: row[column] for row in rows if row["arm"] == arm and row.get(NOISE) == noise}


def learnt(rows: Sequence[Row], noise: float | None, times: int, prefix: int) -> dict[int, float]:
    """Return by run key the share that is given back, less that of passages that the model did not read."""
    read, unread = shares(rows, noise, times, prefix), shares(rows, noise, 0, prefix)
    return {key: read[key] - unread[key] for key in sorted(read)}


def _asked(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Return the copies, 0 among them, and the prefixes."""
    names = [name.split() for name in rows[0] if name.startswith("given back of ")]
    return sorted({int(each[3]) for each in names}), sorted({int(each[5]) for each in names})


def findings(rows: Sequence[Row]) -> list[Finding]:
    copies, prefixes = _asked(rows)
    most, prefix = copies[-1], prefixes[len(prefixes) // 2]
    given_back = learnt(rows, 0.0, most, prefix)
    found = [
        Finding(
            f"Without noise a model gives back what it read ({most} copies, {prefix} tokens given).",
            "Figure 3",
            f"share of passages less that of passages not read; from {LITTLE} on it counts as giving back",
            tuple(given_back.values()),
            low=LITTLE,
            unit="share",
        )
    ]
    if mean(given_back.values()) < LITTLE:
        return found  # what is not given back without noise, noise cannot keep
    for noise in (each for each in _noises(rows) if each > 0):
        make = _of_small_noise if noise < SMALL_NOISE else _of_large_noise
        found += make(rows, noise, most, prefix)
    return found


def _of_small_noise(rows: Sequence[Row], noise: float, most: int, prefix: int) -> list[Finding]:
    told = at_least(noise, 3)
    falls = tuple(
        without - own - without / 4
        for without, own in _pairs(learnt(rows, 0.0, most, prefix), learnt(rows, noise, most, prefix))
    )
    return [
        Finding(
            f"Noise of {told} hardly changes the validation loss.",
            "Figure 2",
            "loss less that with no noise",
            paired(_losses(rows, noise), _losses(rows, 0.0)),
            -MARGIN,
            MARGIN,
            family="loss",
        ),
        Finding(
            f"With noise of {told} far less text is given back ({most} copies, {prefix} tokens given).",
            "Figure 3",
            "share learnt without noise less that with it, less a quarter of the former",
            falls,
            low=LITTLE,
            family="given back",
            unit="share",
        ),
    ]


def _of_large_noise(rows: Sequence[Row], noise: float, most: int, prefix: int) -> list[Finding]:
    told = at_least(noise, 3)
    read, not_read = shares(rows, noise, most, prefix), shares(rows, noise, 0, prefix)
    remaining = [
        Finding(
            f"With noise of {told} what is given back is mostly not learnt from the passages ({most} copies).",
            "section 5.2",
            "share of passages not read that is given back, less half of that of passages read",
            tuple(not_read[key] - read[key] / 2 for key in sorted(read)),
            low=0.0,
            family="what remains",
            unit="share",
        )
    ]
    # Where nothing is given back, there is nothing that could be learnt or not.
    return remaining * (mean(read.values()) >= LITTLE) + [
        Finding(
            f"With noise of {told} some text is still given back ({most} copies).",
            "section 5.2",
            "share of passages",
            tuple(shares(rows, noise, most, prefix).values()),
            low=1e-9,
            family="some remains",
            unit="share",
            is_beyond=True,  # what remains in the paper can be guessed; these passages cannot
        ),
    ]


def _pairs(one: Mapping[int, float], other: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(one[key], other[key]) for key in sorted(one.keys() & other.keys())]


def tables(rows: Sequence[Row]) -> list[Table]:
    copies, prefixes = _asked(rows)
    prefix = prefixes[len(prefixes) // 2]
    heads = ["noise multiplier", "epsilon", "test perplexity", "against no noise"]
    cells = []
    for noise in (None, *_noises(rows)):
        epsilons = [row["epsilon"] for row in rows if row["arm"] == NOISED and row.get(NOISE) == noise]
        gap = paired(_losses(rows, noise), _losses(rows, 0.0))
        cells.append(
            [
                _name(noise),
                "" if noise is None else at_most(max(epsilons), 3),
                perplexity(_losses(rows, noise)),
                "" if noise == 0 else change(gap),
            ]
        )
    first = Table(
        "Figure 2: effect of noise on the loss of text that was not read",
        heads,
        cells,
        "The paper has a plot, not numbers. Intervals are of 95% over run keys.",
    )
    heads = ["noise multiplier", f"not read, {prefix} tokens given"]
    heads += [f"{_copies(times)}, {prefix} given" for times in copies if times]
    heads += [f"{copies[-1]} copies, {each} given" for each in prefixes if each != prefix]
    asked = [(times, prefix) for times in copies]
    asked += [(copies[-1], each) for each in prefixes if each != prefix]
    cells = [
        [_name(noise), *(_percents(shares(rows, noise, *place)) for place in asked)]
        for noise in (None, *_noises(rows))
    ]
    note = (
        f"Share of passages whose next {SUFFIX} tokens greedy decoding gives back word for word. Those that were not "
        "read are drawn by coins from the same text as those that were: what is given back of them is generalisation."
    )
    return [first, Table("Figure 3: share given back", heads, cells, note)]


def _copies(times: int) -> str:
    return "1 copy" if times == 1 else f"{times} copies"


def _name(noise: float | None) -> str:
    return BARE if noise is None else f"{at_least(noise, 3)}"


def _percents(found: Mapping[int, float]) -> str:
    values = tuple(found.values())
    low, high = interval(values)
    return f"{mean(values):.1%} ({max(0.0, low):.1%} to {min(1.0, high):.1%})"


def plots(rows: Sequence[Row]) -> list[Plot]:
    copies, prefixes = _asked(rows)
    prefix = prefixes[len(prefixes) // 2]
    noises = [noise for noise in _noises(rows) if noise > 0]
    panels = [
        Panel(
            f"Given back: {SUFFIX} tokens after {prefix}",
            "noise multiplier",
            "share of passages",
            {
                "not read" if times == 0 else _copies(times): [
                    (noise, mean(shares(rows, noise, times, prefix).values())) for noise in noises
                ]
                for times in copies
            },
            log_x=True,
            decades=True,
        ),
        Panel(
            "Text that was not read",
            "noise multiplier",
            "loss, nats a token",
            {
                NOISED: [(noise, mean(_losses(rows, noise).values())) for noise in noises],
                BARE: [(noise, mean(_losses(rows, None).values())) for noise in (noises[0], noises[-1])],
            },
            log_x=True,
            decades=True,
        ),
    ]
    words = "share of planted passages given back, and loss of text that was not read, by noise multiplier"
    return [Plot("extraction", words, panels_svg("Extraction by noise", panels))]


STUDY = Study(
    name="extraction",
    paper="002",
    shows=("Figure 2", "Figure 3"),
    question="Does a little noise keep a model from giving back what it read, at no cost?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K, trained whole, in place of a Gemma-2 from scratch; WikiText-2 by article in place of "
    "fineweb-edu, read about once; 120 passages are planted 1, 10 or 100 times, where the paper plants nothing and "
    "asks for parts of its text. A step has 32 rows; the paper does not say how many its noise multipliers are for. "
    "One learning rate for all noise multipliers. An earlier form trained a Gemma-2 of one million weights from "
    "scratch for 150 steps. It gave nothing back, not even of what stood 100 times without privacy, so that noise had "
    "nothing to prevent. The new model and its steps were tried with run key 1, without privacy and with noise of 0, "
    "0.001 and 0.01; claims and bounds stayed.",
    reads=("20newsgroups", "wikitext-2"),
    plots=plots,
)
