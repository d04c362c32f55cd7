"""Explain the terms of a page, each in a few short sentences, and link a term where it first stands."""

import re

from markupsafe import Markup, escape

GLOSSARY = {
    "unit": "The thing that the claim protects as a whole, such as all text of one person.",
    "row": "A piece of text of bounded length. The model reads one row at once.",
    "epsilon": (
        "A number that bounds what the model gives away about one unit. Smaller is better. "
        "At 0 the model says nothing about the unit. Each added 1 lets an attacker's odds grow by a factor of 2.7."
    ),
    "delta": (
        "A small chance with which the bound by epsilon need not hold. "
        "It should be far below 1 divided by the number of units."
    ),
    "adjacency": ("Which two worlds the claim compares. They differ in one unit, and in nothing else."),
    "zero-out": "One world has the unit's text. In the other that text counts for nothing.",
    "add-or-remove": "One world has the unit. In the other it is not in the data.",
    "replace-one": "The two worlds differ in what the unit's text says.",
    "noise multiplier": (
        "How much noise each step adds. It is the noise's standard deviation divided by the clip norm."
    ),
    "clip norm": "The most that one unit can move the sum of a step. A longer gradient is shortened to it.",
    "user-level DP": "Differential privacy for all text of one person, however much they wrote.",
    "selective DP": "Differential privacy for the marked parts of a text alone.",
    "token": "A short piece of a word, as the model reads it. Four tokens are about three words.",
    "checkpoint": "The model as it was saved in the middle of the training.",
    "run key": "The secret number that all noise and all draws come from. It lies in the run's folder.",
    "poisson": "A way to draw: each unit takes part in a step by a coin of its own.",
    "bins": "A way to draw: each unit takes part in one step of every epoch, and draws by itself which one. Where "
    "noise is correlated over steps, it draws once and keeps that step.",
    "mask": "What stands in a text in place of something sensitive.",
    "gradient": "The direction in which a unit's text would move the model's weights.",
    "sampling probability": "The chance that a unit, or a row, takes part in a step.",
    "accountant": "The program that computes epsilon from noise, sampling and steps.",
    "canaries": "Made-up units that are planted before training, so that an attack can be scored.",
    "perplexity": (
        "How many words the model hesitates between, roughly, at each word of the text. Lower is better."
    ),
    "advantage": "How much better than a coin the best test of an attacker does. It lies between 0 and 1.",
}
"""Terms and what they mean."""

_TERMS = re.compile(
    rf"\b({'|'.join(sorted(map(re.escape, GLOSSARY), key=len, reverse=True))})s?\b", re.IGNORECASE
)

_NAMES = {term.lower(): term for term in GLOSSARY}


class Links:
    """Links each term of a page's texts to its explanation, where the term first stands.

    Attributes:
        used: the terms that were linked, in the order of their first use.
    """

    def __init__(self) -> None:
        self.used: list[str] = []

    def __call__(self, text: str) -> Markup:
        """Return a text as HTML, with links."""
        parts, end = [], 0
        for match in _TERMS.finditer(text):
            term = _NAMES[match.group(1).lower()]
            if term in self.used:
                continue
            self.used.append(term)
            parts.append(escape(text[end : match.start()]))
            parts.append(Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), match.group()))
            end = match.end()
        return Markup("").join([*parts, escape(text[end:])])

    def explained(self) -> list[tuple[str, str, str]]:
        """Return (anchor, term, explanation) of each term that was linked."""
        return [(anchor(term), term, GLOSSARY[term]) for term in self.used]


def anchor(term: str) -> str:
    """Return the anchor of a term's explanation."""
    return "term-" + re.sub(r"\W+", "-", term.lower())
