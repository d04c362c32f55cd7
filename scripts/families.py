"""Which causal language models of transformers train here: each made tiny, its clipped sums beside a loop's.

    python -m scripts.families [MODEL_TYPE ...] [--write]

Each type is tried in full and by LoRA on all linear layers: what a run sees of it before it begins, then clipped
sums of random rows against plain autograd, a unit at a time. Without types all of them are tried, and --write puts
what was found into docs/families.md. Exit code 1 if any sum was wrong, and then nothing is written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tests.clipping import brute_force
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

from confide.clipping import UnsupportedModule, UnsupportedParameter
from confide.config.model_sections import Adapter
from confide.distributed.ranks import Ranks
from confide.models import adapters
from confide.models import loading as models
from confide.training.row_isolation import check_row_independence
from confide.training.tasks import Task
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
TRAINS = "trains"
SECONDS = 120  # for a model of some thousand parameters
TOLERANCE = 5e-5  # norms are rounded up by what cancels, in untrained models more than in others
LENGTHS = (9, 5, 12, 7, 12, 3, 8)
UNITS = (2, 0, 1, 1, 0, 2, 3)
# What some families derive from other sizes, have no room to change, or have no default for.
_DERIVED = ("head_dim", "layer_types", "num_key_value_heads", "n_group", "num_local_experts")
LEFT = [(), *combinations(_DERIVED, 1), *combinations(_DERIVED, 2)]
GIVEN = {
    "head_dim",
    "num_key_value_heads",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_group",
    "topk_group",
}
SPECIAL: dict[str, dict[str, object]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "mpt": {"attn_config": {"attn_pdrop": 0}},
    "dots1": {"n_shared_experts": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
}
# What makes a model small, by the names that families have for it.
_SIZES: tuple[tuple[object, str], ...] = (
    (67, "vocab_size vocab_size_per_layer_input"),
    (32, "hidden_size n_embd d_model embedding_size emb_dim word_embed_proj_dim dim attention_hidden_size"),
    (
        48,
        "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim d_ff d_inner dff ffn_hidden_size block_ff_dim",
    ),
    (
        2,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers moe_topk",
    ),
    (2, "num_key_value_heads num_experts_per_tok top_k n_group topk_group moe_k experts_per_token"),
    (
        4,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads num_experts",
    ),
    (
        4,
        "n_routed_experts num_local_experts moe_num_experts q_lora_rank kv_lora_rank qk_rope_head_dim state_size",
    ),
    (4, "qk_nope_head_dim mamba_d_state ssm_state_size"),
    (8, "mamba_n_heads mamba_num_heads"),
    (
        8,
        "head_dim v_head_dim moe_intermediate_size shared_expert_intermediate_size d_kv attention_head_dim rotary_dim",
    ),
    (8, "mamba_head_dim mamba_d_head hidden_size_per_layer_input"),
    (66, "max_position_embeddings n_positions n_ctx max_target_positions max_source_positions max_seq_len"),
    (0, "first_k_dense_replace num_dense_layers num_kv_shared_layers"),
    (
        0.0,
        "dropout attention_dropout activation_dropout hidden_dropout attention_probs_dropout_prob resid_pdrop",
    ),
    (
        0.0,
        "hidden_dropout_prob embd_pdrop attn_pdrop layerdrop decoder_layerdrop encoder_layerdrop emb_pdrop",
    ),
    (0.0, "summary_first_dropout residual_dropout embedding_dropout ffn_dropout_rate resid_dropout"),
    (1, "pad_token_id"),
    (2, "bos_token_id decoder_start_token_id"),
    (3, "eos_token_id"),
)
SIZES = {name: value for value, names in _SIZES for name in names.split()}


@dataclass(frozen=True)
class Found:
    """What a model did with one way of training it."""

    trains: bool = False
    wrong: bool = False
    tried: bool = True
    why: str = ""


def tiny(kind: str) -> torch.nn.Module:
    """A model of a type, as small as its config allows by names that are known, and seen to run.

    Raises:
        InputError: it runs in no size that was tried.
    """
    default = CONFIG_MAPPING[kind]()
    why: Exception | None = None
    for left, given in product(LEFT, (set[str](), GIVEN)):
        try:
            torch.manual_seed(0)
            sizes = _sizes(default, left, given) | SPECIAL.get(kind, {})
            model = AutoModelForCausalLM.from_config(type(default)(**sizes))
            task = task_of(model)
            with torch.no_grad():
                task.row_loss(model, task.collate([np.arange(4, 12), np.arange(4, 9)]))
            return brute_force.shaken(model)
        except Exception as error:  # whatever a family says of sizes that do not fit
            why = why or error
    raise InputError(f"runs in no size that was tried: {type(why).__name__}: {why}")


def _sizes(default: Any, left: tuple[str, ...], given: set[str]) -> dict[str, object]:
    """The small sizes that a config has names for, without those that are left as they are."""
    known = default.to_dict()
    sizes = {
        name: value
        for name, value in SIZES.items()
        if _of(default, known, name) is not None or name in given & set(known)
    }
    types = _of(default, known, "layer_types")
    if types:
        kinds = list(dict.fromkeys(types))[:4]
        sizes |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    if hasattr(default, "is_decoder"):
        sizes["is_decoder"] = True  # else they look ahead
    for name in default.sub_configs:
        part = getattr(default, name, None)
        sizes[name] = (
            {"model_type": part.model_type, **_sizes(part, left, given)} if part is not None else None
        )
    return {name: value for name, value in sizes.items() if name not in left}


def _of(config: Any, known: dict[str, Any], name: str) -> object:
    """A config's value by a name of its own or one that it is known by; a layer's own it may refuse to tell."""
    return (
        known[name]
        if name in known
        else getattr(config, name, None)
        if name in config.attribute_map
        else None
    )


def task_of(model: torch.nn.Module) -> Task:
    extra = frozenset(models.accepted(model))
    return CausalLM(1, None, 67, (), extra, False, torch.device("cpu"), caches=models.caches(model))


def try_one(kind: str, adapter: str) -> Found:
    """Train a tiny model of a type one way, as far as a clipped sum.

    Returns:
        What it did; a model that could not be made, or that does not run at all, was not tried.
    """
    torch.set_num_threads(1)
    lots = np.random.default_rng(0)
    rows = [lots.integers(4, 67, n) for n in LENGTHS]
    try:
        model = tiny(kind)
    except InputError as error:
        return Found(tried=False, why=str(error))
    task = task_of(model)
    for module in model.modules():
        models.drop_nothing(module)
    try:
        model = brute_force.shaken(adapters.adapt(model, Adapter(kind=adapter, rank=3), task.facts.name))
        check_row_independence(task, model.train(), rows, Ranks())
        batch, unit = task.collate(rows), torch.tensor(UNITS)
        _, norms = brute_force.clipped_sum(model, task.packed_loss, batch, unit, torch.ones(len(rows)), None)
        brute_force.check(model, task.packed_loss, batch, unit, float(norms.median()) * 0.9, TOLERANCE)
    except (InputError, UnsupportedModule, UnsupportedParameter) as error:
        return Found(why=str(error))
    except AssertionError as error:
        return Found(wrong=True, why=str(error))
    except Exception as error:
        return Found(tried=False, why=f"{type(error).__name__}: {error}")
    return Found(trains=True)


def _answer(kind: str, adapter: str, answer: Connection) -> None:
    warnings.simplefilter("ignore")
    answer.send(try_one(kind, adapter))


def in_a_process(kind: str, adapter: str) -> Found:
    """`try_one` where neither a crash nor a model that is too large for its time ends more than itself."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(kind, adapter, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return Found(tried=False, why=f"takes more than {SECONDS} seconds")
        return ours.recv()
    except EOFError:
        return Found(tried=False, why="its process died")
    finally:
        process.kill()
        process.join()


def page(found: dict[str, tuple[Found, Found]]) -> str:
    """What was found, for readers of the docs."""

    def listed(chosen: list[str]) -> str:
        return ", ".join(f"`{kind}`" for kind in chosen) + "."

    both = [kind for kind, (full, lora) in found.items() if full.trains and lora.trains]
    only_lora = {kind: full.why for kind, (full, lora) in found.items() if lora.trains and not full.trains}
    refused = {kind: lora.why for kind, (_, lora) in found.items() if lora.tried and not lora.trains}
    untried = [kind for kind, (_, lora) in found.items() if not lora.tried]
    rows = [f"| `{kind}` | {_cell(why)} |" for kind, why in only_lora.items()]
    no = [f"| `{kind}` | {_cell(why)} |" for kind, why in refused.items()]
    return f"""# Which models train

Every type of causal language model in transformers {transformers.__version__}, made tiny with random weights, and
its clipped sums compared with plain autograd, a unit at a time (`python -m scripts.families --write`). A type stands
here under its name in `config.json`, `model_type`. What is refused is refused before it trains, by a sentence like
those below.

**In full and by LoRA on all linear layers** ({len(both)}): {listed(both)}

**By LoRA** ({len(only_lora)}), since part of the model has no rule that tells its gradient unit by unit:

| type | in full |
|---|---|
{chr(10).join(rows)}

**Refused** ({len(refused)}):

| type | by LoRA |
|---|---|
{chr(10).join(no)}

**Not tried** ({len(untried)}), since they could not be made tiny without knowing more of them, or lack a package:
{listed(untried)}
"""


def _cell(why: str) -> str:
    return why.split("\n")[0].replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("types", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--write", action="store_true", help="put what is found into docs/families.md")
    options = parser.parse_args()
    kinds = options.types or sorted(TYPES)
    if unknown := set(kinds) - set(TYPES):
        parser.error(
            f"no causal language model of transformers {transformers.__version__}: {', '.join(unknown)}"
        )
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:
        tries = {
            kind: [pool.submit(in_a_process, kind, adapter) for adapter in ("full", "lora")] for kind in kinds
        }
        for kind, pair in tries.items():
            found[kind] = tuple(each.result() for each in pair)
            print(kind, *(_said(each) for each in found[kind]), sep=" | ", flush=True)
    wrong = any(each.wrong for pair in found.values() for each in pair)
    if options.write and not wrong:
        PAGE.write_text(page(found))
    return int(wrong)


def _said(found: Found) -> str:
    if found.trains:
        return TRAINS
    return (
        "WRONG" if found.wrong else "refused" if found.tried else "not tried"
    ) + f": {_cell(found.why)[:150]}"


if __name__ == "__main__":
    sys.exit(main())
