"""Selective DP by fine-tuning twice (Shi et al. 2022): on redacted rows, then privately on the rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from confide.data.shape import Shape
from confide.privacy.accounting import After, DominatingPair, MixtureOfGaussians, Untouched
from confide.privacy.mechanisms.base import calibrated
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.sensitive import SensitiveText
from confide.privacy.mechanisms.values import VALUE, ClaimParts, DataNeeds, Phase, PrivacyParameters
from confide.utils.rounding import at_least, at_most

if TYPE_CHECKING:
    from confide.config.schema import Config

_LEAST_LIGHT = (
    0.1  # more noise is never wrong; with less, the privacy losses would span a grid too wide to compose
)

_NEEDED = {
    "epsilon": "how much phase 1 may spend on what the detector misses",
    "missing_rate": "[low, high], the share of words that the detector misses, as confide redact --marks estimates",
}


@dataclass(frozen=True)
class Selective(SensitiveText):
    """Phase 1 takes ordinary steps on redacted rows. Phase 2 is DP-SGD on the rows themselves, cut at the same places.

    Formal guarantee: (epsilon, delta)-SDP under replace-one, if the detector finds everything sensitive. Phase 1 is a
    function of the redacted rows, which neighbours share: (0, 0). Phase 2 draws each row with probability p. Under
    replace-one it is accounted by `accounting.Replacement`, whereas Shi et al. 2022 (Theorem 1) use the zero-out
    number; `adjacency: zero-out` gives that number. An attacker who guesses the replaced characters is bounded by the
    zero-out curve in either case, with no factor of 2 (`PrivacyProfile.reconstruction`).

    `screened`: phase 1 runs on documents that a person has screened; there recall is claimed of detector and person
    together. `light-noise`: phase 1 is noised as well, accounted at the rate of rows times the share of missed words
    (Balle et al. 2018, Theorem 9). This is an estimate, an average over words (Shi et al. 2022, section 3.1). `claim`
    also states the epsilon of a row in which something was missed.
    """

    delta: float | None = None

    name: ClassVar[str] = "selective"
    reads: ClassVar[tuple[str, ...]] = ("detector", "redacted")
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False, redaction="beside", game=VALUE)

    @property
    def all_steps(self) -> int:
        return self.redacted.steps + self.steps

    @property
    def is_light(self) -> bool:
        return self.redacted.mode == "light-noise"

    def phases(self, shape: Shape, noise_multiplier: float) -> tuple[Phase, ...]:
        first = self._lightly_noised() if self.is_light else self._ordinary()
        noise = self._light_noise(shape) if self.is_light else 0.0
        rate = self.redacted.learning_rate
        return (
            Phase("redacted", first, noise, self.redacted.steps, on_public=True, learning_rate=rate),
            Phase("main", self, noise_multiplier, self.steps),
        )

    def phase_of(self, step: int) -> tuple[int, int]:
        before = self.redacted.steps
        return (0, step) if step < before else (1, step - before)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.all_steps if steps is None else steps
        noised = max(0, steps - self.redacted.steps)
        parameters = super().parameters(shape, max(1, noised))
        process, zeroed = parameters.process, parameters.zeroed
        if self.is_light:
            process = self._after_light(parameters.process if noised else None, shape, steps)
            zeroed = self._after_light(parameters.zeroed if noised else None, shape, steps, zeroed=True)
        elif not noised:
            process = zeroed = Untouched("Only redacted rows were used so far.")
        before = f"{min(steps, self.redacted.steps)} on redacted rows before ({self.redacted.mode})"
        counted = {f"number of steps {max(1, noised)}": f"number of noised steps {noised}, and {before}"}
        return replace(
            parameters,
            process=process,
            zeroed=zeroed,
            contribution="its row, redacted in the first phase and as it is in the second",
            facts=tuple(counted.get(fact, fact) for fact in parameters.facts),
        )

    def rows_computed(self, parameters: PrivacyParameters) -> float:
        return super().rows_computed(parameters) + self._public_batch * self.redacted.steps

    # light noise -----------------------------------------------------------------------------------
    def _lightly_noised(self) -> DPSGD:
        return DPSGD(
            self._public_batch,
            self.redacted.steps,
            clip_norm=self.clip_norm,
            normalised=self.normalised,
            adjacency=self.adjacency,
            row_length=self.row_length,
            scales=self.scales,
            common_tokens=self.common_tokens,
        )

    def _missed(self, shape: Shape, steps: int, share: float, zeroed: bool = False) -> DominatingPair:
        """Return the process of missed words in `steps` steps of phase 1, if they are `share` of all."""
        if share == 0:
            return Untouched("No word was missed.")
        rate = self._lightly_noised().parameters(shape).sampling.rate
        process = MixtureOfGaussians.bernoulli(rate * share, min(steps, self.redacted.steps))
        return process if zeroed else self._process(process)

    def _light_noise(self, shape: Shape) -> float:
        """Compute the noise with which phase 1 alone spends `redacted.epsilon`, at the greatest missing rate."""
        missed = self._missed(shape, self.redacted.steps, self._missing_rate[1])
        delta = self._delta(shape.rows, shape.rows) if self.delta is None else self.delta
        assert self.redacted.epsilon is not None
        noise = calibrated(missed, self.redacted.epsilon, delta)  # type: ignore[arg-type]  # frozen, all of them
        return max(noise, _LEAST_LIGHT)

    @property
    def _missing_rate(self) -> tuple[float, float]:
        assert self.redacted.missing_rate is not None
        return self.redacted.missing_rate

    def _after_light(
        self,
        process: DominatingPair | None,
        shape: Shape,
        steps: int,
        zeroed: bool = False,
        share: float | None = None,
    ) -> DominatingPair:
        share = self._missing_rate[1] if share is None else share
        noise, rate = self._light_noise(shape), self._lightly_noised().parameters(shape).sampling.rate
        words = (
            f"on each of {min(steps, self.redacted.steps)} steps a redacted row takes part with probability "
            f"{at_most(rate, 6)}, which is multiplied by the share of words that were missed, taken "
            f"to be {at_most(share, 3)}."
        )
        return After(self._missed(shape, steps, share, zeroed), noise, process, words)

    def _epsilons(
        self, shape: Shape, noise_multiplier: float, delta: float, steps: int
    ) -> tuple[tuple[str, float], ...]:
        low, high = self._missing_rate
        noised = steps - self.redacted.steps
        process = super().parameters(shape, noised).process if noised > 0 else None
        return tuple(
            (
                what,
                self._after_light(process, shape, steps, share=share).curve(noise_multiplier).epsilon(delta),
            )
            for what, share in (
                (f"if {at_least(low, 3)} of all words are missed", low),
                (f"if {at_least(high, 3)} of all words are missed", high),
                ("for a row in which something was missed", 1.0),
            )
        )

    # claim -----------------------------------------------------------------------------------------
    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        parts = super().claim(shape, noise_multiplier, delta, steps)
        if not self.is_light:
            return parts
        return replace(parts, epsilons=self._epsilons(shape, noise_multiplier, delta, steps))

    @property
    def _estimate_reasons(self) -> tuple[str, ...]:
        if not self.is_light:
            return super()._estimate_reasons
        low, high = self._missing_rate
        return (
            f"the share of words that are sensitive and missed was estimated on a sample "
            f"({at_least(low, 3)} to {at_most(high, 3)}), "
            "and its epsilon is an average over words: a row in which something was missed is drawn as often as any "
            "other, and has a larger one (Shi et al. 2022, section 3.1)",
        )

    @property
    def _who(self) -> str:
        if self.redacted.mode == "screened":
            return "the detector, and on the screened documents a person, find"
        return super()._who

    @property
    def _missed_text(self) -> str:
        if self.redacted.mode == "screened":
            return (
                "sensitive text of the screened documents that neither the detector nor the person found: it is "
                "trained on without noise, and may be recovered word for word; and where rows are cut, on which text "
                "that the detector misses in other documents bears as well"
            )
        if not self.is_light:
            return super()._missed_text
        return (
            "sensitive text that the detector misses, one by one: light noise hides a share of all words on average, "
            "and a row that holds some of them has the epsilon of its own line"
        )

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        redacted = config.redacted
        if (redacted.mode == "screened") != (redacted.marks is not None):
            yield (
                "redacted.marks",
                "mode: screened trains on what a person has screened: name the file of `confide redact --sample`"
                if redacted.marks is None
                else f"is for mode: screened, and this is {redacted.mode}",
            )
        light = redacted.mode == "light-noise"
        for key in ("epsilon", "missing_rate"):
            stated = getattr(redacted, key) is not None
            if stated != light:
                yield (
                    f"redacted.{key}",
                    f"is for mode: light-noise, and this is {redacted.mode}"
                    if stated
                    else f"mode: light-noise needs it: {_NEEDED[key]}",
                )
        low, high = redacted.missing_rate or (0.0, 1.0)
        if low > high:
            yield "redacted.missing_rate", f"is [low, high], and {low:g} is above {high:g}"
        elif high == 0:
            yield (
                "redacted.missing_rate",
                "high must be above 0: no finite sample shows that nothing is missed",
            )
        if light and config.detector.recall == 1.0:
            yield (
                "detector.recall",
                "1.0 claims that nothing is missed, and light noise is for what is missed",
            )
        if light and None not in (redacted.epsilon, config.privacy.epsilon):
            assert redacted.epsilon is not None
            assert config.privacy.epsilon is not None
            if redacted.epsilon >= config.privacy.epsilon:
                yield "redacted.epsilon", "must be below privacy.epsilon, of which it is a part"
