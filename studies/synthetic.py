"""Text that a private model writes: what it teaches a classifier, and whether it gives planted text back.

The model is fine-tuned on mails of a helpdesk with the topic in front of each (Yue et al. 2023 call it a control
code), privately for whole customers. It then writes as many mails of each topic. A classifier of topics that is trained
on these stands beside one that is trained on the real mails at the same epsilon, and one that is trained on them
without privacy. A second model is fine-tuned on the mails alone, without topics, and writes as many.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2, vq
from scipy.sparse.linalg import svds
from transformers import AutoTokenizer

from confide.config.schema import Canaries
from confide.data.conditions import Conditions
from confide.models.names import location
from confide.runs.canaries import Manifest
from confide.runs.folder import Run
from confide.runs.generate import Options, Prompter, Voice
from confide.runs.loop import Outcome
from confide.synthesis import divergence
from confide.synthesis.classifier import features, predictions, rarity, weighed
from confide.synthesis.leaks import canary_marks, counted
from confide.synthesis.sampling import Asked, planned, seed_of
from studies.runner.findings import Finding, interval, paired
from studies.runner.grid import NOTHING, OWN_OPTIMISER, Arm, Grid
from studies.runner.models import own
from studies.runner.planted import generator
from studies.runner.released import released
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import perplexity, target
from studies.runner.texts import TEXTS

TEXT, EPSILON = "helpdesk", "privacy.epsilon"
WRITES, FREELY, DIRECT = "writes text", "writes text without topics", "classifies"
REAL = "real mails"
TOPICS = (
    "address app cancel charged damaged faulty invoice late parts password praise privacy refund setup stock voucher "
    "warranty wrong"
).split()
POINT = 0.01
"""What counts as a difference of two accuracies, of two shares of canaries, or of two distances."""
CHANCE = 1 / len(TOPICS)
"""The accuracy of a classifier that guesses a topic."""
TIMES = 10
_PLANTED = "topic: privacy\n\n" + Canaries().template
"""Of a canary where mails have topics: it has a line for one, as they have."""
_DISTANCES = ("words", "pairs")
_DIRECTIONS, _A_CLUSTER = 32, 20  # of the texts' words; texts in a cluster on average

_SMALL: dict[str, Any] = {
    "steps": 32,
    "batch": 128.0,
    "rates": (1e-3, 3e-3),
    "epsilons": (8.0, math.inf),
    "seeds": 3,
    "canaries": 40,
    "times": TIMES,
    "documents": 1000,
    "tokens": 64,
    "at_once": 50,
    "micro_tokens": 2048,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {"steps": 1, "batch": 4.0, "rates": (1e-3,), "seeds": 1}
    | {"documents": 18, "tokens": 3, "canaries": 8, "times": 1},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"steps": 200, "batch": 512.0, "rates": (5e-4, 1e-3, 2e-3, 4e-3), "epsilons": (8.0, 3.0, math.inf)}
    | {"documents": 10_000, "at_once": 500, "micro_tokens": 32_768},
}


@dataclass(frozen=True)
class Writes:
    """Lets the model write mails, holds them against real ones, and looks for canaries in them.

    Where the mails have topics, they teach a classifier.
    """

    documents: int
    tokens: int
    at_once: int

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        key = run.config.privacy.published_key or ""
        texts, topics = self._written(run)
        asked = _mails(str(run.config.data.eval))
        mails = _mails(run.config.data.train)
        some = [mails[at] for at in generator(key, "real mails").permutation(len(mails))[: self.documents]]
        held = [mail["text"] for mail in asked]
        named, of_held = _named(some, texts, held)
        found: Row = {"by real": _right(of_held, [mail["topic"] for mail in asked])}
        found |= nearness(texts, named, held, of_held)
        if topics:
            found["by synthetic"] = _accuracy(texts, topics, asked)
            found["as asked"] = _right(named, topics)
            drawn = generator(key, "picked texts")
            half = len(texts) // 2
            for name, chosen in (
                ("by picked", picked(texts, [mail["text"] for mail in mails], half, drawn)),
                ("by as many", drawn.permutation(len(texts))[:half].tolist()),
            ):
                found[name] = _accuracy([texts[at] for at in chosen], [topics[at] for at in chosen], asked)
        planted = counted(texts, *canary_marks(Manifest.load(run.data)))
        if planted is not None:
            found |= {"planted": planted.planted, "planted found": planted.found}
            found |= {"absent": planted.absent, "absent found": planted.found_absent}
        return found

    def _written(self, run: Run) -> tuple[list[str], list[str]]:
        """Return what the model writes, and the topic that each text was asked for; no topics if it knows none."""
        conditions = Conditions.of(run.config.data)
        listed = [] if conditions is None else conditions.listed
        prompts = tuple(map(conditions.prefix, listed)) if conditions else ("",)
        options = Options(self.tokens, temperature=1.0, top_p=1.0, chat=False)
        texts, topics = [], []
        with released(run) as job:
            voice = Voice("the model", job.model, Prompter(job.tokenizer, options))
            for batch in planned(Asked(self.documents, prompts).quotas(), 0, self.at_once):
                said = voice.several(prompts[batch.prompt], batch.size, seed_of(0, batch.number))
                texts += [each.text for each in said]
                topics += list(listed[batch.prompt]) * len(said) if listed else []
        return texts, topics


def nearness(texts: Sequence[str], topics: Sequence[str], held: Sequence[str], of_held: Sequence[str]) -> Row:
    """Return how far texts lie from held-out mails: by words, by pairs of words, and by the topics that are named."""
    found: Row = {name: divergence.of_runs(texts, held, words) for words, name in enumerate(_DISTANCES, 1)}
    return found | {"topics": divergence.distance(Counter(topics), Counter(of_held))}


def yardstick(work: Work) -> Row:
    """Return how far real mails that trained lie from held-out ones, cut as the written ones are, and as many."""
    size, parts = _SIZES[work.scale], TEXTS[TEXT].parts(work)
    mails, asked = _mails(str(parts["train"])), _mails(str(parts["test"]))
    tokenizer = AutoTokenizer.from_pretrained(location(str(model(work))))
    drawn = generator("yardstick", "real mails").permutation(len(mails)).tolist()
    some, others = (
        [mails[at] for at in part] for part in (drawn[: size["documents"]], drawn[-size["documents"] :])
    )
    ids = tokenizer([mail["text"] for mail in some], truncation=True, max_length=size["tokens"]).input_ids
    texts, held = tokenizer.batch_decode(ids, skip_special_tokens=True), [mail["text"] for mail in asked]
    named, of_held = _named(others, texts, held)
    columns = {"study": STUDY.name, "scale": str(work.scale), "text": TEXT, "arm": REAL, "part": "yardstick"}
    right = _right(named, [mail["topic"] for mail in some])
    return columns | nearness(texts, named, held, of_held) | {"as asked": right} | version()


def picked(written: Sequence[str], real: Sequence[str], count: int, drawn: np.random.Generator) -> list[int]:
    """Pick written texts so that they fall into clusters as real ones do (Yu et al. 2024). Return their places.

    The histogram of the real texts is exact here: what noise would make of it can only be worse.
    """
    own, theirs = features(written), features(real)
    weights = rarity(own)
    own, theirs = weighed(own, weights), weighed(theirs, weights)
    most = min(_DIRECTIONS, min(own.shape) - 1)
    directions = svds(own, k=most, rng=np.random.default_rng(0))[2].T
    clusters = max(2, len(written) // _A_CLUSTER)
    middles, labels = kmeans2(own @ directions, clusters, minit="++", rng=np.random.default_rng(0))
    asked = np.bincount(vq(theirs @ directions, middles)[0], minlength=clusters)
    there = np.bincount(labels, minlength=clusters)
    ratio = (asked / np.maximum(there, 1))[labels]
    # The least of exponential times, each with its text's rate: draws without replacement, by weight (Efraimidis and
    # Spirakis 2006).
    times = drawn.exponential(size=len(written)) / np.maximum(ratio, 1e-12)
    return [int(at) for at in np.argsort(times)[:count]]


def _mails(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def _named(
    mails: Sequence[Mapping[str, str]], texts: Sequence[str], held: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Teach one classifier by mails, and let it name the topics of written texts and of held-out mails."""
    real, topics = [mail["text"] for mail in mails], [mail["topic"] for mail in mails]
    found = predictions(real, topics, [*texts, *held])
    return found[: len(texts)], found[len(texts) :]


def _right(named: Sequence[str], topics: Sequence[str]) -> float:
    return sum(map(str.__eq__, named, topics)) / len(topics)


def _accuracy(texts: Sequence[str], topics: Sequence[str], asked: Sequence[Mapping[str, str]]) -> float:
    return _right(
        predictions(texts, topics, [mail["text"] for mail in asked]), [mail["topic"] for mail in asked]
    )


def measure(work: Work) -> list[Row]:
    return [yardstick(work), *(row for grid in grids(work) for row in grid.measured(work))]


def model(work: Work) -> Path:
    """Return the bundled model; at `tiny` stories260K, with the padding that a classifier needs named in its config."""
    found = own(work)
    if work.scale is not Scale.TINY:
        return found
    named = work.folder / "models" / "stories260K-padded"
    if not named.exists():
        shutil.copytree(found, named)
        settings = json.loads((found / "config.json").read_text("utf-8"))
        (named / "config.json").write_text(
            json.dumps(settings | {"pad_token_id": settings["eos_token_id"]}), "utf-8"
        )
    return named


def grids(work: Work) -> Iterator[Grid]:
    """Yield the runs that write and those that classify, at the same places and with as many trials."""
    size = _SIZES[work.scale]
    shared = {
        **OWN_OPTIMISER,
        "adapter.kind": "full",
        "data.max_length": 64,
        "privacy.mechanism": "uls",
        "privacy.rows_per_unit": 1,
        "train.steps": size["steps"],
        "train.batch": size["batch"],
        "train.schedule": "linear",
        "train.micro_tokens": size["micro_tokens"],
    }
    freely = {
        "privacy.selection": "longest",
        "canaries.count": size["canaries"],
        "canaries.insertions": size["times"],
    }
    writes = freely | {"data.condition": "topic", "data.conditions": TOPICS, "canaries.template": _PLANTED}
    direct = {"task": "classification", "data.label": "topic", "privacy.selection": "random"}
    options = {"train.learning_rate": size["rates"]}
    look = Writes(size["documents"], size["tokens"], size["at_once"])
    writing = (Arm(WRITES, writes, options, look=look), Arm(FREELY, freely, options, look=look))
    for arm in (*writing, Arm(DIRECT, direct, options)):
        yield Grid(
            STUDY.name,
            (TEXT,),
            model,
            shared | dict(arm.keys),
            (arm,),
            {EPSILON: size["epsilons"]},
            {EPSILON: size["epsilons"][:1]},
            size["seeds"],
        )


# what was found ------------------------------------------------------------------------------------------------
def by_key(rows: Sequence[Row], arm: str, column: str, epsilon: float) -> dict[int, float]:
    """Return a column of an arm's runs that count, by run key."""
    return {
        row["key"]: row[column]
        for row in rows
        if (row["arm"], row["part"], row.get(EPSILON)) == (arm, "test", epsilon)
        and row.get(column) is not None
    }


def more_found(rows: Sequence[Row], arm: str, epsilon: float) -> dict[int, float]:
    """Return by run key the share of planted canaries that were found, less that of the others."""
    names = ("planted found", "planted", "absent found", "absent")
    hits, planted, others, absent = (by_key(rows, arm, name, epsilon) for name in names)
    return {key: hits[key] / planted[key] - others[key] / absent[key] for key in hits}


def _epsilons(rows: Sequence[Row]) -> list[float]:
    return sorted({row[EPSILON] for row in rows if row["arm"] == WRITES})


def is_of_topics(rows: Sequence[Row]) -> bool:
    """Tell whether text that was written without privacy has the topics that it was asked for.

    If not, it can teach no classifier, with privacy or without: that two trainings differ little says nothing then.
    """
    measured = (by_key(rows, WRITES, name, math.inf).values() for name in ("as asked", "by synthetic"))
    return all(mean(values) >= CHANCE + POINT for values in measured if values)


def is_found(rows: Sequence[Row], arm: str) -> bool:
    """Tell whether canaries are found in text that was written without privacy: if not, there is nothing to hide."""
    found = more_found(rows, arm, math.inf).values()
    return bool(found) and mean(found) >= POINT


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = [_of_control(rows)]
    for epsilon in filter(math.isfinite, _epsilons(rows)):
        found += [*(_of_classifiers(rows, epsilon) if is_of_topics(rows) else ()), *_of_topics(rows, epsilon)]
    found += [
        _of_canaries(rows, arm, words, epsilon)
        for arm, words in ((WRITES, "asked for by topic"), (FREELY, "asked for freely"))
        for epsilon in _epsilons(rows)
        if is_found(rows, arm) or math.isinf(epsilon)
    ]
    if is_of_topics(rows):
        found.append(
            Finding(
                "Without privacy, too, real text teaches more than as much text that a model wrote.",
                "beyond the papers",
                f"accuracy by synthetic text less that by real text; -{POINT:.0%} counts as less",
                paired(*(by_key(rows, WRITES, f"by {kind}", math.inf) for kind in ("synthetic", "real"))),
                high=-POINT,
                unit="share",
            )
        )
    return [finding for finding in found if finding.values]  # older measurements lack some columns


def _of_control(rows: Sequence[Row]) -> Finding:
    """Check that there is something to judge; older measurements say only what a classifier learns."""
    named = by_key(rows, WRITES, "as asked", math.inf)
    values = named or by_key(rows, WRITES, "by synthetic", math.inf)
    words = (
        "share of it to which a classifier of real mails gives"
        if named
        else "accuracy of what it taught to tell"
    )
    return Finding(
        "Without privacy, text asked for by topic has that topic.",
        "beyond the papers",
        f"{words} the topic, less chance, which is {CHANCE:.1%}",
        tuple(value - CHANCE for value in values.values()),
        low=POINT,
        unit="share",
        is_check=True,
    )


def _of_classifiers(rows: Sequence[Row], epsilon: float) -> Iterator[Finding]:
    synthetic = by_key(rows, WRITES, "by synthetic", epsilon)
    yield Finding(
        f"At epsilon {target(epsilon)} synthetic text teaches a classifier as well as private training does.",
        "Yue et al. 2023",
        f"accuracy by synthetic text less that of direct training; -{POINT:.0%} counts as less",
        paired(synthetic, by_key(rows, DIRECT, "accuracy", epsilon)),
        low=-POINT,
        family="direct",
        unit="share",
    )
    yield Finding(
        f"At epsilon {target(epsilon)}, text that an exact histogram of the real mails picks teaches no more "
        "than as much text picked at random.",
        "Yu et al. 2024",
        f"accuracy by half of the text, picked by clusters, less that by half at random; {POINT:.0%} counts as more",
        paired(*(by_key(rows, WRITES, name, epsilon) for name in ("by picked", "by as many"))),
        high=POINT,
        family="picked",
        unit="share",
    )


def _of_topics(rows: Sequence[Row], epsilon: float) -> Iterator[Finding]:
    with_topics, without = (by_key(rows, arm, "words", epsilon) for arm in (WRITES, FREELY))
    yield Finding(
        f"At epsilon {target(epsilon)}, text asked for by topic lies no farther from real mails than text asked for "
        "freely.",
        "beyond the papers",
        f"distance of words to held-out mails: by topic less freely; {POINT} counts as farther",
        paired(with_topics, without),
        high=POINT,
        family="topics",
        unit="distance",
    )


def _of_canaries(rows: Sequence[Row], arm: str, words: str, epsilon: float) -> Finding:
    is_private = math.isfinite(epsilon)
    when = f"At epsilon {target(epsilon)}" if is_private else "Without privacy"
    return Finding(
        f"{when}, what {TIMES} documents of a unit hold is {'not ' * is_private}found in text {words}.",
        "confide's own claim",
        "share of planted canaries found, less that of canaries that were not planted",
        tuple(more_found(rows, arm, epsilon).values()),
        low=-math.inf if is_private else POINT,
        high=POINT if is_private else math.inf,
        family="canaries" if is_private else "found",
        unit="share",
        is_check=not is_private,
    )


def tables(rows: Sequence[Row]) -> list[Table]:
    return [_classifiers(rows), _texts(rows)]


def _classifiers(rows: Sequence[Row]) -> Table:
    heads = ["epsilon", "perplexity of real mails", "by synthetic text", "trained directly"]
    heads += [
        "by as much real text, no privacy",
        "by half of the text, picked by clusters",
        "by half of it, at random",
    ]
    cells = [
        [
            target(epsilon),
            perplexity(by_key(rows, WRITES, "loss", epsilon)),
            shares(by_key(rows, WRITES, "by synthetic", epsilon).values()),
            shares(by_key(rows, DIRECT, "accuracy", epsilon).values()),
            shares(by_key(rows, WRITES, "by real", epsilon).values()),
            *(shares(by_key(rows, WRITES, name, epsilon).values()) for name in ("by picked", "by as many")),
        ]
        for epsilon in _epsilons(rows)
    ]
    before = next((row["perplexity"] for row in rows if row["arm"] == NOTHING), math.nan)
    note = (
        f"Accuracies of {len(TOPICS)} topics on mails of customers that did not train, means over run keys with "
        f"intervals of 95%; a guess is right in {CHANCE:.1%}. Before training the perplexity of these mails is "
        f"{before:.1f}. Synthetic and real text teach a linear classifier of words and pairs of words; what is "
        "trained directly is the language model with a head. Picked text falls into clusters as the real mails do, by "
        "a histogram of them without noise: no guarantee covers it."
    )
    return Table("Classifiers of topics", heads, cells, note)


def _texts(rows: Sequence[Row]) -> Table:
    heads = ["epsilon", "asked for", "distance of words", "of pairs of words", "of topics"]
    heads += ["has the topic asked for", "canaries found", "others found"]
    cells = [
        [
            target(epsilon),
            words,
            *(_mean(by_key(rows, arm, name, epsilon).values()) for name in (*_DISTANCES, "topics")),
            shares(by_key(rows, arm, "as asked", epsilon).values()),
            _of(rows, arm, "planted", epsilon),
            _of(rows, arm, "absent", epsilon),
        ]
        for epsilon in _epsilons(rows)
        for arm, words in ((WRITES, "by topic"), (FREELY, "freely"))
        if by_key(rows, arm, "loss", epsilon)
    ]
    note = f"Canaries are invented customers with {TIMES} documents of one text, counted over all keys."
    if not any(row["arm"] == FREELY for row in rows):
        note += (
            " They were measured when their documents had no line for a topic: a model that is asked by topic was then "
            "less likely to write them."
        )
    for row in (row for row in rows if row["arm"] == REAL):
        own = [f"{row[name]:.3f}" for name in (*_DISTANCES, "topics")]
        cells.append(["", "real mails", *own, f"{row['as asked']:.1%}", "", ""])
        note = (
            "Distances are those to real mails of customers that did not train (Jensen-Shannon: 0 the same, 1 nothing "
            "in common). The last line has as many real mails of customers that trained, cut as the written ones are. "
            f"A classifier that learnt from real mails names the topics. {note}"
        )
    filled = [at for at in range(len(heads)) if any(line[at] for line in cells)]
    cells = [[line[at] for at in filled] for line in cells]
    return Table("The text, asked for by topic and freely", [heads[at] for at in filled], cells, note)


def _mean(values: Collection[float]) -> str:
    return f"{mean(values):.3f}" if values else ""


def shares(values: Any) -> str:
    """Write shares as their mean, with its 95% interval."""
    found = tuple(values)
    if not found:
        return ""
    middle = f"{mean(found):.1%}"
    if len(found) < 2:
        return middle
    low, high = interval(found)
    return f"{middle} ({max(0.0, low):.1%} to {min(1.0, high):.1%})"


def _of(rows: Sequence[Row], arm: str, whole: str, epsilon: float) -> str:
    found = [sum(by_key(rows, arm, name, epsilon).values()) for name in (f"{whole} found", whole)]
    return f"{found[0]:,.0f} of {found[1]:,.0f}"


STUDY = Study(
    name="synthetic",
    paper="",
    shows=(),
    question="What is text worth that a private model writes, and does it tell of the text that it learnt from?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=45,
    deviations="The bundled model of 5.3 million weights, trained whole, in place of GPT-2; invented mails in place of "
    "reviews; 1,000 documents of at most 64 tokens, 10,000 at `full`. Whole customers are protected, not single "
    "texts.",
    reads=("20newsgroups",),
)
