"""Say how strong the figures of a claim are, and what makes them weak: a large epsilon, a large delta, many guesses."""

from decimal import Decimal

from confide.utils.rounding import at_least, at_most
from confide.utils.sentences import many

STRONG, REASONABLE = 1.0, 10.0
"""Greatest epsilon of the first and of the second tier of Ponomareva et al. 2023 ("How to DP-fy ML"), section 5.2."""

HARDLY = 20.0
"""Above this epsilon a claim says next to nothing: our choice. A guess of one in 480 million may become certain."""

LARGE = 1e-3
"""A delta above this is large however many units there are."""

PRODUCT = 0.01
"""The number of units times delta should not exceed this."""

MISSED = "what is missed there is trained on without noise and may be recovered word for word"
"""How the reason of an estimate ends that rests on a detector of which nobody claims that it finds all."""

TAUGHT = "what an earlier run taught the base model"
"""How the line of what is not covered begins that tells of an earlier run."""

_HARD, _GUESSED = 1e-6, 0.05
"""What no bound should rule in: that a guess of the first chance becomes one of the second."""

LARGE_DELTA = "delta is large"
"""How the warning begins of a delta that is large for so many units."""

WEAK = ("delta = ", LARGE_DELTA, "These bounds are weak", "Under other suppositions")
"""How the sentences of a claim begin that say how little it may be worth."""


def weaknesses(
    delta: float,
    units: int | None,
    advantage: float,
    reconstruction: tuple[tuple[float, float], ...],
    about: str = "",
) -> list[str]:
    """Write what makes bounds worth little, a sentence for each reason.

    Args:
        units: how many there are; None if nobody may know.
        advantage: at most that of an attacker who tells whether a unit was used.
        reconstruction: pairs of the chance of a right guess before and, at most, after the output was studied.
        about: a word before the number of units, if it is not exact.
    """
    words = []
    if delta > LARGE:
        words.append(
            f"delta = {at_most(delta, 3)} is large. With about that chance the bound by epsilon may not hold at all."
        )
    if units is not None and (warning := large_delta(units, delta, about)):
        words.append(warning)
    if advantage > 0.9 or max(r for _, r in reconstruction) > 0.5:
        words.append(
            "These bounds are weak. They do not rule out that a determined attacker tells whether one unit was used. "
            "Nor do they rule out that something easy to guess is recovered."
        )
    elif any(p <= _HARD and r - delta > _GUESSED for p, r in reconstruction):
        words.append("These bounds are weak. They do not rule out that something hard to guess is recovered.")
    return words


def large_delta(units: int, delta: float, about: str = "") -> str | None:
    """Return a warning if delta is not small compared with the number of units, else None."""
    product = float(units * Decimal(repr(float(delta))))  # 600 * 1e-4 is 0.06, not a little more
    if product <= PRODUCT:
        return None
    harm = (
        "one unit, drawn by lot, with a chance of that product"
        if product <= 1
        else "so many units, drawn by lot,"
    )
    return (
        f"{LARGE_DELTA} for {about}{many(units, 'unit')}: their product is {at_most(product, 2)}. A program that "
        f"gives away all text of {harm} would be within this delta too. A delta of at "
        f"most {at_least(PRODUCT / units, 2)} (privacy.delta) keeps the product at {PRODUCT} or below."
    )
