"""Does a corpus tell of the text that the model learnt from? Attacks that need that text, and text of other units.

All of them compare text that trained with text of units that did not: a corpus resembles both where people write alike,
and only what it shares with the first alone can come from it. No attack can show that nothing leaks.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from confide.auditing.extraction import Share, share
from confide.auditing.rates import Rates, rates
from confide.privacy import mechanisms
from confide.privacy.guarantee import Guarantee
from confide.runs.canaries import FILE, Manifest
from confide.synthesis.classifier import features, rarity, weighed
from confide.synthesis.common_runs import Corpus
from confide.synthesis.private_text import PrivateText, Text
from confide.synthesis.remembered import NOT_OWN
from confide.synthesis.written import Written
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.rounding import percent_at_most
from confide.utils.sentences import bare

LISTED = 10
"""Longest runs that are listed."""
_BLOCK = 2_000  # texts whose neighbours are looked for at a time
_FEWEST = 10  # units on each side
_DIGITS = 4  # shorter numbers stand in many texts by chance


@dataclass(frozen=True)
class Runs:
    """The longest runs of words that documents of the corpus share with real text.

    Attributes:
        median, most: of the longest runs, in words.
    """

    texts: int
    words: int
    median: float
    most: int


@dataclass(frozen=True)
class Long:
    """One of the longest runs.

    Attributes:
        document: its number in the corpus, counted from 1.
        words: how long it is.
        trained, held_out: how many units have written it.
    """

    document: int
    words: int
    trained: int
    held_out: int


@dataclass(frozen=True)
class Planted:
    """Canaries that stand in the corpus, word for word.

    Attributes:
        planted, found: how many trained, and how many of these were found.
        absent, found_absent: the same of canaries, or of texts in their place, that did not train: chance.
        rate, chance: of these.
        p_value: of "planted ones are not found more often" (Fisher's exact test, one-sided).
    """

    planted: int
    found: int
    absent: int
    found_absent: int
    rate: Share
    chance: Share
    p_value: float


@dataclass(frozen=True)
class Leaks:
    """What attacks found in one corpus.

    Attributes:
        all_trained: the longest runs with all text that trained.
        trained, held_out: with as many words of each, so that they compare.
        nearer: share of the documents whose run with `trained` is longer than that with `held_out`, of those with a
            longer one; None if no document has one.
        differing: how many have one.
        longest: the longest runs with the text that trained.
        planted: None if no canaries were planted.
        membership: how well units that trained are told from others, by each score.
        bound: what the guarantee says of such attacks; that it says nothing, of a file that the run did not write.
        left_out: what could not be done, and why.
    """

    documents: int
    all_trained: Runs
    trained: Runs
    held_out: Runs
    nearer: Share | None
    differing: int
    longest: tuple[Long, ...]
    planted: Planted | None
    membership: dict[str, Rates]
    bound: str
    left_out: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        found = asdict(self) | {"covered": False}
        found["membership"] = {name: each.to_json() for name, each in self.membership.items()}
        return found


def attack(written: Written, private: PrivateText, console: Console, is_own: bool = True) -> Leaks:
    """Attack a corpus with the text of the run at hand.

    Args:
        is_own: the run remembers writing this corpus.

    Raises:
        InputError: there is no text of other units.
    """
    texts = [text.text for text in written.texts]
    corpus = Corpus(texts)
    left_out: dict[str, str] = {}
    console.say("reading the held-out text")
    held = list(private.held_out())
    if not held:
        raise InputError("--leaks: no text of units that did not train is left to compare with")
    with_held = corpus.longest(text.text for text in held)
    amount = _words(held)

    console.say("reading the text that trained")
    trained = _Counting(private.train())
    with_all = corpus.longest(trained)
    alike = _alike(private, trained.words, amount)
    with_alike = corpus.longest(text.text for text in alike)
    longer = int((with_alike.of_corpus > with_held.of_corpus).sum())
    shorter = int((with_alike.of_corpus < with_held.of_corpus).sum())
    if not longer + shorter:
        left_out["which side is nearer"] = "every document has as long a run with one side as with the other"

    members = {"the longest run of words": (with_alike.of_others, with_held.of_others)}
    cosine = _Nearest(texts)
    members["the nearest document"] = (cosine.of(alike), cosine.of(held))
    membership = {}
    for name, (of_alike, of_held) in members.items():
        sides = _by_unit(alike, of_alike), _by_unit(held, of_held)
        if min(map(len, sides)) < _FEWEST:
            left_out["membership"] = (
                f"it takes {_FEWEST} units on each side, and there are {min(map(len, sides))}"
            )
        else:
            membership[name] = rates(*sides, fprs=(0.01,))
    planted = _planted(private, texts, left_out)
    return Leaks(
        documents=len(texts),
        all_trained=_runs(with_all.of_corpus, trained.texts, trained.words),
        trained=_runs(with_alike.of_corpus, len(alike), _words(alike)),
        held_out=_runs(with_held.of_corpus, len(held), amount),
        nearer=share(longer, longer + shorter) if longer + shorter else None,
        differing=longer + shorter,
        longest=tuple(_longest(texts, with_all.of_corpus, with_all.at, private, held)),
        planted=planted,
        membership=membership,
        bound=bound(private.released.guarantee, mechanisms.needs_of(private.config).named_unit)
        if is_own
        else NOT_OWN,
        left_out=left_out,
    )


def bound(guarantee: Guarantee, of_units: bool = True) -> str:
    """Say what a guarantee bounds of what a corpus tells.

    Args:
        of_units: the units of the attacks, which are those of `data.unit`, are those of the claim.
    """
    if guarantee.notion == "none":
        return "Nothing is claimed of this model, so nothing bounds what its text tells."
    unit, doubt = (
        bare(guarantee.unit),
        "" if guarantee.theorem else " The claim is an estimate, and so is this.",
    )
    if not of_units:
        return (
            f"The guarantee bounds what the text tells of one unit ({unit}). The attacks here are on all text of one "
            f"owner or document, and the guarantee does not bound these.{doubt}"
        )
    return (
        f"The guarantee bounds what the text tells of one unit ({unit}): whoever says wrongly of 1% of the "
        "units that did not train that they did, says it rightly of at most "
        f"{percent_at_most(guarantee.true_positive_rate)} of those that did. It does not bound how long a run of words "
        f"is that many units wrote.{doubt}"
    )


def _words(texts: Iterable[Text]) -> int:
    return sum(len(text.text.split()) for text in texts)


class _Counting:
    """Hands on the texts of a stream, and counts them and their words."""

    def __init__(self, source: Iterable[Text]):
        self._source, self.texts, self.words = source, 0, 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            self.texts += 1
            self.words += len(text.text.split())
            yield text.text


def _alike(private: PrivateText, whole: int, words: int) -> list[Text]:
    """Take every so manieth unit that trained, so that their texts have about `words` of the `whole` words."""
    every = max(1, round(whole / max(1, words)))
    numbers: dict[str, int] = {}
    found = []
    for text in private.train():
        number = numbers.setdefault(text.unit, len(numbers))
        if number % every == 0:
            found.append(text)
    return found


def _runs(longest: np.ndarray, texts: int, words: int) -> Runs:
    return Runs(texts, words, float(np.median(longest)), int(longest.max(initial=0)))


def _longest(
    texts: Sequence[str], words: np.ndarray, at: np.ndarray, private: PrivateText, held: list[Text]
) -> Iterator[Long]:
    """Yield the documents with the longest runs, each with the number of units that wrote the run."""
    places = [place for place in np.argsort(-words, kind="stable")[:LISTED].tolist() if words[place]]
    runs = {
        place: f" {' '.join(texts[place].split()[at[place] : at[place] + words[place]])} " for place in places
    }
    wrote: list[dict[int, set[str]]] = [{place: set() for place in places} for _ in range(2)]
    for side, source in enumerate((private.train(), iter(held))):
        for text in source:
            spaced = f" {' '.join(text.text.split())} "
            for place, run in runs.items():
                if run in spaced:
                    wrote[side][place].add(text.unit)
    for place in places:
        yield Long(place + 1, int(words[place]), *(len(side[place]) for side in wrote))


def _by_unit(texts: Sequence[Text], scores: np.ndarray) -> np.ndarray:
    """Return the highest score of each unit: float64[units]."""
    found: dict[str, float] = {}
    for text, score in zip(texts, scores.tolist(), strict=True):
        found[text.unit] = max(found.get(text.unit, score), score)
    return np.array(list(found.values()), dtype=np.float64)


class _Nearest:
    """Finds each text's nearest document of a corpus, by the cosine of TF-IDF."""

    def __init__(self, corpus: Sequence[str]):
        own = features(corpus)
        self._weights = rarity(own)
        self._corpus = weighed(own, self._weights).T.tocsc()

    def of(self, texts: Sequence[Text]) -> np.ndarray:
        """Return the cosine of each text's nearest document: float64[texts]."""
        found = []
        for first in range(0, len(texts), _BLOCK):
            own = features([text.text for text in texts[first : first + _BLOCK]])
            found.append((weighed(own, self._weights) @ self._corpus).max(axis=1).toarray().ravel())
        return np.concatenate(found) if found else np.zeros(0)


def _planted(private: PrivateText, texts: Sequence[str], left_out: dict[str, str]) -> Planted | None:
    if not (private.run.data / FILE).is_file():
        left_out["canaries"] = "none were planted (canaries.count)"
        return None
    found = counted(texts, *canary_marks(Manifest.load(private.run.data)))
    if found is None:
        left_out["canaries"] = "all of them trained, or none, so there is no chance to compare with"
    return found


def canary_marks(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Return what tells of the canaries that trained, and of those that did not though they might have.

    It is a canary's number if that is long enough to be rare, else its text.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for canary in manifest.canaries:
        numbers = canary.secrets if len("".join(canary.secrets[:1])) >= _DIGITS else ()
        for place, mark in enumerate(numbers or canary.contents):
            sides[place != canary.coin].append(mark)
    return sides


def counted(texts: Sequence[str], inside: Sequence[str], outside: Sequence[str]) -> Planted | None:
    """Count the canaries that stand in a corpus, word for word; None if there are none on one side."""
    if not inside or not outside:
        return None
    whole = "\n".join(" ".join(text.split()) for text in texts)
    found, by_chance = (sum(_stands(mark, whole) for mark in own) for own in (inside, outside))
    table = [[found, len(inside) - found], [by_chance, len(outside) - by_chance]]
    return Planted(
        len(inside),
        found,
        len(outside),
        by_chance,
        share(found, len(inside)),
        share(by_chance, len(outside)),
        float(stats.fisher_exact(table, alternative="greater").pvalue),
    )


def _stands(mark: str, whole: str) -> bool:
    """Tell whether a mark stands in a text, and not as a part of a longer word or number."""
    mark = " ".join(mark.split())
    return re.search(rf"(?<!\w){re.escape(mark)}(?!\w)", whole) is not None
