"""Compute perplexities of rows under another language model than the trained one, with its own tokenizer."""

from typing import Any

import numpy as np
import torch

from confide.config.data_section import Data
from confide.config.schema import Config
from confide.data.loss_mask import ids_of
from confide.data.unit_graph import UnitGraph
from confide.distributed.ranks import Ranks
from confide.models import loading as models
from confide.training.evaluation import batches
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError


@torch.no_grad()
def perplexities(
    name: str, tokenizer: Any, graph: UnitGraph, micro_tokens: int = 8192, ranks: Ranks | None = None
) -> np.ndarray:
    """Compute the perplexity of every row, as text, under the causal language model `name`: float64[M], per its token.

    A row's perplexity is a function of its own tokens and of the model. A row without text has perplexity 1. A
    row that is longer than the model can read is cut off.

    Args:
        tokenizer: the tokenizer that made the rows.
        ranks: the processes that score the rows together; all get all values, which are those of one process.

    Raises:
        InputError: the model cannot be loaded.
    """
    model, own = _loaded(name)
    ranks = ranks or Ranks()
    model.to(ranks.device).eval()
    task = CausalLM.of(model, own)
    rows = _rows(tokenizer, own, graph, _longest(model))
    found = torch.zeros(graph.n_rows, dtype=torch.float64, device=ranks.device)
    dealt = list(batches(np.array([len(row) for row in rows]), micro_tokens))
    for places in dealt[ranks.number :: ranks.size]:
        losses, counted, _ = task.token_losses(model, task.collate([rows[i] for i in places]))
        means = (losses * counted).sum(1).double() / counted.sum(1).clamp(min=1)
        found[torch.as_tensor(places, device=ranks.device)] = means.exp()
    ranks.add_up([found])
    return found.cpu().numpy()


def _loaded(name: str) -> tuple[Any, Any]:
    settings = Config(
        model=name, data=Data(train=name, max_length=2)
    )  # rows are cut to what the model can read
    try:
        tokenizer = models.load_tokenizer(settings)
        return models.load_model(settings, vocabulary=len(tokenizer)), tokenizer
    except InputError as error:
        raise InputError(f"adaptive.scorer: {str(error).removeprefix('model: ')}") from error


def _longest(model: Any) -> int | None:
    return models.positions(model.config)


def _rows(tokenizer: Any, own: Any, graph: UnitGraph, longest: int | None) -> list[np.ndarray]:
    """Return the rows in tokens of the scorer, each after a separator, so that its first token is predicted as well."""
    separators = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    start = own.bos_token_id if own.bos_token_id is not None else own.eos_token_id
    before = [] if start is None else [start]
    rows = []
    for tokens in map(ids_of, graph.fetch(np.arange(graph.n_rows))):
        text = tokenizer.decode(tokens[~np.isin(tokens, [s for s in separators if s is not None])])
        ids = own(text, add_special_tokens=False)["input_ids"]
        rows.append(np.array((before + ids)[:longest] or [0], dtype=np.int64))
    return rows
