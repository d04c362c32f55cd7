"""Say in four short answers what a run protects: who, from whom, how strongly, and what it cost."""

import math
from dataclasses import dataclass

from confide.privacy.guarantee import Guarantee
from confide.reporting.facts import Facts, Measured
from confide.runs.loop import gap_closed
from confide.utils.rounding import at_most, percent_at_most

STRONG, REASONABLE = 1.0, 10.0
"""Greatest epsilon of the first and of the second tier of Ponomareva et al. 2023 ("How to DP-fy ML"), section 5.2."""

_OF_DP = ("(epsilon, delta)-DP", "user-level DP", "multi-owner user-level DP")

VERDICTS = {
    "violation": "The attacks refute the claim. Do not give this model away.",
    "consistent": "The attacks could have refuted the claim, and did not.",
    "underpowered": "The attacks were too weak to refute the claim. They say nothing about it.",
    "not attacked": "No made-up units were planted, so the claim itself was not attacked.",
    "nothing claimed": "There is no claim to attack.",
}
"""What each verdict of an audit means, for a reader."""


@dataclass(frozen=True)
class Answer:
    """One of the four answers.

    Attributes:
        question: such as "Who is protected?"
        short: a few words, in large letters.
        sentences: the answer.
        figures: what belongs to the few words where there is no room for sentences; "" if nothing.
    """

    question: str
    short: str
    sentences: tuple[str, ...]
    figures: str = ""


def answers(facts: Facts) -> list[Answer]:
    """Return the four answers."""
    guarantee = facts.guarantee
    cost = _cost(facts)
    if guarantee.notion == "none":
        return [
            Answer("Who is protected?", "Nobody", ("This model was trained without privacy.",)),
            Answer(
                "From whom?",
                "Nobody",
                (
                    "Anyone who has the model may find out whose text was used.",
                    "Anyone who has the model may get text back, word for word.",
                ),
            ),
            Answer("How strongly?", "Not at all", ("Treat the model as you treat the texts themselves.",)),
            cost,
        ]
    return [_who(guarantee), _from_whom(guarantee), _how_strongly(guarantee), cost]


def _who(guarantee: Guarantee) -> Answer:
    sentences = ["Each such unit is protected, whoever it belongs to."]
    if guarantee.units is not None:
        sentences.append(f"There are {guarantee.units:,} such units.")
    units = "" if guarantee.units is None else f"{guarantee.units:,} units"
    return Answer("Who is protected?", _capital(guarantee.unit), tuple(sentences), units)


def _from_whom(guarantee: Guarantee) -> Answer:
    return Answer(
        "From whom?",
        "Everyone who gets the model",
        (
            f"What may be given away is {_bare(guarantee.protected_output)}.",
            "The claim holds even against someone who knows all other text.",
            "Whoever trains the model sees the text. The claim is not about them.",
        ),
    )


def _how_strongly(guarantee: Guarantee) -> Answer:
    sentences = []
    if not guarantee.theorem:
        sentences.append("These figures are an estimate. They are not proved; the reasons stand below.")
    found = percent_at_most(guarantee.true_positive_rate)
    sentences.append(
        f"Someone tests whether a unit was used, and is wrong about 1% of those that were not. "
        f"The test then finds at most {found} of those that were."
    )
    sentences.append(f"Epsilon is {at_most(guarantee.epsilon)} at delta {at_most(guarantee.delta, 3)}.")
    if guarantee.notion in _OF_DP:
        sentences.append(_tier(guarantee.epsilon))
    if guarantee.weakness():
        sentences.append("The claim is weak for a reason that stands in its plain words.")
    figures = f"epsilon {at_most(guarantee.epsilon)} at delta {at_most(guarantee.delta, 3)}"
    return Answer("How strongly?", strength(guarantee), tuple(sentences), figures)


def strength(guarantee: Guarantee) -> str:
    """Say in a few words how strong a claim is."""
    kind = "proved" if guarantee.theorem else "estimated"
    if guarantee.notion == "none":
        return "Not at all"
    if guarantee.notion not in _OF_DP:
        return f"{_capital(kind)}, for {guarantee.notion}"
    if guarantee.epsilon <= STRONG:
        return f"Strongly, {kind}"
    return f"Reasonably, {kind}" if guarantee.epsilon <= REASONABLE else f"Weakly, {kind}"


def _tier(epsilon: float) -> str:
    source = "by the tiers of Ponomareva et al. (2023)"
    if epsilon <= STRONG:
        return f"Up to {STRONG:g} is strong {source}."
    if epsilon <= REASONABLE:
        return f"Up to {REASONABLE:g} is reasonable {source}."
    return f"Above {REASONABLE:g} is weak {source}."


def _cost(facts: Facts) -> Answer:
    guarantee, measured = facts.guarantee, facts.measured
    if measured is None:
        return Answer(
            "What did it cost?",
            f"{guarantee.steps:,} steps",
            (
                "How well the model works was measured on private text.",
                "No guarantee covers such figures, so this page leaves them out.",
            ),
        )
    sentences = [f"Training took {guarantee.steps:,} steps and {span(measured.seconds)}."]
    sentences += _quality(measured)
    return Answer("What did it cost?", _short_cost(measured), tuple(sentences), f"{guarantee.steps:,} steps")


def _short_cost(measured: Measured) -> str:
    share = share_of_gain(measured)
    if share is not None:
        return f"{share:.0%} of the gain is kept"
    return span(measured.seconds)


def share_of_gain(measured: Measured) -> float | None:
    """Return the part of the non-private twin's gain in loss that the private model has; None if unknown."""
    base, final = measured.evaluation("base"), measured.evaluation("final")
    if base is None or final is None or measured.twin is None or measured.twin["loss"] >= base["loss"]:
        return None
    return gap_closed(base["loss"], final["loss"], measured.twin["loss"])


def _quality(measured: Measured) -> list[str]:
    base, final = measured.evaluation("base"), measured.evaluation("final")
    if base is None or final is None:
        return ["No held-out text was set aside, so nobody knows how well the model works."]
    key = "perplexity" if "perplexity" in final else "accuracy" if "accuracy" in final else "loss"
    before, after = (value_of(key, side[key]) for side in (base, final))
    sentences = [f"On held-out text {key} went from {before} to {after}."]
    if key != "accuracy":
        sentences[0] = f"{sentences[0][:-1]} (lower is better)."
    if measured.twin is not None:
        sentences.append(f"The same training without privacy reaches {value_of(key, measured.twin[key])}.")
    else:
        sentences.append("No model was trained without privacy, so the price of privacy is not known.")
    return sentences


def value_of(key: str, value: float) -> str:
    """Write a value of an evaluation: accuracy as a percentage, the others as numbers."""
    if key == "accuracy":
        return f"{value:.1%}"
    if not math.isfinite(value):
        return "infinite"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def span(seconds: float) -> str:
    """Write a time as a person says it."""
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bare(text: str) -> str:
    return text.strip().rstrip(".")
