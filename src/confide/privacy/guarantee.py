"""`Guarantee`: the one object that says what a run protects, and what it does not.

Every line that a privacy claim must state is a field; an empty one is an error. There is no field "theorem": a claim
is a theorem exactly if it lists no reason to call it an estimate. A sampler that differs from the one the accounting
assumes is such a reason, and is added here if the caller did not add it. Sources: NIST SP 800-226 (2025), the OpenDP
deployments registry, Ponomareva et al. 2023 ("How to DP-fy ML").
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from confide.privacy.correlated_noise import correlation_of
from confide.privacy.strength import WEAK, weaknesses
from confide.utils.errors import CheckFailed, InputError
from confide.utils.plain import plain
from confide.utils.rounding import at_least, at_most, one_in_at_least, one_in_at_most, percent_at_most
from confide.utils.sentences import bare, sentences

Notion = Literal[
    "(epsilon, delta)-DP",
    "user-level DP",
    "multi-owner user-level DP",
    "selective DP",
    "(p, r)-secret protection",
    "confidentiality",
    "none",
]
Adjacency = Literal["zero-out", "add-or-remove", "replace-one", "not applicable"]
Pairs = tuple[tuple[float, float], ...]

PRIORS = (1e-6, 1e-4, 1e-3)
"""Priors at which every claim states the reconstruction bound."""

TUNING = "the tuning of hyper-parameters on private rows"
"""A claim does not cover this unless it counts a whole sweep."""

STATISTICS = "statistics of the data (counts, lengths, medians) and what was chosen from them"
PUBLISHED_KEY = "the run key is published: no guarantee against who knows it"
"""The reason why the figures of a run with a published key are an estimate."""

NOT_COVERED = (
    "what the base model learnt in its pretraining",
    "the tokenizer and its vocabulary",
    "evaluation: losses and other metrics computed from private rows",
    "logs, progress output and timing of the run",
    STATISTICS,
    TUNING,
    "manual screening of rows by people",
    "the same words in other units' rows (quotes, forwards, near-duplicates)",
)
"""The guarantee of a training run never covers these, unless their cost was accounted for. A claim may add to them."""

ANEW = "draws above the cap are made anew"
"""A public fact of `privacy.sampling: truncated`."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The protection that a run gives, with everything a claim must state.

    Attributes:
        notion: the kind of claim.
        unit: the protected unit, in words.
        rows_per_unit: rows one unit may contribute (a step or in all, as `contribution` says), None if all it has.
        rows_cut: how rows were cut out of text.
        adjacency, public_facts: which worlds are compared, and what is public in both.
        epsilon, delta: the claimed pair; epsilon is inf where nothing holds.
        curve: (epsilon, delta) pairs of the whole curve.
        reconstruction: (prior p, bound r(p)), at PRIORS at least.
        advantage: true minus false positives of the best test.
        true_positive_rate: its bound at a false positive rate of 1%.
        secret_targets: for secret protection alone, the (p, r) pairs that were asked for: all of them, or if they are
            many
            the least and greatest r of each p.
        closest_secrets: (id, prior, posterior asked, posterior reached at most) of the secrets that come nearest to
            what
            was asked, by id and never by content.
        epsilons: (assumption, epsilon) where epsilon rests on something that was estimated; for estimates alone.
        worlds: the two worlds that are compared, in words; written from the adjacency if left empty.
        noise_multiplier: standard deviation of the noise over the clip norm. For noise that is correlated over steps:
            over
            the distance by which one clipped gradient moves the release (a line of the public facts).
        clip_norm: None if nothing is clipped.
        steps: number of steps.
        sampling, sampling_used: the sampling that the accounting assumes, and the one that the run used.
        expected_batch: units or rows a step.
        sampling_probability: the smallest and the largest of a row or unit, in any step.
        bands: steps over which the noise is correlated; 1 if it is independent, or all later steps take it back.
        buffers: how many sums over the past are kept to take noise back in all later steps; 0 if it is not.
        accountant, accountant_version, discretisation: what computed the numbers (interval of the loss grid).
        protected_output: which artefact, and whether one release or several with their sum.
        provenance: code version, date, hardware, and keyed fingerprints of config and data.
        evidence: the audits made, the most they could have shown and what they did show; or that none was made.
        units: how many units there are, None where that is not public.
        estimates: reasons why the figures are not a theorem.
        words: line 12, written from the rest if left empty.
    """

    notion: Notion
    unit: str
    rows_per_unit: int | None
    contribution: str
    rows_cut: str
    adjacency: Adjacency
    public_facts: tuple[str, ...]
    epsilon: float
    delta: float
    curve: Pairs
    reconstruction: Pairs
    advantage: float
    true_positive_rate: float
    noise_multiplier: float
    clip_norm: float | None
    steps: int
    sampling: str
    sampling_used: str
    expected_batch: float
    sampling_probability: tuple[float, float]
    accountant: str
    accountant_version: str
    discretisation: float
    protected_output: str
    not_covered: tuple[str, ...]
    trust: str
    randomness: str
    provenance: Mapping[str, str]
    evidence: tuple[str, ...]
    estimates: tuple[str, ...] = ()
    secret_targets: Pairs = ()
    closest_secrets: tuple[tuple[str, float, float, float], ...] = ()
    bands: int = 1
    buffers: int = 0
    epsilons: tuple[tuple[str, float], ...] = ()
    worlds: str = ""
    units: int | None = None
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _TUPLES:
            _set(self, name, tuple(getattr(self, name)))
        for name in _PAIRS:
            _set(self, name, tuple((float(a), float(b)) for a, b in getattr(self, name)))
        closest = ((str(name), float(p), float(r), float(most)) for name, p, r, most in self.closest_secrets)
        _set(self, "closest_secrets", tuple(closest))
        _set(self, "epsilons", tuple((str(what), float(value)) for what, value in self.epsilons))
        _set(self, "provenance", dict(self.provenance))
        if not self.worlds:
            _set(self, "worlds", WORLDS.get(self.adjacency, "nothing"))
        _check_lines(self)
        _check_numbers(self)
        if self.sampling_used != self.sampling:
            drawn = "shuffled" if self.sampling_used == "shuffle" else f"drawn by {self.sampling_used}"
            reason = f"batches were {drawn}, accounting assumes {_title(self.sampling)}"
            if reason not in self.estimates:
                _set(self, "estimates", (*self.estimates, reason))
        if not self.words:
            _set(self, "words", tuple(_in_words(self)))
        if self.notion == "none" and not any("nothing is protected" in s.lower() for s in self.words):
            raise InputError(
                "guarantee: words must say plainly that nothing is protected where notion is none"
            )

    @property
    def theorem(self) -> bool:
        """True if the claim is proved: exactly if there is no reason to call it an estimate."""
        return not self.estimates and self.notion != "none"

    def to_json(self) -> dict[str, Any]:
        """Return every field under its own name, and `theorem`; infinity is the string "inf", as JSON has none."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"notion": fields.pop("notion"), "theorem": self.theorem, **fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Guarantee:
        """Read a guarantee from JSON values: the inverse of `to_json`.

        Raises:
            InputError: a field is missing or unknown.
            CheckFailed: the file calls an estimate a theorem.
        """
        fields = {name: value for name, value in data.items() if name != "theorem"}
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(known))
        required = (n for n, f in known.items() if f.default is dataclasses.MISSING)
        missing = [name for name in required if name not in fields]
        if unknown or missing:
            raise InputError(f"guarantee: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
        guarantee = cls(**{name: _number(name, value) for name, value in fields.items()})
        if "theorem" in data and data["theorem"] != guarantee.theorem:
            raise CheckFailed(
                "guarantee: the file says theorem = "
                f"{data['theorem']}, but its reasons to be an estimate are {list(guarantee.estimates)}"
            )
        return guarantee

    @classmethod
    def load(cls, path: str | Path) -> Guarantee:
        """Read a guarantee that a run wrote, such as `release/guarantee.json`.

        Raises:
            InputError: the file does not exist, or is no guarantee.
            CheckFailed: see `from_json`.
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: no guarantee can be read from it ({type(error).__name__})") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}: holds no guarantee")
        return cls.from_json(found)

    def sentences(self) -> list[str]:
        """Write the claim for a lawyer: what someone could and could not learn about one unit."""
        return list(self.words)

    def short(self) -> list[str]:
        """Return the key sentences: whether the claim is proved, for whom, how much, of what, and what weakens it.

        Without a claim all sentences are returned.
        """
        if self.notion == "none":
            return self.sentences()
        stated = [sentence for sentence in self.words if sentence.startswith(_STATED)]
        given = f"The figures are about {bare(self.protected_output)}."
        return [*stated, f"One unit is {bare(self.unit)}. {given}", *self.weakness()]

    def plain_words(self) -> list[str]:
        """Return the sentences without the lists of what is public and of what is not covered: they are lines, too."""
        return [sentence for sentence in self.words if not sentence.startswith(_LISTS)]

    @property
    def correlated_over(self) -> str:
        """Over which steps noise is correlated, in words; empty if it is independent."""
        correlation = correlation_of(self.bands, self.buffers)
        return "" if correlation.is_independent else correlation.over

    def weakness(self) -> list[str]:
        """Return the sentences that say how little a claim may be worth."""
        return [sentence for sentence in self.words if sentence.startswith(WEAK)]

    @property
    def batch_in_words(self) -> str:
        """The expected batch, with a word on draws that are made anew. Earlier versions made none anew."""
        anew = f", before {ANEW}" if any(ANEW in fact for fact in self.public_facts) else ""
        return f"{self.expected_batch:.6g}{anew}"

    def doubts(self) -> list[str]:
        """Return the sentences that say what makes its figures worth little.

        Under add-or-remove nobody may know how many units there are. About as many as batch and rate imply, which are
        both public, are counted then.
        """
        units, about = self.units, ""
        if units is None and self.notion != "none" and self.sampling_probability[1] > 0:
            units, about = round(self.expected_batch / self.sampling_probability[1]), "about "
        return weaknesses(self.delta, units, self.advantage, self.reconstruction, about)

    def model_card_section(self) -> str:
        """Write the whole claim as a Markdown section."""
        status = "a proved bound" if self.theorem else "an estimate, not a proved bound"
        if self.notion == "none":
            status = "no claim"
        lines = ["## Privacy", "", f"**{self.notion}**: {status}.", ""]
        lines += [f"{sentence}\n" for sentence in self.words]
        lines += ["| line | value |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in self.lines()]
        lines += ["", "**Public, and not protected:**", ""] + [f"- {fact}" for fact in self.public_facts]
        lines += ["", "**Not covered:**", ""] + [f"- {item}" for item in self.not_covered]
        lines += ["", "**Evidence:**", ""] + [f"- {item}" for item in self.evidence]
        return "\n".join(lines) + "\n"

    def lines(self) -> list[tuple[str, str]]:
        """Return the claim's single-valued lines, (name, value), for a table."""
        low, high = self.sampling_probability
        chance = at_most(high, 6) if low == high else f"{at_least(low, 6)} to {at_most(high, 6)}"
        rows = "all it has" if self.rows_per_unit is None else str(self.rows_per_unit)
        lines = [
            ("unit", self.unit),
            ("rows per unit", f"{rows} ({self.contribution})"),
            ("how rows were cut", self.rows_cut),
            ("adjacency", f"{self.adjacency}: {self.worlds}"),
            ("epsilon", at_most(self.epsilon, 6)),
            ("delta", at_most(self.delta, 6)),
            (
                "whole curve (epsilon at delta)",
                _listed(f"{at_most(epsilon)} at {at_most(delta, 1)}" for epsilon, delta in self.curve),
            ),
            (
                "reconstruction r(p)",
                _listed(f"r({at_least(p, 3)}) = {at_most(r, 3)}" for p, r in self.reconstruction),
            ),
            ("advantage of the best test", at_most(self.advantage)),
            ("true positives at 1% false positives", at_most(self.true_positive_rate)),
            ("noise multiplier", at_least(self.noise_multiplier, 6)),
            ("clip norm", "nothing is clipped" if self.clip_norm is None else f"{self.clip_norm:.6g}"),
            ("steps", str(self.steps)),
            ("sampling assumed", self.sampling),
            ("sampling used", self.sampling_used),
            ("expected batch", self.batch_in_words),
            ("sampling probability", chance),
            *([("noise correlated over", self.correlated_over)] if self.correlated_over else []),
            (
                "accountant",
                f"{self.accountant} {self.accountant_version}, discretisation {self.discretisation:g}",
            ),
            ("protected output", self.protected_output),
            ("trust", self.trust),
            ("randomness", self.randomness),
            ("provenance", "; ".join(f"{k}: {v}" for k, v in self.provenance.items())),
        ]
        if self.secret_targets:
            asked = (f"{at_least(p, 3)} to at most {at_most(r, 3)}" for p, r in self.secret_targets)
            lines.append(("asked for secrets", _listed(asked)))
            nearest = (
                f"{name}: {at_least(p, 3)} to at most {at_most(most)} (asked: {at_most(r)})"
                for name, p, r, most in self.closest_secrets
            )
            lines.append(("secrets nearest to what was asked", _listed(nearest)))
        lines += [(f"epsilon, {what}", at_most(value, 6)) for what, value in self.epsilons]
        if self.estimates:
            lines.append(("why it is an estimate", "; ".join(self.estimates)))
        return lines


_STATED = ("The figures below are an estimate", "The formal statement is", "For each secret")
_LISTS = ("The claim does not hide", "It does not cover")
_PAIRS = ("curve", "reconstruction", "secret_targets")
_TUPLES = (
    "public_facts",
    "sampling_probability",
    "not_covered",
    "evidence",
    "estimates",
    "words",
)
_MAY_BE_EMPTY = {"estimates", "secret_targets", "closest_secrets", "epsilons", "words"}
_MAY_BE_NONE = {"rows_per_unit", "clip_norm", "units"}


def _title(sampling: str) -> str:
    return "Poisson" if sampling == "poisson" else sampling


def _set(guarantee: Guarantee, name: str, value: object) -> None:
    object.__setattr__(guarantee, name, value)


def _check_lines(g: Guarantee) -> None:
    """Check that no line is missing or blank."""
    for field in dataclasses.fields(g):
        name, value = field.name, getattr(g, field.name)
        if value is None and name not in _MAY_BE_NONE:
            raise InputError(f"guarantee: {name} is missing")
        if name == "curve" and math.isinf(g.epsilon):
            continue  # without noise there is no curve
        if isinstance(value, (str, tuple, dict)) and not value and name not in _MAY_BE_EMPTY:
            raise InputError(f"guarantee: {name} is empty")
        texts = value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else [value]
        if any(isinstance(text, str) and not text.strip() for text in texts):
            raise InputError(f"guarantee: {name} has an empty line")
    for name, allowed in (("notion", get_args(Notion)), ("adjacency", get_args(Adjacency))):
        if getattr(g, name) not in allowed:
            raise InputError(f"guarantee: {name} must be one of {', '.join(allowed)}, not {getattr(g, name)}")
    if not any("metrics" in item for item in g.not_covered):
        raise InputError(
            "guarantee: not_covered must say that metrics computed from private rows are not covered"
        )


def _check_numbers(g: Guarantee) -> None:
    """Check that every number is possible by itself and agrees with the notion."""
    p_and_r = [number for pair in (*g.reconstruction, *g.secret_targets) for number in pair]
    conditions = {
        "epsilon": g.epsilon >= 0,
        "delta": 0 <= g.delta <= 1,
        "curve": all(e >= 0 and 0 < d <= 1 for e, d in g.curve),
        "reconstruction": all(0 <= x <= 1 for x in p_and_r)
        and set(PRIORS) <= {p for p, _ in g.reconstruction},
        "advantage": 0 <= g.advantage <= 1,
        "true_positive_rate": 0 <= g.true_positive_rate <= 1,
        "noise_multiplier": 0 <= g.noise_multiplier < math.inf,
        "clip_norm": g.clip_norm is None or 0 < g.clip_norm < math.inf,
        "steps": g.steps >= 0,
        "rows_per_unit": g.rows_per_unit is None or g.rows_per_unit >= 1,
        "units": g.units is None or g.units >= 1,
        "expected_batch": 0 <= g.expected_batch < math.inf,
        "sampling_probability": len(g.sampling_probability) == 2
        and 0 <= g.sampling_probability[0] <= g.sampling_probability[1] <= 1,
        "bands": g.bands >= 1,
        "buffers": g.buffers >= 0 and (g.bands == 1 or not g.buffers),
        "discretisation": 0 <= g.discretisation < math.inf,
        "secret_targets": bool(g.secret_targets) == (g.notion == "(p, r)-secret protection"),
        "epsilons": all(value >= 0 for _, value in g.epsilons) and (bool(g.estimates) or not g.epsilons),
        "closest_secrets": bool(g.closest_secrets) == bool(g.secret_targets)
        and all(0 < p <= most <= r < 1 for _, p, r, most in g.closest_secrets),
    }
    for name, holds in conditions.items():
        if not holds:
            raise InputError(f"guarantee: {name} is not a possible value: {getattr(g, name)}")
    if (g.notion == "none") != (g.adjacency == "not applicable"):
        raise InputError("guarantee: adjacency is 'not applicable' exactly where notion is none")
    if g.notion == "none" and not math.isinf(g.epsilon):
        raise InputError("guarantee: epsilon must be inf where notion is none")
    if g.notion != "none" and math.isinf(g.epsilon):
        raise InputError(f"guarantee: epsilon is inf, so notion must be none, not {g.notion}")


def _in_words(g: Guarantee) -> list[str]:
    if g.notion == "none":
        return [
            f"Nothing is protected: this run claims no privacy for {g.unit}.",
            "Whoever has the model may find out that a text was used in training. They may even recover it, word for "
            "word.",
            "Treat the model as you would treat the texts themselves.",
        ]
    right = (1 + g.advantage) / 2
    said = '"this text"' if g.adjacency == "replace-one" else '"used"'
    words = [
        f"One unit is {bare(g.unit)}. It may contribute {bare(g.contribution)}.",
        f"The claim compares two worlds: {g.worlds}.",
        f"The figures are about {bare(g.protected_output)}. {' '.join(sentences(g.trust))}",
        "Someone who has that output may try to tell which of the two worlds it was. "
        f"Take a test that wrongly says {said} in 1% of cases. "
        f"It rightly says so in at most {percent_at_most(g.true_positive_rate)} of cases. "
        "Now take someone who must choose one of the two worlds, at even odds. "
        f"They are right in at most {percent_at_most(right)} of cases. A coin is right in 50%.",
        "Someone may know all that is public, and guess at what only the unit's text says. "
        "Studying the output raises the chance that the guess is right. "
        f"It rises at most like this: {_chances(g.reconstruction)}.",
        f"The formal statement is {g.notion} with epsilon = {at_most(g.epsilon)} at delta = "
        f"{at_most(g.delta, 3)}, {g.adjacency} adjacency.",
        f"The claim does not hide what others' texts say as well. It does not hide what is public: "
        f"{'; '.join(map(bare, g.public_facts))}.",
        f"It does not cover: {'; '.join(map(bare, g.not_covered))}.",
    ]
    if g.secret_targets:
        which = (
            "For each secret"
            if len(g.secret_targets) == 1
            else "For each secret, by its own prior and limit,"
        )
        words.insert(
            5,
            f"{which} the config sets this limit: {_chances(g.secret_targets)}. The first is the chance of a right "
            "guess without the output. The second is the chance after studying it. "
            "The noise was made so that this holds for every secret.",
        )
    words += g.doubts()
    if g.epsilons:
        others = "; ".join(f"{at_most(value)} {what}" for what, value in g.epsilons)
        words.append(f"Under other suppositions epsilon is {others}.")
    if g.estimates:
        reasons = "; ".join(map(bare, g.estimates))
        words.insert(
            0, f"The figures below are an estimate and not a proved guarantee. This is why: {reasons}."
        )
    return words


WORLDS = {
    "zero-out": "a world in which the unit's text was used with one in which it counted for nothing",
    "add-or-remove": "a world in which the unit was in the data with one in which it was not",
    "replace-one": "a world in which the unit had this text with one in which it had any other, cut into rows "
    "of the same number and lengths",
}
"""The two worlds that a claim compares, by its adjacency."""


def _chances(pairs: Pairs) -> str:
    """Write (p, r) pairs in the form that people use for chances."""
    return "; ".join(f"{one_in_at_least(p)} becomes at most {one_in_at_most(r)}" for p, r in pairs)


def _listed(lines: Iterable[str]) -> str:
    return "; ".join(lines) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(name: str, value: Any) -> Any:
    return math.inf if value == "inf" and name == "epsilon" else value
