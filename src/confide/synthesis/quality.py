"""What a corpus is worth: hold it against real text of other units, and real text against itself.

Every figure is computed from private text without noise. No guarantee covers it.

A figure of the corpus stands beside the same figure of as many real texts that trained: as near to held-out text as
text of this source comes. Both are held against the same texts of units that did not train.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from confide.auditing.extraction import Share, compare, share
from confide.config.condition_faults import RESERVED
from confide.synthesis import divergence
from confide.synthesis.classifier import predictions
from confide.synthesis.private_text import PrivateText, Text
from confide.synthesis.students import Reader
from confide.synthesis.written import Written
from confide.utils.console import Console
from confide.utils.errors import InputError

T = TypeVar("T")

NOT_COVERED = (
    "Every figure here was measured on private text. The guarantee does not cover it: keep it in the house."
)
MOST = 2_000
"""Texts of each kind that are compared, at most; an even sample of those that there are."""
MOST_READ = 500
"""Texts of each kind that models read, at most."""
_FEWEST = 20
_RESAMPLES = 1_000


@dataclass(frozen=True)
class Value:
    """A figure, with a 95% interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measure:
    """A figure of the corpus, and the same of real text.

    Attributes:
        what: is measured.
        better: `higher` or `lower`.
        of_corpus, of_real: for `kind` "models" the released model and the base model.
        kind: `models`, or `texts`.
        difference: corpus minus real, if it has an interval of its own.
    """

    what: str
    better: str
    of_corpus: Value
    of_real: Value
    kind: str = "texts"
    difference: Value | None = None


@dataclass(frozen=True)
class Quality:
    """All figures of one corpus.

    Attributes:
        corpus: texts of the corpus that were looked at: as many as there are real ones to hold against.
        written: texts that it has.
        held_out, units: real texts of other units, and how many units these are.
        dropped: real texts that were left out since their unit trained.
        left_out: what could not be measured, and why.
    """

    corpus: int
    written: int
    held_out: int
    units: int
    dropped: int
    measures: tuple[Measure, ...]
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"covered": False, "note": NOT_COVERED}


def evaluate(written: Written, private: PrivateText, console: Console) -> Quality:
    """Measure a corpus against held-out text, in the ways that `Measure` lists.

    Raises:
        InputError: a side has too few texts to compare.
    """
    console.say("reading the private text")
    held = _sample(private.held_out())
    # As many texts on each side, else the larger side looks richer.
    count = min(MOST, len(written.texts), len(held))
    if count < _FEWEST:
        raise InputError(
            f"--evaluate takes {_FEWEST} texts on each side at least: the corpus has {len(written.texts):,}, and "
            f"{len(held):,} texts are of units that did not train"
        )
    corpus = _thinned(written.texts, count)
    trained = _sample(private.train(), count)
    held_alike = _thinned(held, count)
    measures = list(_as_counts(corpus, trained, held_alike))
    left_out: dict[str, str] = {}
    measures += _of_labels(corpus, trained, held, left_out)
    measures += _as_models_read(private, corpus, trained, held, console)
    units = len({text.unit for text in held})
    return Quality(count, len(written.texts), len(held), units, private.dropped, tuple(measures), left_out)


def _sample(texts: Iterable[T], count: int = MOST) -> list[T]:
    """Take an even sample of a stream: whenever too many are held, every second one goes."""
    held: list[T] = []
    every = 1
    for number, text in enumerate(texts):
        if number % every == 0:
            held.append(text)
        if len(held) > 4 * count:
            held, every = held[::2], 2 * every
    return _thinned(held, count)


def _thinned(texts: Sequence[T], count: int) -> list[T]:
    if len(texts) <= count:
        return list(texts)
    return [texts[place * len(texts) // count] for place in range(count)]


def _as_counts(corpus: list[Text], trained: list[Text], held: list[Text]) -> Iterator[Measure]:
    sides = [[text.text for text in texts] for texts in (corpus, trained, held)]
    for words, what in ((1, "words"), (2, "pairs of words"), (3, "runs of three words")):
        found = [Value(divergence.of_runs(side, sides[2], words)) for side in sides[:2]]
        yield Measure(f"distance of {what} (0: the same, 1: none in common)", "lower", found[0], found[1])
    found = [Value(divergence.of_lengths(side, sides[2])) for side in sides[:2]]
    yield Measure("distance of lengths (0: the same)", "lower", found[0], found[1])


def _of_labels(
    corpus: list[Text], trained: list[Text], held: list[Text], left_out: dict[str, str]
) -> Iterator[Measure]:
    """Compare shares of labels, and what classifiers learn of them from the corpus and from real text."""
    shared = set.intersection(*(set(_fields(texts)) for texts in (corpus, trained, held)))
    fields = sorted(shared - set(RESERVED))
    if not fields:
        left_out["labels"] = "the corpus has no field beside its text that the private text has as well"
    for field in fields:
        sides = [[str(text.fields[field]) for text in texts] for texts in (corpus, trained, held)]
        shares = [Value(divergence.distance(Counter(side), Counter(sides[2]))) for side in sides[:2]]
        yield Measure(f"distance of the shares of {field} (0: the same)", "lower", shares[0], shares[1])
        if len(set(sides[0])) < 2 or len(set(sides[2])) < 2:
            left_out[f"a classifier of {field}"] = "there is one value alone"
            continue
        asked = [text.text for text in held]
        right = [
            np.array(predictions([text.text for text in texts], labels, asked)) == np.array(sides[2])
            for texts, labels in zip((corpus, trained), sides[:2], strict=True)
        ]
        both = compare(*right)
        of_corpus, of_real = (_rate(share(int(own.sum()), len(own))) for own in right)
        yield Measure(
            f"accuracy on real text of a classifier of {field}",
            "higher",
            of_corpus,
            of_real,
            difference=_rate(both.difference),
        )


def _rate(found: Share) -> Value:
    return Value(found.share, found.low, found.high)


def _fields(texts: list[Text]) -> Iterator[str]:
    """Yield the fields that every text has with a plain value."""
    for name in texts[0].fields:
        if all(isinstance(text.fields.get(name), str | int | bool) for text in texts):
            yield name


def _as_models_read(
    private: PrivateText, corpus: list[Text], trained: list[Text], held: list[Text], console: Console
) -> Iterator[Measure]:
    """Let models read and learn: the released one, the base, and two students of the base."""
    released = private.released
    config = private.config
    reader = Reader(released.tokenizer, config.data.max_length, console)
    sides = {"documents": corpus, "text that trained": trained, "held-out text": held}
    rows = {name: reader.rows([text.whole for text in texts]) for name, texts in sides.items()}
    read = {name: _thinned(own, MOST_READ) for name, own in rows.items()}
    units = [text.unit for text in _thinned(held, MOST_READ)]
    base = released.base()
    of_base = {
        name: reader.losses(base, read[name], f"the base model reads the {name}")
        for name in ("documents", "held-out text")
    }
    clouds = {name: reader.points(base, own) for name, own in read.items()}
    yield Measure(
        "likeness of what texts are about, to the base model (1: the same)",
        "higher",
        Value(divergence.likeness(clouds["documents"], clouds["held-out text"])),
        Value(divergence.likeness(clouds["text that trained"], clouds["held-out text"])),
    )
    alone = [str(number) for number in range(len(read["documents"]))]
    yield Measure(
        "perplexity of the text, to the base model",
        "nearer to real text",
        _perplexity(of_base["documents"], alone),
        _perplexity(of_base["held-out text"], units),
    )
    of_release = reader.losses(
        released.model(), read["held-out text"], "the released model reads the held-out text"
    )
    yield Measure(
        "perplexity of held-out text: the released model, and the base model",
        "lower",
        _perplexity(of_release, units),
        _perplexity(of_base["held-out text"], units),
        kind="models",
    )
    students = []
    for name in ("documents", "text that trained"):
        student = reader.taught(released.base(), rows[name], f"a base model learns the {name}")
        students.append(reader.losses(student, read["held-out text"], "it reads the held-out text"))
    yield Measure(
        "perplexity of held-out text, to a base model that was taught this text",
        "lower",
        _perplexity(students[0], units),
        _perplexity(students[1], units),
    )


def _perplexity(losses: np.ndarray, units: Sequence[str]) -> Value:
    """Compute a perplexity per token of the texts' (loss, tokens), float[n, 2], with an interval over units."""
    number = np.unique(list(units), return_inverse=True)[1]
    sums = np.stack([np.bincount(number, column) for column in losses.T])
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(len(sums[0]), np.full(len(sums[0]), 1 / len(sums[0])), _RESAMPLES)
    resampled = np.exp((drawn @ sums[0]) / np.maximum(drawn @ sums[1], 1))
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Value(float(np.exp(sums[0].sum() / sums[1].sum())), float(low), float(high))
