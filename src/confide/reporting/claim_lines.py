"""Arrange a claim in the twelve lines that a privacy claim must state, for the page.

Sources of the lines: NIST SP 800-226 (2025), the OpenDP deployments registry, Ponomareva et al. 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confide.privacy.guarantee import Guarantee
from confide.reporting.happened import Course
from confide.reporting.verdict import VERDICTS
from confide.utils.rounding import at_least, at_most, one_in_at_least, one_in_at_most, percent_at_most
from confide.utils.sentences import sentence, sentences


@dataclass(frozen=True)
class Table:
    """A table on the page: the first row is its head, the first cell of a row names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Line:
    """One line of a claim.

    Attributes:
        title: what it answers.
        sentences: paragraphs.
        pairs: (name, value) of facts; the name may be a term that the page explains.
        items: a list.
        tables: figures with two sides.
        here: by item, what this run knows of it.
        besides: what stands behind the list.
    """

    title: str
    sentences: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    items: Sequence[str] = ()
    tables: Sequence[Table] = field(default=())
    here: Mapping[str, str] = field(default_factory=dict)
    besides: Sequence[str] = ()


def lines(guarantee: Guarantee, course: Course | None = None) -> list[Line]:
    """Return the twelve lines, in order.

    Args:
        course: what the run knows of its own course; None if only its release is at hand.
    """
    g = guarantee
    return [
        Line("In plain words", g.plain_words()),
        Line("What kind of claim is this?", _kind(g), items=g.estimates),
        Line(
            "What is one unit?",
            pairs=[
                ("unit", g.unit),
                ("rows of a unit", "all that it has" if g.rows_per_unit is None else f"{g.rows_per_unit:,}"),
                ("what a unit may contribute", g.contribution),
                ("how text becomes rows", g.rows_cut),
            ],
        ),
        Line(
            "Which two worlds are compared, and what is public in both?",
            [
                f"The claim compares {g.worlds}.",
                "We assume that an attacker already knows what follows. You need not publish it, but the model does "
                "not hide it:",
            ],
            pairs=[("adjacency", g.adjacency)],
            items=g.public_facts,
        ),
        Line("Which numbers?", pairs=_numbers(g), tables=_tables(g)),
        Line(
            "How were they computed?",
            pairs=[
                ("accountant", f"{g.accountant} {g.accountant_version}"),
                ("discretisation", f"{g.discretisation:g}"),
                ("sampling that the computation assumes", g.sampling),
                ("sampling that the run used", g.sampling_used),
            ],
        ),
        Line(
            "Which files are the figures about?",
            [
                sentence(g.protected_output),
                "If another model of the same text is given away too, the claims add up.",
            ],
        ),
        Line(
            "What is not covered?",
            [
                "The claim says nothing of the following. The list is the same for every run of this kind.",
                _known(course),
            ],
            items=g.not_covered,
            here={} if course is None else {item: course.here(item) for item in g.not_covered},
            besides=[] if course is None else course.besides(),
        ),
        Line("Whom must one trust?", sentences(g.trust)),
        Line("Where does the randomness come from?", sentences(g.randomness)),
        Line(
            "Where does this claim come from?",
            [
                "Fingerprints tell runs apart. To compare them with text and settings takes the key of the run."
            ],
            pairs=list(g.provenance.items()),
        ),
        Line("What did attacks show?", items=g.evidence, here=_found(g.evidence)),
    ]


def _found(evidence: Sequence[str]) -> dict[str, str]:
    """Say in plain words what each line of an audit comes to."""
    verdicts = {line: line.partition(": ")[2].partition(";")[0] for line in evidence}
    return {line: VERDICTS[verdict] for line, verdict in verdicts.items() if verdict in VERDICTS}


def _known(course: Course | None) -> str:
    if course is None:
        return "A release alone does not know what happened. Ask those who trained the model."
    return "Under each line stands what this run knows of it. Ask those who trained the model about the rest."


_MEANINGS = {
    "(epsilon, delta)-DP": "The model would be nearly the same had one unit {otherwise}",
    "user-level DP": "The model would be nearly the same had one person's text {otherwise}",
    "multi-owner user-level DP": "The model would be nearly the same had one person's rows counted for nothing",
    "selective DP": "The model would be nearly the same had the marked characters of one row been others",
    "(p, r)-secret protection": "A guess at a secret gets better by the model only up to a limit",
    "confidentiality": "The model would be nearly the same had one more secret been masked",
}
"""What each kind of claim comes to, in a sentence."""
_SENSITIVE = ("selective DP", "confidentiality")
_ZERO_OUT = (
    "The model would be nearly the same had one row with sensitive text counted for nothing in noised steps"
)
"""The same of a claim about sensitive text that compares with nothing, and not with other text."""
_OTHERWISE = {
    "zero-out": "counted for nothing",
    "replace-one": "been another of the same length",
    "add-or-remove": "not been there",
}
"""How the other world differs, by adjacency."""


def _kind(g: Guarantee) -> list[str]:
    if g.notion == "none":
        return ["There is no claim. Nothing is protected."]
    meaning = _MEANINGS[g.notion]
    if g.notion in _SENSITIVE and g.adjacency == "zero-out":
        meaning = _ZERO_OUT
    if "{otherwise}" in meaning:
        meaning = meaning.format(otherwise=_OTHERWISE[g.adjacency])
    meaning += "."
    if "nearly" in meaning:
        meaning += " How nearly is in line 5."
    if g.theorem:
        return [
            f"The claim is {g.notion}.",
            meaning,
            "It is proved for exact numbers. A computer rounds them. That rounding does no harm is not proved.",
        ]
    return [f"The claim is {g.notion}.", meaning, "It is an estimate, and not proved, for these reasons:"]


def _numbers(g: Guarantee) -> list[tuple[str, str]]:
    low, high = g.sampling_probability
    chance = at_most(high, 6) if low == high else f"{at_least(low, 6)} to {at_most(high, 6)}"
    found = [
        ("epsilon", at_most(g.epsilon, 6)),
        ("delta", at_most(g.delta, 6)),
        ("advantage of the best test", at_most(g.advantage)),
        ("found at 1% false alarms", percent_at_most(g.true_positive_rate)),
        ("noise multiplier", at_least(g.noise_multiplier, 6)),
        ("clip norm", "nothing is clipped" if g.clip_norm is None else f"{g.clip_norm:.6g}"),
        ("steps", f"{g.steps:,}"),
        ("sampling probability", chance),
        ("expected batch", g.batch_in_words),
    ]
    if g.correlated_over:
        found.append(("noise is correlated over", g.correlated_over))
    if g.units is not None:
        found.insert(0, ("units", f"{g.units:,}"))
    return found + [(f"epsilon {what}", at_most(value)) for what, value in g.epsilons]


def _tables(g: Guarantee) -> list[Table]:
    found = [
        Table(
            ("chance of a right guess before", "after studying the output, at most"),
            [(one_in_at_least(p), one_in_at_most(r)) for p, r in g.reconstruction],
        )
    ]
    if g.secret_targets:
        found.append(
            Table(
                ("chance of a right guess of a secret, before", "limit set, after"),
                [(one_in_at_least(p), one_in_at_most(r)) for p, r in g.secret_targets],
            )
        )
    if g.closest_secrets:
        found.append(
            Table(
                ("secret, by its number", "before", "limit set", "worst case reached"),
                [
                    (name, one_in_at_least(p), one_in_at_most(asked), one_in_at_most(most))
                    for name, p, asked, most in g.closest_secrets
                ],
            )
        )
    return found
