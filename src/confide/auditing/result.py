"""Hold what the attacks on one run have found."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from confide.auditing import exposure
from confide.auditing.exposure import Exposure
from confide.auditing.extraction import Difference
from confide.auditing.game import Claim, Played, Verdict, verdict
from confide.auditing.inference import UserInference
from confide.auditing.membership import Membership
from confide.auditing.rates import Ceiling
from confide.runs.generated_canaries import Bucket


@dataclass(frozen=True)
class ExposedNumbers:
    """Exposure of the canaries' numbers.

    Attributes:
        groups: exposures of the numbers that were planted equally often, by how often; 0 for those not planted.
        most: the highest exposure that any number can have, in bits.
    """

    groups: Mapping[int, tuple[Exposure, ...]]
    most: float

    def to_json(self) -> dict[str, Any]:
        first = next(iter(self.groups.values()))[0]
        return {
            "ranks": first.method,
            "most": self.most,
            "positions": first.positions,
            "plain_positions": first.plain_positions,
            "groups": {
                f"planted {times} times" if times else "not planted": asdict(exposure.combined(own))
                | {"insertions": times, "exposures": [one.exposure for one in own]}
                | ({"intervals": [one.interval for one in own]} if first.is_estimate else {})
                for times, own in self.groups.items()
            },
        }


@dataclass(frozen=True)
class ExtractedText:
    """Text of training rows that the model writes, next to what the base model writes.

    Attributes:
        prefix, suffix: tokens given, and tokens to be written word for word.
        samples, probability: a row counts as discoverable if one of so many samples has its suffix with this
            probability (Hayes et al. 2024).
        greedy, discoverable: shares of rows.
    """

    prefix: int
    suffix: int
    samples: int
    probability: float
    greedy: Difference
    discoverable: Difference

    def to_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("prefix", "suffix", "samples", "probability")}
        return numbers | {"greedy": self.greedy.to_json(), "discoverable": self.discoverable.to_json()}


@dataclass(frozen=True)
class Audit:
    """Result of the attacks on a trained run. A part is None where its attack was not made.

    Attributes:
        claim: what the run claims after `steps` steps.
        steps: steps that were taken.
        game: how the canaries were played: "presence", "value" or "mask".
        games: guesses about the canaries, one result for each thing that they were guessed from.
        by_perplexity: what was learnt of canaries, by their perplexity under the base model; empty if unknown.
        ceiling: the best membership rates that the claim allows; None where it does not bound them.
        exposure, membership, users, extraction: results of the other attacks.
        left_out: attacks that say nothing about this run, and why.
    """

    claim: Claim
    steps: int
    game: str | None = None
    games: tuple[Played, ...] = ()
    by_perplexity: tuple[Bucket, ...] = ()
    ceiling: Ceiling | None = None
    exposure: ExposedNumbers | None = None
    membership: Membership | None = None
    users: UserInference | None = None
    extraction: ExtractedText | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim.

        "violation" if it is refuted; "consistent" if it could have been refuted and was not; "underpowered" if the
        attacks could not have refuted it; "not attacked"; or "nothing claimed".
        """
        return verdict(self.claim, self.games)

    def evidence(self) -> tuple[str, ...]:
        """Return what a guarantee may state of the games, a line each.

        Guesses from noised sums subtract what all real units added. That is private, so they are left out.
        """
        shown = [game for game in self.games if game.view != "steps"]
        return tuple(f"audit by canaries: {game.verdict()}; {game.in_words(self.claim)}" for game in shown)

    def to_json(self) -> dict[str, Any]:
        """Return all facts, as `confide audit --json` prints them. A part that is None has no key."""
        parts: dict[str, Any] = {
            name: part.to_json()
            for name in ("ceiling", "exposure", "membership", "users", "extraction")
            if (part := getattr(self, name)) is not None
        }
        if self.game is not None:
            parts["game"] = self.game
            parts["games"] = [game.to_json() | {"words": game.in_words(self.claim)} for game in self.games]
        if self.by_perplexity:
            parts["by_perplexity"] = [asdict(bucket) for bucket in self.by_perplexity]
        facts = {"verdict": self.verdict, "claim": self.claim.to_json(), "steps": self.steps}
        return facts | parts | {"left_out": dict(self.left_out)}
