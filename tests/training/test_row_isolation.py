"""A model is seen to keep a row apart from its company before it trains."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from confide.config import registry
from confide.distributed.ranks import Ranks
from confide.models import loading as models
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training.row_isolation import check_row_independence
from confide.training.tasks import Task
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config

LOTS = np.random.default_rng(0)
ROWS = [LOTS.integers(3, small.TOKENS, n) for n in (9, 5, 12, 7)]
EVEN = [LOTS.integers(3, small.TOKENS, 9) for _ in range(2)]
SIZES = {
    "vocab_size": small.TOKENS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 1,
}
MORE = {
    "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16, "do_layer_norm_before": True},
    "Bloom": {"n_layer": 2, "n_head": 2},
    "Mamba": {"state_size": 4},
    "Mixtral": {"num_key_value_heads": 1, "num_local_experts": 4},
    "Qwen3Moe": {
        "num_key_value_heads": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
    "Phimoe": {"num_key_value_heads": 1, "num_local_experts": 4},
    "Mistral": {"num_key_value_heads": 1},
    "GPT2": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 66},
}
HEADS = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "classification": transformers.AutoModelForSequenceClassification,
}


def built(kind: str, task: str = "causal-lm", **changes: object) -> tuple[torch.nn.Module, Task]:
    torch.manual_seed(0)
    settings = getattr(transformers, kind + "Config")(**(SIZES | MORE.get(kind, {}) | changes))
    model = HEADS[task].from_config(settings)
    for module in model.modules():
        models.drop_nothing(module)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    extra = frozenset(models.accepted(model))
    return model, registry.task(task)(
        1, 2, small.TOKENS, (), extra, False, torch.device("cpu"), caches=models.caches(model)
    )


@pytest.mark.parametrize("rows", [ROWS, EVEN, ROWS[:1], [np.arange(3, 4)], [np.full(9, 7)]])
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *((kind, "causal-lm") for kind in ("GPT2", "Llama", "Mistral", "OPT", "Bloom", "Falcon", "Mamba")),
        *((kind, "causal-lm") for kind in ("Mixtral", "Qwen3Moe")),
        *((kind, "masked-lm") for kind in ("Bert", "Roberta", "Electra")),
        *((kind, "classification") for kind in ("Bert", "Roberta", "GPT2", "Llama")),
    ],
)
def test_models_that_keep_rows_apart_pass(kind: str, task: str, rows: list[np.ndarray]) -> None:
    model, asked = built(kind, task)
    model.train()
    check_row_independence(asked, model, rows, Ranks())
    assert model.training


def test_of_no_rows_nothing_is_seen() -> None:
    model, asked = built("GPT2")
    check_row_independence(asked, model, [], Ranks())


class Leaking(torch.nn.Module):
    """A model that is right but for one thing."""

    def __init__(self, model: torch.nn.Module, how: str) -> None:
        super().__init__()
        self.model, self.how = model, how

    def forward(self, input_ids: torch.Tensor, **inputs: object) -> object:
        result = self.model(input_ids, **inputs)
        logits = result.logits
        if self.how == "the spread of the batch":
            result.logits = logits / logits.std()
        elif self.how == "the row before, faintly":
            result.logits = logits + 1e-4 * torch.roll(logits, 1, 0).mean(1, keepdim=True)
        elif self.how == "the row behind, faintly":
            result.logits = logits + 1e-4 * torch.roll(logits, -1, 0).mean(1, keepdim=True)
        elif self.how == "padding, faintly":
            result.logits = logits + 1e-4 * logits.mean(1, keepdim=True)
        elif self.how == "room for half of the tokens":
            alike = input_ids.flatten()[:, None] == input_ids.flatten()
            taken = alike.tril().sum(1).view(input_ids.shape)  # of each token, how many there are up to it
            result.logits = logits * (taken <= max(1, input_ids.numel() // 2))[..., None]
        elif self.how == "lots, in training" and self.training:
            result.logits = torch.nn.functional.dropout(logits, 0.01)
        elif self.how == "the row before, in training" and self.training:
            result.logits = logits + torch.roll(logits, 1, 0).mean(1, keepdim=True)
        elif self.how == "the width":
            result.logits = logits / logits.shape[1]
        return result


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("the spread of the batch", "the rows beside it"),
        ("the row before, faintly", "the rows beside it"),
        ("the row behind, faintly", "the rows beside it"),
        ("padding, faintly", "the padding behind it"),
        ("room for half of the tokens", "how many tokens beside it are like its own"),
        ("lots, in training", "chance, which no seed"),
        ("the row before, in training", "the rows beside it"),
        ("the width", "how many rows and how much padding"),
    ],
)
@pytest.mark.parametrize("rows", [ROWS, EVEN])
def test_a_model_that_mixes_is_refused(how: str, what: str, rows: list[np.ndarray]) -> None:
    model, asked = built("GPT2")
    check_row_independence(asked, Leaking(model, "not at all"), rows, Ranks())
    with pytest.raises(InputError, match=f"depends on {what}"):
        check_row_independence(asked, Leaking(model, how), rows, Ranks())


def test_a_bert_is_no_causal_lm() -> None:
    model, asked = built("Bert")
    with pytest.raises(InputError, match=r"depends on the padding behind it.*goes with masked-lm"):
        check_row_independence(asked, model, ROWS, Ranks())
    model, asked = built("Bert", is_decoder=True)
    check_row_independence(asked, model, ROWS, Ranks())


@pytest.mark.parametrize("jitter", [0.5, 1e-9])
@pytest.mark.parametrize("kind", ["Phimoe", "Mixtral"])
def test_a_router_that_draws_lots_is_refused(kind: str, jitter: float) -> None:
    model, asked = built(kind, router_jitter_noise=jitter)
    with pytest.raises(InputError, match=r"depends on chance.*router of its own"):
        check_row_independence(asked, model, ROWS, Ranks())


def test_a_run_looks_before_its_first_step(tmp_path: Path) -> None:
    folder = str(small.saved(tmp_path / "bert", "bert"))
    with pytest.raises(InputError, match=r"model: what BertLMHeadModel says of a row depends on the padding"):
        Job.of(Run(config(tmp_path, model=folder)), Console())
    Job.of(Run(config(tmp_path, model=folder, privacy={"mechanism": "none"})), Console())


class Second:
    """The second of several ranks, of which the first has seen a leak."""

    first = False

    def any(self, failed: bool) -> bool:
        assert not failed
        return True


def test_ranks_refuse_together_and_the_first_looks_for_all() -> None:
    model, asked = built("GPT2")
    model.forward = None  # it takes no pass of its own
    with pytest.raises(InputError, match="depends on its company"):
        check_row_independence(asked, model, ROWS, Second())
