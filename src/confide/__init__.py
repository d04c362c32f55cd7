"""confide: fine-tune language models on text told in confidence, and state exactly what that protects.

    config = confide.load_config("mail.yaml", ["privacy.epsilon=3"])
    plan = confide.plan(config)
    noise = confide.account("uls", units=2000, batch=200, steps=500, epsilon=8).noise_multiplier
    run = confide.train(config)
    audit = confide.audit(config.run)
    page = confide.report(config.run)
    guarantee = confide.Guarantee.load(f"{config.run}/release/guarantee.json")

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from confide.api.verbs import account, audit, load_config, plan, report, train
    from confide.auditing.result import Audit
    from confide.clipping import ClippedSum
    from confide.config.schema import Config
    from confide.planning.account import Account
    from confide.planning.plan import Plan
    from confide.privacy import mechanisms
    from confide.privacy.accounting import least_noise
    from confide.privacy.guarantee import Guarantee
    from confide.runs.loop import Outcome
    from confide.training.step import PrivateStep
    from confide.utils.errors import CheckFailed, InputError

_WHERE = {
    "Account": "confide.planning.account:Account",
    "Audit": "confide.auditing.result:Audit",
    "CheckFailed": "confide.utils.errors:CheckFailed",
    "ClippedSum": "confide.clipping:ClippedSum",
    "Config": "confide.config.schema:Config",
    "Guarantee": "confide.privacy.guarantee:Guarantee",
    "InputError": "confide.utils.errors:InputError",
    "Outcome": "confide.runs.loop:Outcome",
    "Plan": "confide.planning.plan:Plan",
    "PrivateStep": "confide.training.step:PrivateStep",
    "account": "confide.api.verbs:account",
    "audit": "confide.api.verbs:audit",
    "least_noise": "confide.privacy.accounting:least_noise",
    "load_config": "confide.api.verbs:load_config",
    "mechanisms": "confide.privacy:mechanisms",
    "plan": "confide.api.verbs:plan",
    "report": "confide.api.verbs:report",
    "train": "confide.api.verbs:train",
}

__all__ = [  # noqa: RUF022  # as a reader meets them
    "load_config", "plan", "account", "train", "audit", "report", "Config", "Plan", "Account", "Outcome", "Audit",
    "Guarantee",
    "ClippedSum", "PrivateStep", "mechanisms", "least_noise", "InputError", "CheckFailed",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'confide' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = getattr(import_module(module), attribute, None)
    return import_module(f"{module}.{attribute}") if found is None else found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
