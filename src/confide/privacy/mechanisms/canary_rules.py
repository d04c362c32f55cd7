"""Rules for the canaries that an audit of a mechanism can plant and score."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from confide.config import registry
from confide.config.schema import Canaries
from confide.privacy.correlated_noise import correlation_of

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism


def canary_errors(mechanism: "type[Mechanism]", config: "Config") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for each canary setting that an audit of this mechanism cannot use."""
    canaries = config.canaries
    if not canaries.count:
        changed = [key for key in Canaries.model_fields if getattr(canaries, key) != getattr(Canaries(), key)]
        for key in changed:
            yield f"canaries.{key}", "there are no canaries: set canaries.count, or leave this out"
        return
    task = registry.task_facts(config.task)
    if task.has_classes:
        yield (
            "canaries.count",
            "canaries are text to be learnt by heart: a language model's, not a classifier's",
        )
    if canaries.family == "digits" and canaries.template.count("{}") != 1:
        yield "canaries.template", "must hold {} once, where the number stands"
    if canaries.family != "digits" and canaries.template != Canaries().template:
        yield "canaries.template", f"is an option of family digits, not of {canaries.family}"
    if canaries.family == "generated" and not task.is_causal:
        yield (
            "canaries.family",
            f"generated text needs a causal language model, not {config.task}: use digits",
        )
    if canaries.guesses is not None and canaries.guesses > canaries.count:
        yield "canaries.guesses", f"{canaries.guesses} are more than the {canaries.count} canaries"
    yield from _game_faults(mechanism, config)


def _game_faults(mechanism: "type[Mechanism]", config: "Config") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) where the claim defines no game for such canaries."""
    canaries, privacy = config.canaries, config.privacy
    name = privacy.mechanism
    if mechanism.needs.game.compares_contents and canaries.family != "digits":
        yield (
            "canaries.family",
            f"{name} protects what is sensitive in a text, so two texts may differ in a number alone: use digits",
        )
    if mechanism.needs.secrets and config.secrets.prior is None:
        yield (
            "secrets.prior",
            "each canary is a secret that no list of values names: state a prior and a posterior for all",
        )
    if mechanism.needs.secrets and config.secrets.repository.names_secrets:
        yield (
            "canaries.count",
            "the rows of a repository's secrets are files: there is no game of text for them yet",
        )
    several = canaries.insertions if isinstance(canaries.insertions, int) else max(canaries.insertions)
    cuts_documents = registry.task_facts(config.task).cuts_documents
    chunks = cuts_documents and privacy.selection in (None, "random-chunk")
    draws_units = name == "none" or mechanism.draws == "units"
    by_unit = draws_units and isinstance(config.data.unit, str)
    if several > 1 and chunks and by_unit:
        yield (
            "canaries.insertions",
            "a random chunk would run over several rows of a canary that is not there, and predict one from the other: "
            "use insertions: 1, or privacy.selection: random",
        )
    if not canaries.white_box:
        return
    if config.train.distributed == "fsdp":
        yield "canaries.white_box", "needs whole sums on one rank: use train.distributed: ddp"
    if mechanism.needs.game.compares_contents:
        yield "canaries.white_box", f"tells whether a unit is there, and {name} protects contents"
    if not mechanism.sums_are_covered:
        yield "canaries.white_box", f"mechanism {name} has no noised sum that everybody may see"
    if not correlation_of(privacy.bands, privacy.buffers).is_independent:
        yield (
            "canaries.white_box",
            "takes the noise of steps to be independent (privacy.bands: 1, and no privacy.buffers)",
        )
    if privacy.sampling != "poisson":
        yield "canaries.white_box", "who else was drawn may be known under sampling: poisson alone"
