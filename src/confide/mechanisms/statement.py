"""From a mechanism and the shape of the data to numbers, and from numbers to a claim.

The only place where noise is calibrated and a guarantee is written: plan, train and report all call it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from confide.accounting import Curve
from confide.claims import NOT_COVERED, PRIORS, Guarantee
from confide.mechanisms.base import Mechanism, Terms
from confide.shape import Shape

if TYPE_CHECKING:
    from confide.settings import Config


@dataclass(frozen=True)
class Setting:
    """A mechanism on data of a known shape, with its noise."""

    mechanism: Mechanism
    shape: Shape
    terms: Terms
    noise_multiplier: float
    delta: float

    def curve(self, steps: int | None = None) -> Curve:
        """The privacy curve after `steps` steps; default: all."""
        terms = self.terms if steps is None else self.mechanism.terms(self.shape, steps)
        return terms.process.curve(self.noise_multiplier)

    def noise_per_gradient(self) -> float:
        """Standard deviation of the noise on the mean of the clipped gradients, in units of the clip norm."""
        return self.noise_multiplier / self.terms.divisor


def settle(
    mechanism: Mechanism,
    shape: Shape,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
) -> Setting:
    """Resolve rates, delta and noise: from `epsilon` the least noise, or the noise as given.

    Raises:
        InputError: the mechanism cannot run on such data, or no noise meets the target.
    """
    terms = mechanism.terms(shape)
    delta = terms.delta if delta is None else delta
    if noise_multiplier is None:
        noise_multiplier = mechanism.least_noise(terms, shape, epsilon, delta)
    return Setting(mechanism, shape, terms, noise_multiplier, delta)


_ROWS_CUT = {
    "causal-lm": "each document is tokenised, ended by a separator and cut into rows of at most {} tokens; no row "
    "holds text of two documents, a random chunk only text of one unit",
    "masked-lm": "each document is one row, cut off at {} tokens",
    "classification": "each document is one row, cut off at {} tokens",
}
_RANDOMNESS = {
    "secure": "AES-256 in counter mode (noise on a GPU: ChaCha20) under a secret run key from the operating system",
    "fast": "draws from AES-256 under the run key; noise from the framework's own generator (noise: fast), which is "
    "not cryptographic",
}
_CLASSES = ("the classes: how many there are, and in which order",)
_LABELS = ("the class of each row",)
_FLOATS = "noise is float32 Box-Muller from 64-bit words: real-number theorems, floating-point arithmetic"


def state_guarantee(
    setting: Setting, steps: int, published: bool, config: "Config", provenance: Mapping[str, str]
) -> Guarantee:
    """What a run of this setting protects once `steps` steps are taken, every line of it.

    Args:
        published: whether the run key is known to others.
    """
    steps = max(1, steps)  # before the first, there is only the base model: one step's bound holds
    mechanism, terms = setting.mechanism, setting.mechanism.terms(setting.shape, steps)
    curve = terms.process.curve(setting.noise_multiplier)
    zeroed = curve
    if terms.zeroed != terms.process:
        zeroed = terms.zeroed.curve(setting.noise_multiplier)
    epsilon = curve.epsilon(setting.delta)
    protected = mechanism.notion != "none" and math.isfinite(epsilon)
    estimates = list(mechanism.doubts())
    if published:
        estimates.append("the run key is published: no guarantee against who knows it")
    if (
        config.privacy.noise == "fast" and setting.noise_multiplier > 0
    ):  # torch seeds it with 32 bits: so many noises can be tried one by one
        estimates.append("the noise comes from a generator with a seed of 32 bits (noise: fast)")
    randomness = _RANDOMNESS[config.privacy.noise]
    if published:
        randomness = randomness.replace(
            "under a secret run key from the operating system", "under a published key"
        )
        randomness = randomness.replace("under the run key", "under a published key")
    return Guarantee(
        notion=mechanism.notion if protected else "none",  # type: ignore[arg-type]
        unit=mechanism.unit,
        rows_per_unit=terms.rows_per_unit,
        contribution=terms.contribution,
        rows_cut=_rows_cut(mechanism, config),
        adjacency=mechanism.adjacency if protected else "not applicable",  # type: ignore[arg-type]
        public_facts=(
            *terms.facts,
            *mechanism.facts(),
            *(_CLASSES if config.task == "classification" else ()),
            *(_LABELS if config.task == "classification" and mechanism.redaction != "none" else ()),
        ),
        epsilon=epsilon if protected else math.inf,
        delta=setting.delta,
        curve=tuple(curve.points()) if protected else (),
        reconstruction=tuple((p, float(zeroed.reconstruction(p)) if protected else 1.0) for p in PRIORS),
        advantage=float(curve.advantage()) if protected else 1.0,
        true_positive_rate=float(curve.true_positive_rate(0.01)) if protected else 1.0,
        noise_multiplier=setting.noise_multiplier,
        clip_norm=mechanism.combine(terms, setting.noise_multiplier).clip_norm,
        steps=steps,
        sampling=mechanism.sampling_assumed,
        sampling_used=mechanism.sampling,
        expected_batch=terms.expected_batch,
        sampling_probability=terms.sampling.range,
        accountant=" ".join(
            filter(None, [f"dp_accounting PLD: {terms.process.describe()}", mechanism.calibration()])
        ),
        accountant_version=version("dp-accounting"),
        discretisation=curve.interval,
        protected_output="every checkpoint and the final model of this run, released alone",
        not_covered=(
            *NOT_COVERED,
            *mechanism.exclusions(),
            "a non-private twin of the run: it repeats the draws and would reveal them",
        ),
        trust="who runs the training sees all text; who receives release/ sees the model alone and is assumed to "
        "know everything but the unit's text and the run key",
        randomness=f"{randomness}; {_FLOATS}",
        provenance=provenance,
        evidence=("no audit was made yet",),
        estimates=tuple(estimates),
        secret_targets=mechanism.asked(setting.shape),
        epsilons=mechanism.epsilons(setting.shape, setting.noise_multiplier, setting.delta, steps),
        worlds=mechanism.worlds() if protected else "",
        closest_secrets=mechanism.closest(setting.shape, setting.noise_multiplier, steps),
    )


def _rows_cut(mechanism: Mechanism, config: "Config") -> str:
    cut = _ROWS_CUT[config.task].format(config.data.max_length)
    if mechanism.redaction == "none":
        return cut
    redacted = f"sensitive spans are replaced by one mask token each before text is tokenised; then {cut}"
    if mechanism.redaction != "beside":
        return redacted
    counting = f"a mask counting {config.redacted.span_tokens} tokens"
    return f"{redacted}, {counting}; a row of the second phase holds the text of its redacted row"
