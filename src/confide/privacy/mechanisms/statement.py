"""Calibrate a mechanism on data of a known shape, and write the guarantee of a run.

Noise is calibrated and a guarantee is written here only: plan, train and report all call this module.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from confide.config import registry
from confide.config.model_sections import idle
from confide.data.conditions import Conditions
from confide.data.shape import Shape
from confide.data.wording import is_worded, loss_on
from confide.privacy.accounting import PrivacyProfile, compose
from confide.privacy.accounting.stock import recheck
from confide.privacy.guarantee import PRIORS, PUBLISHED_KEY, STATISTICS, Guarantee
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.tuned import UNTUNED, SweepAccounting
from confide.privacy.mechanisms.values import Aggregation, ClaimParts, PrivacyParameters
from confide.privacy.sampling import bins_of
from confide.privacy.strength import large_delta
from confide.utils.errors import InputError
from confide.utils.rounding import at_most
from confide.utils.sentences import many

if TYPE_CHECKING:
    from confide.config.schema import Config

_MUCH = 0.05  # of the batch that was asked for

_COARSE = 1e-3
"""The interval for composing many whole runs. It is coarse because each of their curves may span a million points."""


@dataclass(frozen=True)
class CalibratedMechanism:
    """A mechanism on data of a known shape, with its noise."""

    mechanism: Mechanism
    shape: Shape
    parameters: PrivacyParameters
    noise_multiplier: float
    delta: float
    tuning: SweepAccounting = UNTUNED

    def after(self, steps: int) -> PrivacyParameters:
        """Return the privacy parameters after `steps` steps."""
        return self.tuning.parameters(self.mechanism.parameters(self.shape, steps))

    def curve(self, steps: int | None = None) -> PrivacyProfile:
        """Return the privacy curve after `steps` steps; default: all."""
        parameters = self.parameters if steps is None else self.after(steps)
        return parameters.process.curve(self.noise_multiplier)

    def claim(self, steps: int | None = None) -> ClaimParts:
        """Return the mechanism's own part of the guarantee after `steps` steps; default: all."""
        steps = self.mechanism.all_steps if steps is None else steps
        return self.mechanism.claim(self.shape, self.noise_multiplier, self.delta, steps)

    def aggregation(self) -> Aggregation:
        """Return clip norm, noise and scale of the mechanism's steps."""
        return self.mechanism.aggregation(self.parameters, self.noise_multiplier)

    def noise_per_gradient(self) -> float:
        """Return the standard deviation of the noise on the mean of the clipped gradients, in units of the clip norm.

        If noise is correlated over steps, this is that of the first step.
        """
        return self.noise_multiplier * self.mechanism.sensitivity / self.parameters.divisor


def calibrate(
    mechanism: Mechanism,
    shape: Shape,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    tuning: SweepAccounting = UNTUNED,
) -> CalibratedMechanism:
    """Resolve rates, delta and noise. The noise is as given, or the least that meets `epsilon`.

    Args:
        tuning: how the other settings are found; `epsilon` is the target for all runs that it counts.

    Raises:
        InputError: the mechanism cannot run on such data or be tuned in this way, or no noise meets the target.
    """
    parameters = tuning.parameters(mechanism.parameters(shape))
    if delta is None and parameters.delta >= 1 and mechanism.protects:
        raise InputError(
            f"data.train: among {many(parameters.rows, 'row')} nothing can be hidden, so "
            "there is no default of privacy.delta: give more text"
        )
    delta = parameters.delta if delta is None else delta
    if noise_multiplier is None:
        noise_multiplier = mechanism.least_noise(parameters, shape, epsilon, delta)
    setting = CalibratedMechanism(mechanism, shape, parameters, noise_multiplier, delta, tuning)
    tuning.admit(setting, epsilon)
    return setting


def recheck_claim(setting: CalibratedMechanism, steps: int) -> bool:
    """Check that `dp_accounting` on its own finds the same epsilon for a run of `steps` steps, before it is claimed.

    The dominating pairs of one run are compared, even if a sweep is counted: how a sweep is counted is confide's own
    accounting.

    Returns:
        False if `dp_accounting` has no mechanism for the pairs, or nothing is claimed.

    Raises:
        CheckFailed: `dp_accounting` finds another epsilon.
    """
    mechanism, s = setting.mechanism, setting.noise_multiplier
    if not mechanism.protects:
        return False
    parameters = mechanism.parameters(setting.shape, max(1, steps))
    pairs = dict.fromkeys((parameters.process, parameters.zeroed))
    found = [recheck(pair, s, setting.delta, pair.curve(s).epsilon(setting.delta)) for pair in pairs]
    return any(found)


def warnings(setting: CalibratedMechanism, config: "Config") -> list[str]:
    """Return warnings about a setting, to be shown before it is used.

    They are private under add-or-remove, since they reveal how many units there are.
    """
    mechanism, named = setting.mechanism, config.data.unit
    if not mechanism.protects:
        return []
    if not setting.noise_multiplier:
        return ["privacy.noise_multiplier: 0 adds no noise, so no privacy is claimed and nobody is protected"]
    found = []
    if named and not mechanism.needs.named_unit:
        names = named if isinstance(named, str) else " and ".join(named)
        found.append(
            f"data.unit: {names} is not what {mechanism.name} protects: one unit is {mechanism.unit}; for all text of "
            f"one {names} together choose uls"
        )
    if keys := idle(config.adapter):
        found.append(
            f"{' and '.join(keys)}: without effect, since adapter.kind is {config.adapter.kind}; is kind: lora meant?"
        )
    if mechanism.sampling == "shuffle" and mechanism.deals:
        found.append(
            "privacy.sampling: shuffled batches make the claim an estimate; with bins each also takes part once an "
            "epoch, and the claim is a theorem"
        )
    if mechanism.sampling == "bins":
        found += _of_bins(setting)
    found += _under_a_cap(setting)
    if mechanism.histograms is not None:
        found += mechanism.histograms.doubts(setting.parameters.units, _conditions(config))
    large = large_delta(setting.parameters.units, setting.delta)
    return found if large is None else [*found, large]


def _conditions(config: "Config") -> int:
    """Return how many conditions a config lists."""
    listed = Conditions.of(config.data, counts=True)
    return 0 if listed is None else len(listed.listed)


def _of_bins(setting: CalibratedMechanism) -> Iterator[str]:
    """Yield what whole epochs change, where it is much."""
    mechanism, parameters = setting.mechanism, setting.parameters
    epoch, drawn = bins_of(parameters.sampling.rate), parameters.expected_batch
    if abs(drawn / mechanism.batch - 1) > _MUCH:
        yield (
            f"privacy.sampling: with bins an epoch has a whole number of steps, here {epoch}, so a step draws about "
            f"{at_most(drawn, 4)} and not {at_most(mechanism.batch, 4)}"
        )
    if mechanism.steps < epoch:
        yield (
            f"train.steps: {mechanism.steps} are less than an epoch of {epoch}, so some take part in no step at all"
        )


def _under_a_cap(setting: CalibratedMechanism) -> Iterator[str]:
    """Yield what draws that are made anew change, where it is much."""
    parameters = setting.parameters
    share = parameters.mean_rate / parameters.sampling.rate
    if parameters.sampling.kind == "truncated" and share < 1 - _MUCH:
        yield (
            f"train.max_batch: a step of more than {setting.mechanism.max_batch} is drawn anew, so a step draws about "
            f"{at_most(share * parameters.expected_batch, 4)} and not {at_most(parameters.expected_batch, 4)}, and "
            f"noise is {at_most(1 / share, 3)} times as large beside what it learns; a larger cap makes this less"
        )


def promise(setting: CalibratedMechanism, config: "Config") -> tuple[object, ...]:
    """Return everything that the claim depends on. All candidates of a counted sweep must agree on it."""
    mechanism, parameters, parts = setting.mechanism, setting.parameters, setting.claim()
    who = (mechanism.notion, mechanism.unit, mechanism.adjacency, mechanism.sampling, parts.worlds)
    published = config.privacy.published_key is not None
    return (
        *who,
        parameters.process,
        parameters.zeroed,
        setting.noise_multiplier,
        setting.delta,
        _estimates(setting, parts, published, config),
    )


def together(settings: Sequence[CalibratedMechanism]) -> tuple[float, float] | None:
    """Compute (epsilon, delta) of several runs on the same rows, each chosen in view of the earlier results.

    Return None if they give no protection.

    Formal guarantee: runs with the same process and noise compose by adding their privacy losses, whatever else differs
    between them. Runs that differ in process or noise, but have the same target, compose to that epsilon and delta
    times the number of runs. If their noise was stated instead, the largest epsilon among the runs that were made
    takes the place of the target, which makes the result an estimate.
    """
    first = settings[0]
    if not all(setting.mechanism.protects for setting in settings):
        return None
    alike = {(s.parameters.process, s.noise_multiplier, s.delta) for s in settings}
    if len(alike) == 1:
        curve = first.parameters.process.curve(first.noise_multiplier, _COARSE)
        epsilon, delta = compose([curve] * len(settings)).epsilon(first.delta), first.delta
    else:
        epsilon = len(settings) * max(setting.curve().epsilon(setting.delta) for setting in settings)
        delta = min(1.0, len(settings) * max(setting.delta for setting in settings))
    return (epsilon, delta) if math.isfinite(epsilon) else None


_IN_ROWS = (
    "each document is tokenised, ended by a separator and cut into rows of at most {} tokens; no row holds text of two "
    "documents"
)
_IN_TURNS = (
    "each conversation is written by the chat template, tokenised and cut into rows of at most {} tokens, between its "
    "turns if they fit; no row holds text of two conversations"
)
_COMPLETIONS = (
    "each prompt with its completion is tokenised, ended by a separator and cut into rows of at most {} tokens; no row "
    "holds text of two documents"
)
_LEARNT = {
    "all": "",
    "assistant": "; only what the assistant says is predicted, and the rest is read as its context",
    "completion": "; only the completion is predicted, and the rest is read as its context",
}
_ONE_ROW = "each document is one row, cut off at {} tokens"
_CHUNKS = (
    "; a random chunk is a stretch of at most {} tokens of one unit's rows, put one after the other, and may hold text "
    "of several of its documents"
)
_RANDOMNESS = {
    "secure": "AES-256 in counter mode (noise on a GPU: ChaCha20) under a secret run key from the operating system, "
    "noise by Box-Muller from 64-bit words",
    "fast": "draws from AES-256 under the run key; noise from Philox (noise: fast), which is not cryptographic",
}
_CLASSES = ("the classes: how many there are, and in which order",)
_LABELS = ("the class of each row",)
_CONDITIONS = (
    "the list of conditions (data.conditions): it was stated, and confide did not compute it from the text; which of "
    "them stands in front of a text is a part of the text, and protected as that",
)
_FLOATS = (
    "the theorems are about real numbers, and a computer rounds: noise lies on a grid, and who takes part changes how "
    "the sum of the others is rounded. No theorem covers that"
)


def state_guarantee(
    setting: CalibratedMechanism,
    steps: int,
    published: bool,
    config: "Config",
    provenance: Mapping[str, str],
    counted: int | None = None,
) -> Guarantee:
    """Write the whole guarantee of a run of this setting after `steps` steps.

    Args:
        published: True if the run key is known to others.
        counted: the steps that the claim is of, if they are more. Whoever looks at models and decides when to end has
            a model of all planned steps' mechanism, post-processed. A claim of the steps taken would need an odometer
            (Rogers et al. 2016).
    """
    taken = max(1, steps)  # after 0 steps, there is only the base model: the bound of one step holds
    steps = max(taken, counted or 0)
    mechanism, parameters, tuning = setting.mechanism, setting.after(steps), setting.tuning
    curve = parameters.process.curve(setting.noise_multiplier)
    zeroed = curve
    if parameters.zeroed != parameters.process:
        zeroed = parameters.zeroed.curve(setting.noise_multiplier)
    epsilon = curve.epsilon(setting.delta)
    protected = mechanism.protects and math.isfinite(epsilon)
    parts = setting.claim(steps)
    has_classes = registry.task_facts(config.task).has_classes
    randomness = _RANDOMNESS[config.privacy.noise]
    if published:
        randomness = randomness.replace(
            "under a secret run key from the operating system", "under a published key"
        )
        randomness = randomness.replace("under the run key", "under a published key")
    return Guarantee(
        notion=mechanism.notion if protected else "none",  # type: ignore[arg-type]
        unit=mechanism.unit,
        rows_per_unit=parameters.rows_per_unit,
        contribution=parameters.contribution,
        rows_cut=_rows_cut(mechanism, config),
        adjacency=mechanism.adjacency if protected else "not applicable",  # type: ignore[arg-type]
        public_facts=(
            *parameters.facts,
            *parts.public_facts,
            *(_CLASSES if has_classes else ()),
            *(_canaries(config.canaries.count)),
            *(_CONDITIONS if config.data.condition else ()),
            *(_LABELS if has_classes and mechanism.needs.redaction != "none" else ()),
        ),
        epsilon=epsilon if protected else math.inf,
        delta=setting.delta,
        curve=tuple(curve.points()) if protected else (),
        reconstruction=tuple((p, float(zeroed.reconstruction(p)) if protected else 1.0) for p in PRIORS),
        advantage=float(curve.advantage()) if protected else 1.0,
        true_positive_rate=float(curve.true_positive_rate(0.01)) if protected else 1.0,
        noise_multiplier=setting.noise_multiplier,
        clip_norm=mechanism.aggregation(parameters, setting.noise_multiplier).clip_norm,
        steps=taken,
        sampling=parts.sampling,
        sampling_used=mechanism.sampling,
        expected_batch=parameters.expected_batch,
        sampling_probability=parameters.sampling.range,
        bands=mechanism.bands,
        buffers=mechanism.buffers,
        accountant=" ".join(
            filter(
                None,
                [
                    f"{tuning.accountant(f'dp_accounting {parts.library}')}: {parameters.process.describe()}",
                    parts.calibration,
                    _ALL_COUNTED.format(steps) if steps > taken else "",
                ],
            )
        ),
        accountant_version=version("dp-accounting"),
        discretisation=curve.interval,
        protected_output=_output(mechanism, tuning),
        not_covered=(
            *_not_covered(mechanism, tuning),
            *parts.not_covered,
            *_other_sides(mechanism, config),
            *_chosen(mechanism, config),
            *(_WATCHED if config.train.patience else ()),
            *(_OWN_ROWS if config.data.eval_within is not None else ()),
            *(_OF_NOBODY if mechanism.needs.named_unit and config.data.without_unit == "own" else ()),
            "a non-private twin of the run: it repeats the draws and would reveal them",
        ),
        trust="who runs the training sees all text; who receives release/ sees what lies there alone and is assumed "
        "to know everything but the unit's text and the run key",
        randomness=f"{randomness}; {_FLOATS}",
        provenance=provenance,
        evidence=("no audit was made yet",),
        estimates=_estimates(setting, parts, published, config),
        secret_targets=parts.secret_targets,
        epsilons=(*parts.epsilons, *tuning.epsilons()) if protected else (),
        worlds=parts.worlds if protected else "",
        units=parameters.units if protected and mechanism.adjacency != "add-or-remove" else None,
        closest_secrets=parts.weakest_secrets,
    )


_ALL_COUNTED = "The run could end before its last step. All {:,} planned steps are counted."
_WATCHED = (
    "the held-out text of data.eval: its losses, which no noise covers, decided when the run ended (train.patience)",
)
_OWN_ROWS = (
    "losses on the units' own held-out rows (data.eval_within): these rows did not train, and no noise covers what was "
    "measured on them",
)
_OF_NOBODY = (
    "whoever wrote several documents that name no unit, as a whole: each such document is a unit of its own",
)


def _other_sides(mechanism: Mechanism, config: "Config") -> tuple[str, ...]:
    """Say who of a conversation is not protected: it has several sides, and a unit is one of them."""
    unit = config.data.unit
    if config.data.messages is None or unit is None or not mechanism.needs.named_unit:
        return ()
    names = unit if isinstance(unit, str) else " and ".join(unit)
    return (
        f"the other sides of a conversation: data.unit names {names}, and whoever else speaks in a conversation is "
        "protected as a part of it alone, not as a person with many conversations",
    )


def _output(mechanism: Mechanism, tuning: SweepAccounting) -> str:
    """Say what the figures are about: the model, and histograms that are released with it."""
    counted = mechanism.histograms
    return tuning.output if counted is None else f"{tuning.output}; {counted.output}"


def _not_covered(mechanism: Mechanism, tuning: SweepAccounting) -> tuple[str, ...]:
    """Return what no run covers, but for the counts that this one accounts for."""
    if mechanism.histograms is None:
        return tuning.not_covered
    released = f"{STATISTICS}, but for the counts that are released beside the model"
    return tuple(released if line == STATISTICS else line for line in tuning.not_covered)


def _chosen(mechanism: Mechanism, config: "Config") -> tuple[str, ...]:
    """Say that a list of conditions is not covered if it was made from the text; shares that are counted are."""
    if not config.data.condition:
        return ()
    counted = mechanism.histograms is not None and "conditions" in mechanism.histograms.of
    what = "its values" if counted else "its values or shares"
    return (f"the list of conditions, if somebody chose {what} by looking at the text",)


def _canaries(count: int) -> tuple[str, ...]:
    return (f"{count} of the units are made up, for an audit, and count in every number",) if count else ()


def _estimates(
    setting: CalibratedMechanism, parts: ClaimParts, published: bool, config: "Config"
) -> tuple[str, ...]:
    """Return the reasons why the figures of a claim are an estimate."""
    reasons = [*parts.estimate_reasons, *setting.tuning.doubts()]
    if published:
        reasons.append(PUBLISHED_KEY)
    if config.privacy.noise == "fast" and setting.noise_multiplier > 0:
        reasons.append("the noise comes from a generator that keeps no secrets (noise: fast)")
    return tuple(reasons)


def _rows_cut(mechanism: Mechanism, config: "Config") -> str:
    task = registry.task_facts(config.task)
    how = _IN_ROWS if task.cuts_documents else _ONE_ROW
    if is_worded(config):
        how = (_COMPLETIONS if config.data.messages is None else _IN_TURNS) + _LEARNT[loss_on(config)]
    cut = how.format(config.data.max_length)
    if config.data.without_unit == "drop":
        cut = f"documents that name no unit are left out; {cut}"
    if mechanism.draws_chunks:
        cut += _CHUNKS.format(config.data.max_length)
    if mechanism.needs.redaction == "none":
        return cut
    by_kind = ", which for some kinds tells the kind," if config.detector.masks else ""
    redacted = (
        f"sensitive spans are replaced by one mask token each{by_kind} before text is tokenised; then {cut}"
    )
    if mechanism.needs.redaction != "beside":
        return redacted
    return (
        f"{redacted}; where rows are cut, a mask counts as {config.redacted.span_tokens} tokens, and a row of the "
        "second phase holds the text of its redacted row"
    )
