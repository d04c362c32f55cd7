"""Say in four short answers what a run protects: who, from whom, how strongly, and what it cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from confide.privacy.guarantee import PUBLISHED_KEY, Guarantee
from confide.privacy.strength import HARDLY, MISSED, REASONABLE, STRONG, TAUGHT
from confide.reporting.facts import Facts, Measured
from confide.reporting.happened import Course
from confide.training.metrics import gap_closed
from confide.utils.rounding import at_most, one_in_at_least, one_in_at_most, percent_at_most
from confide.utils.sentences import bare, capital, many

_SECRETS = "(p, r)-secret protection"
_OF_WHAT_WAS_FOUND = ("selective DP", "confidentiality", _SECRETS)
_SENSITIVE = "what is sensitive: "  # the public fact that says what a detector marks
_PRIOR = 1e-4  # of the guess that stands among the four answers

VERDICTS = {
    "violation": "The attacks refute the claim. Do not give this model away.",
    "consistent": "The attacks could have refuted the claim, and did not.",
    "underpowered": "The attacks were too weak to refute the claim. They say nothing about it.",
    "not attacked": "No made-up units were planted, so the claim itself was not attacked.",
    "nothing claimed": "There is no claim to attack.",
}
"""What each verdict of an audit means, for a reader."""

REFUTED = "An audit guessed more than the claim allows, so the figures of the claim are wrong for this model."


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
    strongly = _how_strongly(guarantee)
    if facts.refuted:
        strongly = replace(strongly, short="Refuted by an attack", sentences=(REFUTED,), figures="")
    return [_who(guarantee, facts.course), _from_whom(guarantee), strongly, cost]


def _who(guarantee: Guarantee, course: Course | None) -> Answer:
    sentences = []
    if guarantee.notion in _OF_WHAT_WAS_FOUND:
        marked = [
            fact.removeprefix(_SENSITIVE) for fact in guarantee.public_facts if fact.startswith(_SENSITIVE)
        ]
        sentences += [f"Sensitive is {bare(fact)}." for fact in marked]
        sentences.append("All other text is not protected. The model may repeat it word for word.")
    elif "user" in guarantee.notion:
        if course is not None and (fields := course.unit_fields()):
            sentences.append(f"{fields} Whoever has two values counts as two.")
        sentences.append("What others write about them, or quote from them, counts as the others' text.")
    sentences += _how_many(guarantee, course)
    units = "" if guarantee.units is None else many(guarantee.units, "unit")
    if units and (made_up := _made_up(guarantee, course)):
        units += f", {made_up:,} of them made up for an audit"
    return Answer("Who is protected?", capital(guarantee.unit), tuple(sentences), units)


def _how_many(guarantee: Guarantee, course: Course | None) -> list[str]:
    """Count the units; where they are users, each canary is one, so that the others are real."""
    if guarantee.units is None:
        return []
    if made_up := _made_up(guarantee, course):
        return [
            f"There are {guarantee.units:,} such units. {made_up:,} of them are made up, for an audit: "
            f"{guarantee.units - made_up:,} are real."
        ]
    facts = [f"{capital(bare(fact))}." for fact in guarantee.public_facts if "are made up" in fact]
    return [
        f"There {'is' if guarantee.units == 1 else 'are'} {many(guarantee.units, 'such unit')}.",
        *facts,
    ]


def _made_up(guarantee: Guarantee, course: Course | None) -> int:
    """Return how many of the units are canaries, where that is known: where units are users, each canary is one."""
    return course.config.canaries.count if course is not None and "user" in guarantee.notion else 0


def _from_whom(guarantee: Guarantee) -> Answer:
    sentences = (
        f"The figures are about {bare(guarantee.protected_output)}.",
        "They hold even against someone who knows all other text.",
        "Whoever trains the model sees the text. The claim is not about them.",
    )
    if is_key_known(guarantee):
        return Answer("From whom?", "From nobody who knows the key", sentences)
    return Answer("From whom?", "Everyone who gets the model", sentences)


def is_key_known(guarantee: Guarantee) -> bool:
    """Return True if the key that noise and draws come from is published."""
    return PUBLISHED_KEY in guarantee.estimates


def _how_strongly(guarantee: Guarantee) -> Answer:
    rate = guarantee.true_positive_rate
    found, right = percent_at_most(rate), percent_at_most(rate / (rate + 0.01))
    sentences = []
    if guarantee.adjacency == "replace-one":
        sentences.append(
            "An attacker checks whether a unit's text is the one that they suspect. They may wrongly say yes in 1 of "
            f"100 cases. They then rightly say yes in at most {found} of cases. Without the model it is 1%. "
            f"If every second suspicion is true, up to {right} of what they say yes to is true."
        )
    else:
        sentences.append(
            "An attacker names units whose text was used. They wrongly name 1 in 100 of the others. "
            f"Of the units whose text was used they then find at most {found}. Without the model it is 1%. "
            f"If half of all units that they ask about were used, up to {right} of the names are right."
        )
    bound = dict(guarantee.reconstruction).get(_PRIOR)
    if bound is not None:
        sentences.append(
            f"A secret of a unit that is guessed blindly 1 time in {1 / _PRIOR:,.0f} is guessed with the model at most "
            f"{_often(one_in_at_most(bound))}."
        )
    figures = f"epsilon {at_most(guarantee.epsilon)} at delta {at_most(guarantee.delta, 3)}"
    sentences.append(f"{capital(figures.replace('epsilon', 'epsilon is'))}.")
    if guarantee.epsilons:
        what, worst = max(guarantee.epsilons, key=lambda pair: pair[1])
        sentences.append(f"It is worse for some: epsilon is {at_most(worst)} {what}.")
    if guarantee.notion != _SECRETS:
        sentences.append(_tier(guarantee.epsilon))
    return Answer("How strongly?", strength(guarantee), tuple(sentences), figures)


def _often(chance: str) -> str:
    return f"{chance.replace('1 in', '1 time in')}" if chance.startswith("1 in") else f"in {chance} of tries"


def strength(guarantee: Guarantee) -> str:
    """Say in a few words how strong a claim is."""
    kind = "proved" if guarantee.theorem else "estimated"
    if guarantee.notion == "none":
        return "Not at all"
    if is_key_known(guarantee):
        return f"Not against who knows the key, {kind}"
    if guarantee.notion == _SECRETS:
        farthest = max(guarantee.secret_targets, key=lambda pair: pair[1] / pair[0])
        likeliest = max(guarantee.secret_targets, key=lambda pair: pair[1])
        limits = (
            f"a guess of {one_in_at_least(before)} becomes at most {one_in_at_most(after)}"
            for before, after in dict.fromkeys((farthest, likeliest))
        )
        return f"{capital('; '.join(limits))}, {kind}"
    if any(reason.endswith(MISSED) for reason in guarantee.estimates):
        return f"Not for what the detector misses, {kind}"
    worst = max(guarantee.epsilon, *(value for _, value in guarantee.epsilons), 0.0)
    word = "Strongly" if worst <= STRONG else "Reasonably"
    if worst > REASONABLE or guarantee.doubts():
        word = "Hardly at all" if worst > HARDLY else "Weakly"
    alone = any(line.startswith(TAUGHT) for line in guarantee.not_covered)
    return f"{word}{' for this run alone' if alone else ''}, {kind}"


def advice(facts: Facts) -> list[str]:
    """Say what to think of before the model is handed on, the most serious first."""
    guarantee = facts.guarantee
    if facts.refuted:
        return [f"Do not hand this model on. {REFUTED}"]
    if guarantee.notion == "none":
        return ["Do not hand this model on. It is as confidential as the text."]
    found = []
    if is_key_known(guarantee):
        found.append(
            "Do not hand this model on. The random numbers that hide each unit come from a key that is published. "
            "Whoever knows the key can undo the protection. Train again with a secret key."
        )
    if not guarantee.theorem:
        found.append("The figures are an estimate, and not proved. The reasons stand in line 2 of the claim.")
    if guarantee.notion in _OF_WHAT_WAS_FOUND and guarantee.theorem:
        found.append(
            "The proof takes it from the config that nothing sensitive was missed. Nothing here checks that."
        )
    if guarantee.notion in _OF_WHAT_WAS_FOUND:
        found.append("Treat all text that was not marked as if it stood in the model.")
    elif strength(guarantee).startswith(("Weakly", "Hardly")):
        found.append("The claim is weak. Treat the model as personal data.")
    found += guarantee.weakness()
    if facts.course is not None:
        found.append(facts.course.stays(releases=not is_key_known(guarantee)))
    if guarantee.evidence and all(": underpowered;" in line for line in guarantee.evidence):
        found.append(
            "An audit was made, and was too weak to show anything. Decide as if there had been none."
        )
    found.append(
        "Read what is not covered, in line 8. Where the run knows whether it happened here, that stands with it. "
        "Ask about the rest."
    )
    found.append(
        "If another model of the same text is given away too, the two claims add up. This page counts one."
    )
    return found


def _tier(epsilon: float) -> str:
    source = "in Ponomareva et al. (2023). That is a custom of the field, and no test of a law."
    if epsilon <= STRONG:
        return f"Up to {STRONG:g} is called strong {source}"
    if epsilon <= REASONABLE:
        return f"Up to {REASONABLE:g} is called reasonable {source}"
    return f"Above {REASONABLE:g} is called weak {source}"


def _cost(facts: Facts) -> Answer:
    guarantee, measured = facts.guarantee, facts.measured
    steps = f"{guarantee.steps:,} steps"
    if measured is None:
        return Answer(
            "What did it cost?",
            "Not shown on this page",
            (
                "How well the model works was measured on private text.",
                "No guarantee covers such figures, so this page leaves them out.",
            ),
            steps,
        )
    if not measured.steps:
        where = "Its steps and what they measured are not recorded in this folder: a sweep has them in its trials."
        return Answer("What did it cost?", "Not recorded here", (f"Training took {steps}.", where), steps)
    sentences = [f"Training took {steps} and {span(measured.seconds)}."]
    sentences += _quality(measured)
    return Answer("What did it cost?", _short_cost(measured), tuple(sentences), steps)


def _short_cost(measured: Measured) -> str:
    share = share_of_gain(measured)
    if share is not None and share > 1:
        return "Not known: training without privacy did worse"
    if share is not None:
        return f"{share:.0%} of the gain in loss is kept"
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
    better = "" if "accuracy" in _keys(final) else " Lower is better."
    sentences = [f"On held-out text {_change(base, final)}.{better}"]
    if measured.twin is None:
        return [*sentences, "No model was trained without privacy, so the price of privacy is not known."]
    reached = ", ".join(f"{key} {value_of(key, measured.twin[key])}" for key in _keys(measured.twin))
    return [
        *sentences,
        f"Training without privacy, on the same draws, reaches {reached}.",
        "That unprotected model lies in the folder twin of the run. Never hand it on.",
    ]


def _change(base: Mapping[str, float], final: Mapping[str, float]) -> str:
    return ", ".join(
        f"{key} went from {value_of(key, base[key])} to {value_of(key, final[key])}" for key in _keys(final)
    )


def _keys(evaluation: Mapping[str, float]) -> list[str]:
    """Return what an evaluation is told by: the loss, and what people know better."""
    return ["loss", *(key for key in ("perplexity", "accuracy") if key in evaluation)][:2]


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
        return many(round(seconds), "second")
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"
