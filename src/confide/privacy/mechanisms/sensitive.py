"""The common part of mechanisms that protect the sensitive characters of a row, not the whole row."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from confide.config.schema import Policy, Redacted
from confide.data.shape import Shape
from confide.privacy.mechanisms.dp_sgd import DPSGD
from confide.privacy.mechanisms.values import VALUE, Aggregation, ClaimParts, DataNeeds, PrivacyParameters
from confide.privacy.strength import MISSED
from confide.sensitive.detectors import asked
from confide.utils.rounding import at_least

if TYPE_CHECKING:
    from confide.config.schema import Config

_REPLACING = (
    "a comparison with other characters in place of the sensitive ones, whose epsilon may be more than twice as large "
    "(adjacency: replace-one)"
)


@dataclass(frozen=True)
class SensitiveText(DPSGD):
    """Rows drawn one by one, in which a detector marks the sensitive text.

    A claim assumes that the detector finds all of it. The user asserts this by `detector.recall: 1.0`; otherwise the
    claim is an estimate.
    """

    detector: Policy = field(default_factory=Policy)
    redacted: Redacted = field(default_factory=Redacted)

    notion: ClassVar[str] = "selective DP"
    suggested_caps: ClassVar[tuple[int | str, ...]] = ()
    lengths: ClassVar[str] = "where rows begin and end in the redacted text, and the lengths of redacted rows"
    compares: ClassVar[str] = "replace-one"
    has_plain_steps: ClassVar[bool] = True
    correlates: ClassVar[bool] = False
    deals: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    needs: ClassVar[DataNeeds] = DataNeeds(named_unit=False, game=VALUE)

    @property
    def unit(self) -> str:
        return f"the sensitive characters of one row (at most {self.row_length} tokens of one document)"

    def claim(self, shape: Shape, noise_multiplier: float, delta: float, steps: int) -> ClaimParts:
        return replace(
            super().claim(shape, noise_multiplier, delta, steps),
            worlds=self._worlds,
            estimate_reasons=self._estimate_reasons,
            public_facts=(
                f"what is sensitive: what is marked by {'; '.join(_named(self.detector))}",
                f"all other text, and where marked spans stand in it{self._and_kinds}: the redacted rows",
                "which documents are blank, and what is removed from documents before anything is marked",
            ),
            not_covered=(
                self._missed_text,
                "what a mask tells by itself: that something which the detector marks stands there; and what is found "
                "elsewhere because of it",
                "what the rest of a row, which is public, lets one infer of its sensitive characters",
                "a secret that stands in several rows, which several units tell",
                *((_REPLACING,) if self.adjacency == "zero-out" else ()),
            ),
        )

    @property
    def _worlds(self) -> str:
        if self.adjacency == "zero-out":
            return (
                "a world in which the row's text was used in the noised steps with one in which it counted for "
                "nothing there"
            )
        return (
            "a world in which the row had these sensitive characters with one in which it had any others, for which "
            f"the detector marks the same places{self._as_same_kinds} and all other text is the same"
        )

    @property
    def _and_kinds(self) -> str:
        masks = ", ".join(dict.fromkeys(self.detector.masks.values()))
        return f", with the kinds that have a mask of their own ({masks})" if masks else ""

    @property
    def _as_same_kinds(self) -> str:
        return ", as the same kinds where these have a mask of their own," if self.detector.masks else ""

    @property
    def _public_batch(self) -> float:
        return self.redacted.batch or self.batch

    def _ordinary(self) -> "Ordinary":
        """Return the mechanism of ordinary steps on the rows in which nothing is sensitive."""
        return Ordinary(self._public_batch, self.redacted.steps, row_length=self.row_length)

    @property
    def _estimate_reasons(self) -> tuple[str, ...]:
        recall = self.detector.recall
        if recall == 1.0:
            return ()
        share = "is not claimed" if recall is None else f"is claimed to be {at_least(recall, 6)}"
        return (
            f"the share of sensitive text that {self._who} {share} (detector.recall: 1.0 claims all), and {MISSED}",
        )

    @property
    def _who(self) -> str:
        """The detectors at work and where they search, in words."""
        return "the detector finds"

    @property
    def _missed_text(self) -> str:
        return (
            "sensitive text that the detector misses: it is trained on without noise, and may be recovered word for "
            "word"
        )

    @classmethod
    def validation_errors(cls, config: "Config") -> Iterator[tuple[str, str]]:
        if config.privacy.adjacency == "add-or-remove":
            yield "privacy.adjacency", f"{cls.name} compares texts of one row: replace-one or zero-out"
            return
        yield from super().validation_errors(config)
        stated = config.detector.model_dump(exclude={"recall", "pipeline", "masks"}, exclude_defaults=True)
        if not stated:
            yield (
                "detector",
                f"mechanism {cls.name} needs to know what is sensitive: level, patterns, words, expressions or spans",
            )


@dataclass(frozen=True)
class Ordinary(DPSGD):
    """Ordinary steps on rows in which nothing is sensitive. It protects nothing, and has nothing to protect."""

    name: ClassVar[str] = "ordinary"
    correlates: ClassVar[bool] = False
    deals: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    notion: ClassVar[str] = "none"

    def _rate(self, population: int, what: str) -> float:
        return 1.0 if 1 <= population < self.batch else super()._rate(population, what)

    def aggregation(self, parameters: PrivacyParameters, noise_multiplier: float) -> Aggregation:
        return Aggregation(None, 0.0, 1 / parameters.divisor)


def _named(policy: Policy) -> Iterator[str]:
    """Yield the detectors of a config, without the content of word lists and expressions."""
    for each, settings in asked(policy):
        yield each.describe(settings)
    if policy.words is not None:
        yield "a list of words"
    if policy.expressions:
        yield f"expressions {', '.join(policy.expressions)}"
    if policy.spans is not None:
        yield "the data's own spans"
