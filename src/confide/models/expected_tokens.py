"""Which tokens a model expects: those of text that it writes itself, before it has seen any that is private."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from confide.models.loading import caches, inner_of, positions
from confide.utils.errors import InputError

TEXTS, TOKENS, SEED = 32, 32, 20261129

_KEPT: WeakKeyDictionary[nn.Module, torch.Tensor] = WeakKeyDictionary()


def expected_tokens(model: nn.Module) -> torch.Tensor:
    """Return what `keep_expected` was last given for this model object: float64[V], on the CPU.

    Training changes what a model expects, so it is never computed here, from weights that may be private.
    """
    assert model in _KEPT, "a run keeps what its base expects before anything asks for it"
    return _KEPT[model]


def keep_expected(model: nn.Module, probabilities: torch.Tensor) -> None:
    """Let `expected_tokens` return these for this model object: what the base expected of which a claim speaks."""
    _KEPT[model] = probabilities


def refuse_if_silent(model: Any) -> None:
    """Raise InputError if a model does not write text token by token."""
    inner = inner_of(model)
    writes = hasattr(inner, "can_generate") and inner.can_generate()
    if not writes or getattr(inner.config, "is_encoder_decoder", False):
        raise InputError(
            "privacy.common_tokens: this model does not write text, so nobody knows which tokens it expects: leave "
            "it out"
        )


@torch.no_grad()
def expects_now(model: Any) -> torch.Tensor:
    """Compute the probability of each token in text that a model writes itself: float64[V], on the CPU.

    It is the mean of what the model expects next at each of `TEXTS` x `TOKENS` places, or fewer if it reads less. The
    texts are drawn with a published seed.

    Raises:
        InputError: the model does not write text token by token.
    """
    refuse_if_silent(model)
    config = inner_of(model).config.get_text_config()
    entries = len(model.get_input_embeddings().weight)
    generator, device = torch.Generator().manual_seed(SEED), next(model.parameters()).device
    ids = torch.full((TEXTS, 1), _first(config, entries), device=device)
    is_training, more = model.training, {"use_cache": True} if caches(model) else {}
    total, places = torch.zeros((), dtype=torch.float64), min(TOKENS, positions(config) or TOKENS)
    model.eval()
    try:
        for _ in range(places):
            seen = ids[:, -1:] if "past_key_values" in more else ids
            out = model(input_ids=seen, **more)
            found = out.logits[:, -1].float().softmax(-1).cpu()
            total = total + found.double().sum(0)
            ids = torch.cat([ids, torch.multinomial(found, 1, generator=generator).to(device)], 1)
            if more and getattr(out, "past_key_values", None) is not None:
                more["past_key_values"] = out.past_key_values
    finally:
        model.train(is_training)
    return total / (TEXTS * places)


def _first(config: Any, entries: int) -> int:
    """Return the token that a text begins with; 0 if the config names none that the model has."""
    for each in (getattr(config, "bos_token_id", None), getattr(config, "eos_token_id", None)):
        token = each[0] if isinstance(each, list) and each else each
        if isinstance(token, int) and 0 <= token < entries:
            return token
    return 0
