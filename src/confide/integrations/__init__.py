"""Offer confide's private step inside the trainers of transformers and TRL.

Names are imported when they are first used: TRL is an optional extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide.integrations.dpo import PrivateDPOTrainer
    from confide.integrations.sft import PrivateSFTTrainer
    from confide.integrations.trainer import PrivateTrainer

_WHERE = {
    "PrivateDPOTrainer": "confide.integrations.dpo",
    "PrivateSFTTrainer": "confide.integrations.sft",
    "PrivateTrainer": "confide.integrations.trainer",
}

__all__ = ["PrivateDPOTrainer", "PrivateSFTTrainer", "PrivateTrainer"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'confide.integrations' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
