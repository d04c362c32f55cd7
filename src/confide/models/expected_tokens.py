"""Which tokens a model expects: those of text that it writes itself, before it has seen any that is private."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from confide.models.loading import caches, inner_of
from confide.utils.errors import InputError

TEXTS, TOKENS, SEED = 32, 32, 20261129

_KEPT: WeakKeyDictionary[nn.Module, torch.Tensor] = WeakKeyDictionary()


def expected_tokens(model: nn.Module) -> torch.Tensor:
    """Return the probability of each token in text that the model writes itself: float64[V], on the CPU.

    It is the mean of what the model expects next at each of `TEXTS` x `TOKENS` places. The texts are drawn with a
    published seed. For one model object it is computed once, by the first call: training changes what a model expects.

    Raises:
        InputError: the model does not write text token by token.
    """
    if model not in _KEPT:
        keep_expected(model, _written(model))
    return _KEPT[model]


def keep_expected(model: nn.Module, probabilities: torch.Tensor) -> None:
    """Let `expected_tokens` return these for this model object, such as those with which a run began."""
    _KEPT[model] = probabilities


@torch.no_grad()
def _written(model: Any) -> torch.Tensor:
    inner = inner_of(model)
    if not (hasattr(inner, "can_generate") and inner.can_generate()):
        raise InputError(
            "privacy.common_tokens: this model does not write text, so nobody knows which tokens it expects: leave "
            "it out"
        )
    generator, device = torch.Generator().manual_seed(SEED), next(model.parameters()).device
    config = inner.config
    first = next((each for each in (config.bos_token_id, config.eos_token_id) if isinstance(each, int)), 0)
    ids = torch.full((TEXTS, 1), first, device=device)
    is_training, more = model.training, {"use_cache": True} if caches(model) else {}
    total = torch.zeros((), dtype=torch.float64)
    model.eval()
    try:
        for _ in range(TOKENS):
            seen = ids[:, -1:] if "past_key_values" in more else ids
            out = model(input_ids=seen, **more)
            found = out.logits[:, -1].float().softmax(-1).cpu()
            total = total + found.double().sum(0)
            ids = torch.cat([ids, torch.multinomial(found, 1, generator=generator).to(device)], 1)
            if more and getattr(out, "past_key_values", None) is not None:
                more["past_key_values"] = out.past_key_values
    finally:
        model.train(is_training)
    return total / (TEXTS * TOKENS)
