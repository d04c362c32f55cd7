"""Redaction alone: ordinary training on rows without their sensitive characters.

This is the "Redacted" baseline of Shi et al. 2022 ("Just Fine-tune Twice").
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from confide.data.shape import Shape
from confide.privacy.accounting import Untouched
from confide.privacy.mechanisms.sensitive import SensitiveText
from confide.privacy.mechanisms.values import VALUE, Aggregation, ClaimParts, DataNeeds, PrivacyParameters

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class RedactedOnly(SensitiveText):
    """Every row is redacted before it is tokenised; then the run takes ordinary steps.

    Formal guarantee: (0, 0)-SDP if the detector finds everything sensitive (Shi et al. 2022, Theorem 1). Rows that
    differ in sensitive characters alone become the same redacted row, so no computed value depends on these
    characters.
    """

    name: ClassVar[str] = "redacted"
    clips: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("detector",)
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False, redaction="instead", game=VALUE)

    def aggregation(self, parameters: PrivacyParameters, noise_multiplier: float) -> Aggregation:
        return Aggregation(None, 0.0, 1 / parameters.divisor)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        untouched = Untouched(
            "Sensitive characters are replaced by a mask before anything is computed from a row."
        )
        return replace(
            super().parameters(shape, steps),
            process=untouched,
            zeroed=untouched,
            delta=0.0,
            contribution="1 row, redacted; it may enter any step",
        )

    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        parts = super().claim(shape, noise_multiplier, delta, steps)
        return replace(parts, sampling=self.sampling)  # the claim assumes nothing about the sampling

    def least_noise(
        self, parameters: PrivacyParameters, shape: Shape, epsilon: float | None, delta: float
    ) -> float:
        return 0.0

    @classmethod
    def target_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        for key in ("epsilon", "noise_multiplier", "delta"):
            if getattr(config.privacy, key) is not None:
                yield f"privacy.{key}", "mechanism redacted adds no noise: remove it, or choose selective"
