"""Tiny models, losses that keep rows apart, and the sum of clipped gradients the slow and certain way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    BioGptConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    NemotronConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    RobertaConfig,
)

from confide.clipping import ClippedSum

Batch = dict[str, Tensor]
VOCABULARY = 67
PAD = 1
ROWS = 9
TOKENS = 7
ABOVE = 2e-3  # of itself, by which a norm here may be rounded up: confide.clipping.rounding has the bounds

_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "attention_dropout": 0.0,
}
_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": PAD,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_FALCON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "bias": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": PAD,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "dropout": 0.0,
    "scale_embedding": True,
    "pad_token_id": PAD,
}
_CONFIGS: dict[str, Callable[..., object]] = {
    "gpt2": lambda **more: GPT2Config(**_GPT2, **more),
    "llama": lambda **more: LlamaConfig(**_LLAMA, **more),
    "gemma2": lambda **more: Gemma2Config(**_LLAMA, head_dim=8, **more),
    "qwen2": lambda **more: Qwen2Config(**_LLAMA, **more),
    "qwen3": lambda **more: Qwen3Config(**_LLAMA, head_dim=8, **more),
    "falcon": lambda **more: FalconConfig(**_FALCON, **more),
    "cohere": lambda **more: CohereConfig(**_LLAMA, use_qk_norm=True, **more),
    "nemotron": lambda **more: NemotronConfig(**_LLAMA, **more),
    "biogpt": lambda **more: BioGptConfig(**_BERT, activation_dropout=0.0, layerdrop=0.0, **more),
    "opt": lambda **more: OPTConfig(**_BERT, ffn_dim=24, word_embed_proj_dim=16, **more),
    "bart": lambda **more: BartConfig(**_BART, **more),
    "mixtral": lambda **more: MixtralConfig(**_LLAMA, num_local_experts=4, **more),
    "qwen3-moe": lambda **more: Qwen3MoeConfig(
        **_LLAMA, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, **more
    ),
    "gpt-oss": lambda **more: GptOssConfig(
        **_LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=2, **more
    ),
    "bert": lambda **more: BertConfig(**_BERT, **more),
    "roberta": lambda **more: RobertaConfig(**_BERT, **more),
}
_HEADS = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "classify": AutoModelForSequenceClassification,
}


def tiny(family: str, head: str = "causal", attention: str = "sdpa", **more: object) -> nn.Module:
    """A tiny model with every parameter, norms and biases included, away from its special initial value."""
    torch.manual_seed(5)
    if family in ("gemma2", "gpt-oss"):  # have no other
        attention = "eager"
    if head == "classify":
        more["num_labels"] = 3
    model = _HEADS[head].from_config(_CONFIGS[family](**more), attn_implementation=attention)
    return shaken(model).eval()


def shaken(model: nn.Module) -> nn.Module:
    """A model whose parameters are not at initial values such as 0 and 1, where faults may hide."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def lora(model: nn.Module, targets: str | list[str] = "all-linear", **more: object) -> nn.Module:
    return shaken(get_peft_model(model, LoraConfig(r=3, target_modules=targets, **more))).eval()


def rows(family: str, head: str = "causal", n: int = ROWS, tokens: int = TOKENS, seed: int = 11) -> Batch:
    """Rows of unequal length, padded on the right, with the inputs that each family needs row by row."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, tokens + 1, (n, 1), generator=generator)
    place = torch.arange(tokens)[None].expand(n, -1)
    mask = (place < lengths).long()
    ids = torch.randint(4, VOCABULARY, (n, tokens), generator=generator) * mask + PAD * (1 - mask)
    batch = {"input_ids": ids, "attention_mask": mask}
    if family in ("gpt2", "bert", "biogpt"):
        batch["position_ids"] = place.clone()
    if head == "causal":
        batch["labels"] = ids.masked_fill(mask == 0, -100)
    elif head == "masked":
        hidden = (torch.rand(n, tokens, generator=generator) < 0.4) | (place == 1)
        batch["labels"] = ids.masked_fill((mask == 0) | ~hidden, -100)
    else:
        batch["labels"] = torch.randint(0, 3, (n,), generator=generator)
    return batch


def _mean_over_labelled(logits: Tensor, labels: Tensor) -> Tensor:
    each = functional.cross_entropy(logits.float().mT, labels, ignore_index=-100, reduction="none")
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def causal_loss(model: nn.Module, batch: Batch) -> Tensor:
    """float[B]: each row's mean over its own next tokens."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits
    return _mean_over_labelled(logits[:, :-1], batch["labels"][:, 1:])


def masked_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return _mean_over_labelled(model(**inputs).logits, batch["labels"])


def classify_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return functional.cross_entropy(model(**inputs).logits.float(), batch["labels"], reduction="none")


LOSSES = {"causal": causal_loss, "masked": masked_loss, "classify": classify_loss}

UNITS = {
    "1": list(range(ROWS)),
    "3": [2, 0, 1, 1, 0, 2, 2, 1, 0],
    "8": [0, 0, 0, 0, 1, 0, 0, 0, 0],
    "ragged": [3, 0, 1, 1, 3, 2, 3, 1, 3],
}


def clipped_sum(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    unit: Tensor,
    weight: Tensor,
    clip_norm: float | None,
    taken: Tensor | None = None,
    scales: Mapping[str, float | Tensor] | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """One unit at a time with plain autograd: sums by parameter name, and float64[U] norms.

    Args:
        taken: float[U], norms to clip by, instead of those found here.
        scales: factors on the gradients, by parameter name; 1 where there is none.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in named.items()}
    norms = []
    for u in range(int(unit.max()) + 1):
        mine = unit == u
        total = (loss(model, {k: v[mine] for k, v in batch.items()}) * weight[mine]).sum()
        grads = torch.autograd.grad(total, list(named.values()), allow_unused=True)
        factors = [(scales or {}).get(name, 1.0) for name in named]
        grads = tuple(None if g is None else g * by for g, by in zip(grads, factors, strict=True))
        norm = torch.stack([g.double().square().sum() for g in grads if g is not None]).sum().sqrt()
        norms.append(norm)
        clipped_by = float(norm if taken is None else taken[u])
        scale = 1.0 if clip_norm is None else min(1.0, clip_norm / clipped_by)
        for name, grad in zip(named, grads, strict=True):
            if grad is not None:
                sums[name] += scale * grad.float()
    return sums, torch.stack(norms)


def check(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    unit: Tensor,
    clip_norm: float | None,
    tolerance: float = 1e-5,
    scales: Mapping[str, float | Tensor] | None = None,
) -> None:
    """The engine against brute force: sums as a whole vector, each parameter that is not tiny, norms.

    Norms are bounds from above; units are clipped by those, and nothing else may differ.
    """
    weight = torch.linspace(0.5, 1.5, len(unit))
    engine = ClippedSum(model, loss, clip_norm, scales=scales or {})
    found_norms = engine.add(batch, unit, weight)
    expected, norms = clipped_sum(model, loss, batch, unit, weight, clip_norm, found_norms, scales)
    assert found_norms.dtype == torch.float32
    compare(engine.take(), expected, tolerance)
    assert (found_norms >= norms * (1 - tolerance)).all()
    assert (found_norms <= norms * (1 + tolerance + ABOVE)).all()
    if clip_norm is not None:
        assert (norms > clip_norm).any(), "the test clips nothing"


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert list(found) == list(expected)
    total = norm(expected)
    assert total > 0
    error = {name: found[name] - expected[name] for name in expected}
    assert norm(error) < tolerance * total
    for name in expected:
        assert found[name].dtype == torch.float32
        assert found[name].shape == expected[name].shape
        if expected[name].norm() > 1e-3 * total:
            assert error[name].norm() < 2 * tolerance * expected[name].norm(), name


def norm(vectors: dict[str, Tensor]) -> float:
    return float(torch.stack([v.double().square().sum() for v in vectors.values()]).sum().sqrt())
