"""Tell in words what to expect of a plan: whether there are enough units for the noise that hides one of them."""

import math
from typing import TYPE_CHECKING, Any

from confide.config.schedule import ADAMS
from confide.data.shape import Shape
from confide.planning import rates
from confide.planning.progress import gradients_in_noise, signal
from confide.privacy import mechanisms
from confide.privacy.correlated_noise import INDEPENDENT, compared_rates
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.strength import HARDLY, REASONABLE
from confide.utils.rounding import at_most
from confide.utils.sentences import many

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.planning.cost import Size
    from confide.planning.plan import PlannedSetting

MOST, PART = 1.8, 15.0
"""Noise up to which most, or a quarter, of the gain was reached, as a multiple of the gradient's length.

Chosen by hand, between measured runs of the bundled model, all of whose weights train: `benchmarks/verdict.py` lists
them.
"""

FAR = 2.0
"""By what factor a learning rate is far from the rule's."""

GRADES = {"most": "good", "part": "costly", "little": "poor"}
"""What to expect, in a word."""

UNPROTECTED = "hardly any protection"
"""The word where epsilon is so large that it does not matter what to expect."""

_MEASURED = (
    "measured with the bundled model, as shares of what training without privacy gains: on posts 86% at 1.0 times "
    "and 82% at 2.3, on mail 43% at 16 (too high: training without privacy was not tuned), on made-up "
    "customers 43% and 46% at 3 and 19% at 29, with correlated noise and `privacy.scales` 55% to 64% at 1.5 to 2.1, "
    "and with `privacy.common_tokens` as well 67% and 68% at 1.5, in one run each; a rule of thumb for other models, "
    "adapters and texts"
)


def verdict(config: "Config", shape: Shape, size: "Size", chosen: "PlannedSetting") -> dict[str, Any] | None:
    """Predict what a setting is likely to gain, by its noise on a gradient relative to the gradient.

    *No guarantee*: it follows from the shape of the data and from constants, as a suggestion does.

    Args:
        chosen: the config's own setting.

    Returns:
        `noise_over_gradient`; `expect`, which is "most", "part" or "little" of what training without privacy
        gains; `grade`, a word for it; about how many units, with the same chance of each and as many steps, it
        takes for part and for most; the `learning_rate` of the same rule, None if it knows none; the `basis` of it
        all; and `words`.
        Correlated noise counts as independent noise that leaves as much in the weights. None if no such rule is known:
        other optimisers and mechanisms, no noise.
    """
    mechanism = mechanisms.build(config)
    known = bool(mechanism.suggested_caps) and config.train.optimizer in ADAMS
    if not known or not chosen.noise_multiplier:
        return None
    left = signal(mechanism, chosen.rows_per_unit)
    noise = chosen.noise_per_gradient * _left_in_weights(mechanism)
    times = math.sqrt(gradients_in_noise(noise, left, size))
    expect = expected(times)
    protected = mechanism.parameters(shape).units
    units = {name: _about(protected * times / limit) for name, limit in (("part", PART), ("most", MOST))}
    rate = rates.of_config(config, mechanism, size, chosen.noise_per_gradient, chosen.rows_per_unit)
    return {
        "noise_over_gradient": times,
        "expect": expect,
        "grade": GRADES[expect] if _protects(chosen.epsilon) else UNPROTECTED,
        "units_for_part": units["part"],
        "units_for_most": units["most"],
        "learning_rate": rate,
        "basis": _MEASURED,
        "words": _in_words(
            expect,
            _noise(times, mechanism.correlation.is_independent),
            protected,
            units,
            chosen.epsilon,
            "unit" if protected == shape.units else "row",
        )
        + _on_rate(rate, config.train.learning_rate, rates.untried(config, size)),
    }


def _on_rate(by_rule: float | None, own: float, untried: list[str]) -> list[str]:
    """Say which learning rate the rule has, if the config's is far from it."""
    if by_rule is None or by_rule / FAR < own < by_rule * FAR:
        return []
    but = f"; nobody has tried it with {' and '.join(untried)}" if untried else ""
    return [
        f"the learning rate is {own:g}; by the same rule about {by_rule:g} suits these steps and this noise{but}"
    ]


def _protects(epsilon: float | str | None) -> bool:
    return not isinstance(epsilon, float) or epsilon <= HARDLY


def _left_in_weights(mechanism: Mechanism) -> float:
    """Return the noise that stays in the weights, over that of independent noise of a first step's length."""
    if mechanism.correlation.is_independent:
        return 1.0
    rates = compared_rates(mechanism.steps, mechanism.schedule, mechanism.warmup)
    return mechanism.correlation.noise_in_weights(rates) / INDEPENDENT.noise_in_weights(rates)


def _noise(times: float, is_independent: bool) -> str:
    if is_independent:
        return f"the noise of a step is about {shown(times)} times as long as the gradient"
    return (
        "the noise, which is correlated over steps, leaves as much in the weights as independent noise about "
        f"{shown(times)} times as long as the gradient"
    )


def expected(times: float) -> str:
    """Return what to expect of a step's noise that is so many times as long as the gradient: a key of `GRADES`."""
    return "most" if times <= MOST else "part" if times <= PART else "little"


def shown(times: float) -> str:
    """Write how many times as long noise is, with two digits."""
    return f"{times:.2g}" if times < 99.5 else f"{float(f'{times:.2g}'):,.0f}"


def _about(number: float) -> int:
    """Round up to two digits."""
    step: int = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / step) * step


def _in_words(
    expect: str, noise: str, units: int, needed: dict[str, int], epsilon: float | str | None, noun: str
) -> list[str]:
    target = f" for epsilon {at_most(epsilon, 3)}" if isinstance(epsilon, float) else ""
    if isinstance(epsilon, float) and epsilon > REASONABLE:
        target += ", which protects little" if _protects(epsilon) else ", which protects next to nothing"
    people = many(units, noun)
    if expect == "most":
        return [
            f"{people} are enough{target}: {noise}; expect most of what training without privacy gains",
        ]
    more = f"about {needed['most']:,} {noun}s for most of it"
    if expect == "part":
        first = f"{people} are few{target}: {noise}; expect a quarter or more of what training without privacy gains"
    else:
        first = (
            f"too few {noun}s{target}: with {people} {noise}; expect less than a quarter of what training without "
            "privacy gains, perhaps nothing; one text, mail, kept more"
        )
        more = (
            f"about {needed['part']:,} {noun}s for a quarter of what training without privacy gains, {more}"
        )
    return [
        first,
        f"at the same chance of each and as many steps it takes {more}; a larger epsilon or other steps and batches "
        "(`confide plan --suggest`) may do with fewer",
    ]
