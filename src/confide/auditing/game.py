"""The game that a claim defines, and its outcome: a violation, consistent with the claim, or underpowered.

The players, the meaning of their coins and the curve that they are held against follow from the run's own records, so
that no claim is attacked at another unit or adjacency than its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from confide.auditing.bounds import Plan, ceiling_epsilon, ceiling_p_value, count_correct, guess, one_run
from confide.auditing.fdp import f_dp_least_correct, f_dp_p_value, f_dp_refutes, least_epsilon
from confide.privacy.accounting import DominatingPair, PrivacyProfile, between
from confide.privacy.mechanisms.values import PRESENCE, Game
from confide.runs.canaries import Canary, Manifest
from confide.utils.errors import InputError
from confide.utils.plain import plain
from confide.utils.rounding import at_least, at_most, percent_at_least

if TYPE_CHECKING:
    from confide.auditing.repeated import Repeated

ALPHA = 0.05
SHARE = 1 / 3
"""The share of the coins that is guessed by default."""

RARE, SURE = 0.5, 0.8
"""Below this share of those who are in, the drawn are few; and the share of the drawn who are then guessed to be in."""

COARSE = 1e-3

Verdict = Literal["violation", "consistent", "underpowered", "nothing claimed", "not attacked"]


@dataclass(frozen=True)
class Family:
    """The claimed mechanism with other amounts of noise.

    Attributes:
        curve, zeroed: functions from a noise multiplier to the curves that `Claim` holds under these names.
        noise: the claimed multiplier.
    """

    curve: Callable[[float], PrivacyProfile]
    zeroed: Callable[[float], PrivacyProfile]
    noise: float

    @classmethod
    def of(cls, process: DominatingPair, zeroed: DominatingPair, noise: float) -> "Family":
        """Build the family on a coarse grid.

        A coarse grid is five times as fast, and epsilon is larger on it by parts in ten thousand.
        """
        curve = _remembered(process)
        return cls(curve, curve if zeroed == process else _remembered(zeroed), noise)


def _remembered(process: DominatingPair) -> Callable[[float], PrivacyProfile]:
    """Cache the curve of each noise: every bound of every game begins its search at the same noises."""
    return lru_cache(maxsize=16)(partial(process.curve, interval=COARSE))


@dataclass(frozen=True)
class Claim:
    """The claim that is attacked.

    Attributes:
        unit, adjacency: in the words of the guarantee.
        epsilon, delta: as claimed; epsilon is inf if nothing is claimed.
        curve: the curve that the claim rests on; None if nothing is claimed.
        one_row: whether the unit is one row.
        game: what a canary's coin decides.
        zeroed: the curve that bounds any guesser of a unit's text; None if nothing is claimed.
        family: used for bounds on epsilon from the whole curve; None: there are no such bounds.
    """

    unit: str
    adjacency: str
    epsilon: float
    delta: float
    curve: PrivacyProfile | None
    one_row: bool
    game: Game = PRESENCE
    zeroed: PrivacyProfile | None = None
    family: Family | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the claim as it is written into results; an infinite epsilon is text, since JSON has no infinity."""
        found: dict[str, Any] = plain(
            {name: getattr(self, name) for name in ("unit", "adjacency", "epsilon", "delta")}
        )
        return found

    def players(self, manifest: Manifest) -> np.ndarray:
        """Return the numbers of the canaries that are one unit each of this claim: int64.

        Raises:
            InputError: there is none, for example because each stands in several rows and the claim is for one row.
        """
        fits = [i for i, canary in enumerate(manifest.canaries) if self._is_one_unit(canary)]
        if not fits:
            raise InputError(
                f"canaries.insertions: every canary stands in several rows, and the claim is for {self.unit}: such a "
                "game is about another unit than the claim's; plant some with insertions: 1"
            )
        return np.array(fits)

    @cached_property
    def played(self) -> PrivacyProfile | None:
        """The curve of the coin's choice.

        If the claim compares each of two texts with none, the two are further apart than the claim says.
        """
        return None if self.curve is None else self._played(self.curve)

    def _played(self, curve: PrivacyProfile) -> PrivacyProfile:
        return between(curve) if self.of_two_texts else curve

    def least_played(self, refuted: Callable[[PrivacyProfile], bool]) -> float | None:
        """Return the epsilon of the played game at the least noise of the claimed mechanism that a test refutes.

        Formal guarantee: as in `fdp.f_dp`: it holds for this mechanism with any noise, and with probability 1 - alpha
        of the test. None if no family is known.
        """
        family = self.family
        if family is None or not 0 < self.delta < 1:
            return None
        return least_epsilon(
            lambda noise: self._played(family.curve(noise)), refuted, self.delta, family.noise
        )

    def least_zeroed(self, refuted: Callable[[PrivacyProfile], bool]) -> float | None:
        """Return the same bound as `least_played` for a guesser of a unit's text."""
        if self.family is None or not 0 < self.delta < 1:
            return None
        return least_epsilon(self.family.zeroed, refuted, self.delta, self.family.noise)

    @property
    def of_two_texts(self) -> bool:
        """True if the played game is wider than the claim."""
        return self.game.compares_contents and self.adjacency == "zero-out"

    def _is_one_unit(self, canary: Canary) -> bool:
        return canary.insertions == 1 or not self.one_row


@dataclass(frozen=True)
class Played:
    """The outcome of a game.

    Attributes:
        view: what the guesser saw: the released model ("release"), or every noised sum ("steps"); "numbers": the
            released model, and the one guess is a number.
        coins, guesses, correct: m, r and v.
        needed: the fewest right guesses that would have refuted the claim; None where not even all would have.
        p_value: p-value of the claim's own curve.
        bound: a lower bound on epsilon at the claim's delta that holds for any mechanism, by Steinke et al. 2023; for
            numbers by `bounds.ceiling_epsilon`.
        strongest: the same, had every guess been right.
        confidence: of each bound, for this game alone.
        own_bound, own_strongest: the same two bounds for the claimed mechanism with any noise, by its whole curve;
            None if that is not known.
    """

    view: str
    coins: int
    guesses: int
    correct: int
    needed: int | None
    p_value: float
    bound: float
    strongest: float
    confidence: float
    own_bound: float | None = None
    own_strongest: float | None = None

    def verdict(self) -> Verdict:
        """Judge by this game alone.

        A number that was not found does not make a run consistent: few trainers, broken or not, make it the likeliest
        one.
        """
        if self.needed is not None and self.correct >= self.needed:
            return "violation"
        return "underpowered" if self.needed is None or self.view == "numbers" else "consistent"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict()}

    def in_words(self, claim: Claim) -> str:
        """Describe the guesses, what they show, and the most that they could have shown."""
        told, shown = self._told(), shown_in_words(self, claim, claim.of_two_texts and self.view != "numbers")
        if claim.curve is None:
            return f"{told}; {shown}"
        if self.needed is None:
            return f"{told}; not even all of them would refute epsilon {at_most(claim.epsilon)}: {shown}"
        return f"{told}, and {self.needed} would refute epsilon {at_least(claim.epsilon)}; {shown}"

    def _told(self) -> str:
        if self.view == "numbers":
            return (
                f"of the numbers of {self.coins} canaries {self.correct} is what the released model finds more likely "
                "than all that no canary has"
            )
        seen = {"release": "the released model", "steps": "every noised sum"}[self.view]
        return f"from {seen}, {self.correct} of {self.guesses} guesses about {self.coins} coins were right"


def shown_in_words(found: "Played | Repeated", claim: Claim, of_two_texts: bool) -> str:
    """Describe lower bounds on epsilon, each with the largest that the game could have shown."""
    between = " for one text against another" if of_two_texts else ""
    words = (
        f"with {percent_at_least(found.confidence)} confidence this shows epsilon >= {at_least(found.bound, places=2)} "
        f"at delta {at_least(claim.delta, 3)}{between}, whatever the mechanism, and "
        f"{at_most(found.strongest, places=2)} is the most that it could have shown"
    )
    if found.own_bound is None or found.own_strongest is None:
        return words
    return (
        f"{words}; of this mechanism with any noise it shows epsilon >= {at_least(found.own_bound, places=2)}, at most "
        f"{at_most(found.own_strongest, places=2)}"
    )


def play(
    claim: Claim,
    view: str,
    scores: np.ndarray,
    coins: np.ndarray,
    guesses: int | None = None,
    alpha: float = ALPHA,
    seen: float = 1.0,
) -> Played:
    """Guess the coins by scores and compare.

    Formal guarantee: if the claim holds, the verdict is "violation" with probability at most alpha
    (`fdp.f_dp_p_value`), for coins that are fair and independent of all else, scores computed only from what the claim
    covers, and a number of guesses that was fixed before.

    Args:
        scores: float64[m], higher where a canary is more likely in, or holds the first of its texts.
        coins: bool[m], whether the canary is in, or holds the first of its texts.
        guesses: r; default: a third of m, at least 1.
        alpha: probability of a false alarm of this game.
        seen: the probability that a canary which is in was ever drawn. If it is below a half, those who were are few:
            fewer guesses are made, all of them that somebody is in.

    Raises:
        InputError: more guesses than coins.
    """
    m = len(coins)
    plan = planned(m, guesses, seen)
    correct = count_correct(guess(scores, plan), coins)
    needed, p_value = None, 1.0
    curve = claim.played
    if curve is not None:
        needed = f_dp_least_correct(curve, m, plan.guesses, alpha)
        p_value = f_dp_p_value(curve, m, plan.guesses, correct)
    delta, r = claim.delta, plan.guesses

    def by_curve(right: int) -> float | None:
        return claim.least_played(lambda curve: f_dp_refutes(curve, m, r, right, alpha))

    return Played(
        view,
        m,
        r,
        correct,
        needed,
        p_value,
        one_run(m, r, correct, delta, alpha),
        one_run(m, r, r, delta, alpha),
        1 - alpha,
        by_curve(correct),
        by_curve(r),
    )


def planned(m: int, guesses: int | None, seen: float) -> Plan:
    """Choose how to guess the coins of m canaries, from what is known before any score is seen; see `play`."""
    r = max(1, round(SHARE * m)) if guesses is None else guesses
    return Plan(r) if seen >= RARE else Plan(max(1, min(r, round(SURE * seen * m / 2))), "in")


def play_numbers(claim: Claim, lead: bool, choices: np.ndarray, alpha: float = ALPHA) -> Played:
    """Guess that the number which the model finds most likely is one of the guessed canaries' numbers.

    It is the most likely of all numbers that no canary holds or that a guessed canary holds.

    Formal guarantee: if the claim holds, the verdict is "violation" with probability at most alpha. Given all other
    units, a number is uniform among its `choices`, so whatever follows from the model is that number with probability
    at most `claim.zeroed`'s reconstruction(1 / choices), and one of n numbers with at most the sum of these.

    Args:
        claim: the claim to test.
        lead: whether the most likely number is a guessed one.
        choices: int64[n], how many values each guessed number might have had, as far as the claim hides it.
        alpha: probability of a false alarm of this game.
    """
    n, delta = len(choices), claim.delta

    def p_value(curve: PrivacyProfile, right: int) -> float:
        return ceiling_p_value(n, right, float(np.mean(curve.reconstruction(1 / choices))), independent=False)

    def by_curve(right: int) -> float | None:
        return claim.least_zeroed(lambda curve: p_value(curve, right) <= alpha)

    return Played(
        "numbers",
        n,
        1,
        int(lead),
        1 if claim.zeroed is not None and p_value(claim.zeroed, 1) <= alpha else None,
        1.0 if claim.zeroed is None else p_value(claim.zeroed, int(lead)),
        ceiling_epsilon(choices, int(lead), delta, alpha),
        ceiling_epsilon(choices, 1, delta, alpha),
        1 - alpha,
        by_curve(int(lead)),
        by_curve(1),
    )


def verdict(claim: Claim, games: Sequence[Played]) -> Verdict:
    """Combine the verdicts of all games, each of which was played at its share of alpha."""
    if claim.curve is None:
        return "nothing claimed"
    if not games:
        return "not attacked"
    found = {game.verdict() for game in games}
    for worst in ("violation", "consistent"):
        if worst in found:
            return worst
    return "underpowered"
