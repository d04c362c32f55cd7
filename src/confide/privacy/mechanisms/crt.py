"""Confidentially Redacted Training (Zhao, Li and Wang 2022): the baseline of Shi et al. 2022.

Shi et al. 2022 is "Just Fine-tune Twice".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from confide.config import registry
from confide.config.schema import Redacted
from confide.data.shape import Shape
from confide.privacy.mechanisms.sensitive import SensitiveText
from confide.privacy.mechanisms.values import MASK, ClaimParts, DataNeeds, Phase, PrivacyParameters

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class ConfidentiallyRedacted(SensitiveText):
    """Rows are deduplicated and redacted; ordinary steps on rows without findings alternate with noised steps.

    The noised steps run on the rows with findings. The two kinds of steps are spread evenly over the run.

    Formal guarantee: (epsilon, delta)-confidentiality. Take a row in which something was found, once with a further
    secret that the detector misses and once with a mask in that secret's place: the two are told apart no better than
    `accounting.Replacement` allows. Which rows those are is public. The claim says nothing about rows in which nothing
    was found. For a causal LM, a secret whose length in tokens differs from the mask's shifts the rows after it, so
    there the claim is an estimate.
    """

    task: str = "causal-lm"

    name: ClassVar[str] = "crt"
    reads: ClassVar[tuple[str, ...]] = ("detector", "redacted")
    notion: ClassVar[str] = "confidentiality"
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False, redaction="apart", game=MASK)
    lengths: ClassVar[str] = (
        "where rows begin and end in the redacted text, and the lengths of redacted rows, but for a missed secret's own"
    )

    @property
    def unit(self) -> str:
        return (
            "a secret in one row in which the detector of the config found something (a row is at most "
            f"{self.row_length} tokens of one document)"
        )

    @property
    def all_steps(self) -> int:
        return self.redacted.steps + self.steps

    def phases(self, shape: Shape, noise_multiplier: float) -> tuple[Phase, ...]:
        steps, rate = self.redacted.steps, self.redacted.learning_rate
        return (
            Phase("ordinary", self._ordinary(), 0.0, steps, on_public=True, learning_rate=rate),
            Phase("main", self, noise_multiplier, self.steps),
        )

    def _ordinary_before(self, step: int) -> int:
        """Count the ordinary steps among the first `step` steps; the two kinds are spread evenly over the run."""
        return step * self.redacted.steps // self.all_steps

    def phase_of(self, step: int) -> tuple[int, int]:
        ordinary = self._ordinary_before(step)
        is_ordinary = self._ordinary_before(step + 1) > ordinary
        return (0, ordinary) if is_ordinary else (1, step - ordinary)

    def parameters(self, shape: Shape, steps: int | None = None) -> PrivacyParameters:
        steps = self.all_steps if steps is None else steps
        noised = max(1, steps - self._ordinary_before(steps))
        parameters = super().parameters(shape, noised)
        return replace(
            parameters,
            contribution="1 row, redacted; it may enter any noised step",
            facts=(*parameters.facts, f"{self.redacted.steps} ordinary steps between the noised ones"),
        )

    def rows_computed(self, parameters: PrivacyParameters) -> float:
        return super().rows_computed(parameters) + self._public_batch * self.redacted.steps

    @property
    def _worlds(self) -> str:
        if self.adjacency == "zero-out":
            return super()._worlds
        return (
            "a world in which a row with a finding held one more secret, which the detector misses, with one in which "
            "a mask stood in its place"
        )

    @property
    def _estimate_reasons(self) -> tuple[str, ...]:
        moved = (
            "a secret of another length in tokens than a mask moves the rows of its document that follow, also "
            "ordinary ones"
        )
        cuts_documents = registry.task_facts(self.task).cuts_documents
        return (*super()._estimate_reasons, *((moved,) if cuts_documents else ()))

    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        return replace(
            super().claim(shape, noise_multiplier, delta, steps),
            public_facts=(
                "which rows hold a finding, how rows are cut, and which documents are duplicates of others but for "
                "such a secret",
                "the text of rows in which the detector found nothing",
            ),
        )

    @property
    def _missed_text(self) -> str:
        return "a secret that the detector misses in a row in which it finds nothing: it is trained on without noise"

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        yield from super().validation_errors(config)
        for key in ("mode", "marks", "epsilon", "missing_rate", "span_tokens"):
            if getattr(config.redacted, key) != getattr(Redacted(), key):
                yield f"redacted.{key}", f"{getattr(config.redacted, key)} is for mechanism selective"
