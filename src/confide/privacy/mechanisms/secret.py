"""Secret protection (Ganesh et al. 2025, "Hush!"): named secrets, each with a prior and an allowed posterior."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from confide.config.schema import Secrets
from confide.data.shape import Shape
from confide.privacy.accounting import Accountant, Targets, achieved, least_noise_for_secrets
from confide.privacy.guarantee import PRIORS
from confide.privacy.mechanisms.values import VALUE, Alternative, ClaimParts, DataNeeds, PrivacyParameters
from confide.privacy.mechanisms.weighted import WeightedRows, kept_greedily, solved
from confide.privacy.row_weights import Spread, largest_c, need
from confide.privacy.secret_targets import resolve
from confide.sensitive.detectors import asked, kinds
from confide.utils.errors import InputError
from confide.utils.rounding import at_least

if TYPE_CHECKING:
    from confide.config.schema import Config

SWEEP = tuple(2.0**-k for k in range(11))
"""The values of c that a plan tries, relative to the one that drops no row (Ganesh et al. 2025, section 5.1)."""

LISTED = 10
"""A guarantee lists this many of the secrets that come closest to their allowed posterior."""

GROWTH = 10
"""A plan shows the cost of protecting larger priors; their posterior may be this many times the prior."""

_CALIBRATION: dict[Accountant, str] = {
    "kl": "The noise is the least with KL(P, Q) <= KL(Bern(r), Bern(p)) for every secret "
    "(Ganesh et al. 2025, Lemma 3.2).",
    "renyi": "The noise is the least with which, for every secret, the Renyi divergence of P and Q is at most that of "
    "Bern(r) and Bern(p) at one of the orders 2 to 64 (Ganesh et al. 2025, Lemma 3.2).",
    "blow-up": "The noise is the least with which the blow-up function at p is at most r for every secret.",
}


@dataclass(frozen=True)
class Choice:
    """One value of c, and what follows from it.

    Attributes:
        c: relative to the value that drops no row.
        spread: statistics of the rows' weights.
        rate: the largest probability of a row.
        noise: noise multiplier by accountant.
        impossible: the reason why this c does not go with the batch, or None.
    """

    c: float
    spread: Spread | None = None
    rate: float = 0.0
    noise: dict[Accountant, float] = field(default_factory=dict)
    impossible: str | None = None


@dataclass(frozen=True)
class SecretProtection(WeightedRows):
    """Rows are weighted by a linear program, so that every secret gets as much as its (p, r) allows.

    The program is Algorithm 2 of Ganesh et al. 2025. With `secrets.program.solver: greedy` rows are kept whole
    instead, one by one, as long as each of their secrets has room: rows with few secrets first.

    Formal guarantee: (p, r)-secret protection for each secret, by zero-out: whoever guesses a secret with
    probability at most p from all that is public (base model, which rows hold it, formats, lists) guesses it with
    probability at most r after seeing every checkpoint of the run. r is bounded by the blow-up function of N(X, s^2)
    against N(0, s^2), T-fold, at p (Ganesh et al. 2025, section 3.3; `PrivacyProfile.reconstruction`), or by
    KL <= KL(Bern(r) || Bern(p)), or the same with a Renyi divergence (Lemma 3.2; proved in `accounting.renyi`). The
    rows of a secret may differ in any way between candidates, and other rows not at all, so this holds whatever the
    predicates T_j of Definition 3.1 are. It is a theorem only if the listed rows are the only ones that reveal anything
    about a secret: `secrets.recall: 1.0` claims that.
    """

    accountant: Accountant = "blow-up"
    secrets: Secrets = field(default_factory=Secrets, hash=False)
    name: ClassVar[str] = "secret"
    reads: ClassVar[tuple[str, ...]] = ("secrets", "privacy.accountant")
    notion: ClassVar[str] = "(p, r)-secret protection"
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False, secrets=True, game=VALUE)
    bound_key: ClassVar[str] = "secrets.program.c"

    @property
    def unit(self) -> str:
        return "all rows that hold one secret"

    # bound -----------------------------------------------------------------------------------------
    def targets(self, shape: Shape) -> Targets:
        """Return the (prior, posterior) pairs of every secret."""
        return _targets(self, shape)

    def weights(self, shape: Shape) -> np.ndarray:
        program = self.secrets.program
        c = self.least_noise_choice(shape).c if program.c == "least-noise" else program.c
        return self._weights(shape, c)

    def _weights(self, shape: Shape, c: float) -> np.ndarray:
        if c == 1.0:
            return np.ones(shape.rows)
        targets, program = self.targets(shape), self.secrets.program
        kind = program.target or ("sqrt-kl" if self.accountant == "kl" else "gaussian")
        assert shape.offsets is not None
        needs = np.full(shape.units, np.inf)
        np.minimum.at(needs, targets.unit, need(kind, targets.prior, targets.posterior))
        limits = c * largest_c(shape.offsets, needs) * needs
        if program.solver == "greedy":
            return kept_greedily(shape, np.floor(limits).astype(np.int64))
        return solved(shape, limits, program.solver)

    def sweep(
        self, shape: Shape, accountants: tuple[Accountant, ...] = ("blow-up", "kl")
    ) -> Iterator[Choice]:
        """Yield the consequences of each c of SWEEP, one after the other."""
        for c in SWEEP:
            weights = self._weights(shape, c)
            spread = Spread.of(weights)
            other = _with_c(self, c)
            try:
                population = other.population(shape)
            except InputError as error:
                yield Choice(c, spread, impossible=str(error))
                continue
            noise = {
                name: least_noise_for_secrets(population, self.targets(shape), name) for name in accountants
            }
            yield Choice(c, spread, float(population.rho.max()), noise)

    def least_noise_choice(self, shape: Shape) -> Choice:
        """Choose the c with the least noise per gradient among those that keep enough rows.

        At a fixed batch the noise per gradient is s / B, and s always falls with c. The bound on c is
        `secrets.program.keep`, the share of effective rows that must be left.
        """
        return _least_noise_choice(self, shape)

    # plan ------------------------------------------------------------------------------------------
    def alternatives(self, shape: Shape) -> Iterator[Alternative]:
        """Yield each c of the program: which rows it keeps, and the noise by both accountants."""
        for choice in self.sweep(shape, tuple(dict.fromkeys(("blow-up", "kl", self.accountant)))):
            change, spread = f"c {choice.c:g}", choice.spread
            if spread is None or choice.impossible is not None:
                yield Alternative(change, facts={"c": choice.c}, impossible=choice.impossible)
                continue
            facts = {
                "c": choice.c,
                "rows_kept": spread.kept,
                "share_kept": spread.kept / shape.rows,
                "effective_rows": spread.effective,
                "effective_rows_per_step": self.batch * spread.effective / spread.kept,
                "epochs": self.steps * self.batch / spread.total,
                "largest_probability": choice.rate,
                "noise": choice.noise,
            }
            yield Alternative(change, _with_c(self, choice.c), choice.noise[self.accountant], facts)

    def outlook(self, shape: Shape) -> dict[str, Any]:
        """Compute how the noise grows if larger priors are protected too.

        For each prior of PRIORS, every secret is also protected against guessers with that prior and all smaller ones
        of the list. The posterior allowed to them is the secret's own, or ten times the prior if that is more.
        """
        targets, population = self.targets(shape), self.population(shape)
        found, asked = [], targets
        for prior in PRIORS:
            allowed = np.maximum(targets.posterior, GROWTH * prior)
            asked = Targets(
                np.concatenate([asked.unit, targets.unit]),
                np.concatenate([asked.prior, np.full(len(targets.prior), prior)]),
                np.concatenate([asked.posterior, allowed]),
            )
            noise = least_noise_for_secrets(population, asked, self.accountant)
            found.append({"prior": prior, "noise_multiplier": noise})
        return {"larger_priors": found}

    # account ---------------------------------------------------------------------------------------
    def least_noise(
        self, parameters: PrivacyParameters, shape: Shape, epsilon: float | None, delta: float
    ) -> float:
        return _certified(self, shape)

    def key_binding(self, shape: Shape) -> bytes:
        targets = self.targets(shape)
        return super().key_binding(shape) + b"".join(
            np.ascontiguousarray(values, "<f8").tobytes()
            for values in (targets.unit, targets.prior, targets.posterior)
        )

    # claim -----------------------------------------------------------------------------------------
    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        return replace(
            super().claim(shape, noise_multiplier, delta, steps),
            estimate_reasons=self._estimate_reasons,
            public_facts=(
                "the prior and the allowed posterior of every secret",
                "how many tokens each mention has: a prior is the chance of a guesser who knows it",
                "which mentions are of one secret",
            ),
            calibration=_CALIBRATION[self.accountant],
            not_covered=(
                "that a secret exists, how many rows hold it and which",
                "what tells of a secret without being found: other spellings, translations, hints, rows that the "
                "tagging does not list",
                "a guesser whose chance without the model is above the priors that were asked for; the reconstruction "
                "line says what larger priors come to",
            ),
            secret_targets=self._asked(shape),
            weakest_secrets=self._weakest(shape, noise_multiplier, steps),
        )

    def _asked(self, shape: Shape) -> tuple[tuple[float, float], ...]:
        """Return the distinct (prior, posterior) pairs; of many, the extreme posteriors of each prior."""
        targets = self.targets(shape)
        pairs = sorted(set(zip(targets.prior.tolist(), targets.posterior.tolist(), strict=True)))
        ends: dict[float, list[float]] = {}
        for p, r in pairs:
            ends.setdefault(p, []).append(r)
        if len(pairs) > 2 * LISTED:
            pairs = [(p, r) for p, rs in ends.items() for r in dict.fromkeys((min(rs), max(rs)))]
        if len(pairs) > 2 * LISTED:
            pairs = [*pairs[:LISTED], *pairs[-LISTED:]]
        return tuple(pairs)

    def _weakest(
        self, shape: Shape, noise_multiplier: float, steps: int
    ) -> tuple[tuple[str, float, float, float], ...]:
        """Return (id, prior, posterior asked, posterior reached at most) of the secrets nearest to it."""
        targets, names = self.targets(shape), shape.names()
        reached = achieved(self.population(shape, steps), targets, noise_multiplier)
        if noise_multiplier >= _certified(self, shape) and steps <= self.steps:
            # `achieved` may stop before it reaches the certified bound
            reached = np.minimum(reached, targets.posterior)
        order = np.argsort(-_odds(reached) + _odds(targets.posterior), kind="stable")[:LISTED]
        return tuple(
            (
                published(names[targets.unit[i]], int(targets.unit[i]), self.secrets),
                float(targets.prior[i]),
                float(targets.posterior[i]),
                float(reached[i]),
            )
            for i in order
        )

    @property
    def _estimate_reasons(self) -> tuple[str, ...]:
        if self.secrets.recall == 1.0:
            return ()
        share = (
            "is not claimed"
            if self.secrets.recall is None
            else f"is claimed to be {at_least(self.secrets.recall, 6)}"
        )
        return (
            f"the share of mentions of secrets that was found {share} (secrets.recall: 1.0 claims that all were)",
        )

    # from the config -------------------------------------------------------------------------------
    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        privacy, secrets = config.privacy, config.secrets
        if privacy.adjacency not in (None, "zero-out"):
            yield (
                "privacy.adjacency",
                "secret protection compares with the secret's rows zeroed out: zero-out",
            )
        if not _sources(secrets):
            yield (
                "secrets",
                "mechanism secret needs to know where secrets are: words, patterns, detector, column, rows or "
                "repository",
            )
        if (secrets.prior is None) != (secrets.posterior is None):
            missing = "prior" if secrets.prior is None else "posterior"
            yield f"secrets.{missing}", "prior and posterior come in pairs: give both"

    @classmethod
    def target_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        for key in ("epsilon", "noise_multiplier"):
            if getattr(config.privacy, key) is not None:
                yield f"privacy.{key}", "the noise follows from the secrets' priors and posteriors: remove it"


def _sources(secrets: Secrets) -> bool:
    return bool(
        secrets.words
        or secrets.patterns
        or asked(secrets.detector)
        or secrets.column
        or secrets.rows
        or secrets.repository.names_secrets
    )


def published(name: str, unit: int, secrets: Secrets) -> str:
    """Return the id of a secret as a claim shows it: one that confide gave or the config states, else a number.

    Numbers of lines, matches and entities, paths and packages are shown unchanged. Values of a column, names in a list
    of rows or a table of words, owners and authors are words of the data, so they are replaced.
    """
    kind, _, rest = name.partition(":")
    numbered = {"words", *secrets.patterns, *kinds(secrets.detector)}
    stated = {f"paths:{path}" for path in secrets.repository.paths}
    stated |= {f"packages:{package}" for package in secrets.repository.packages}
    if name == "rows" or name in stated or (kind in numbered and rest.isascii() and rest.isdigit()):
        return name
    known = {*_columns(secrets), "owners", "authors"}
    return f"{kind if kind in known else 'secret'} no. {unit + 1}"


def _columns(secrets: Secrets) -> list[str]:
    return [secrets.column] if isinstance(secrets.column, str) else secrets.column or []


def _odds(p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        odds: np.ndarray = np.log(p) - np.log1p(-p)
        return odds


def _with_c(mechanism: SecretProtection, c: float) -> SecretProtection:
    program = mechanism.secrets.program.model_copy(update={"c": c})
    return replace(mechanism, secrets=mechanism.secrets.model_copy(update={"program": program}))


@lru_cache(maxsize=8)
def _targets(mechanism: SecretProtection, shape: Shape) -> Targets:
    return Targets(*resolve(mechanism.secrets, shape.names()))


@lru_cache(maxsize=8)
def _certified(mechanism: SecretProtection, shape: Shape) -> float:
    """Compute the least noise for all steps."""
    return least_noise_for_secrets(
        mechanism.population(shape), mechanism.targets(shape), mechanism.accountant
    )


@lru_cache(maxsize=8)
def _least_noise_choice(mechanism: SecretProtection, shape: Shape) -> Choice:
    enough = [
        choice
        for choice in mechanism.sweep(shape, (mechanism.accountant,))
        if choice.spread is not None
        and choice.impossible is None
        and choice.spread.effective >= mechanism.secrets.program.keep * shape.rows
    ]
    if not enough:
        raise InputError(
            "secrets.program.keep: no c of the sweep keeps so many rows with this train.batch: lower it"
        )
    return min(enough, key=lambda choice: choice.noise[mechanism.accountant])
