"""The log-probability of many texts that share beginnings: each shared beginning is read once.

The texts are a trie over token ids. A node is given to the model once, with the keys and values of the tokens before
it, and the answer scores all of its children; so the last token of a text never needs to be given. A child whose sum
of log-probabilities is below a floor is dropped with all that follows from it: sums only fall along a path.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from confide.auditing.candidates import END, Candidates
from confide.auditing.likelihood import MEMORY, check_numbers, chosen, reading, refuse_long
from confide.utils.errors import InputError

_HELD = 6  # caches of one batch that may be held at a time: one for each level, and the copies of a pass
_WIDEST = 512  # rows of a pass; wider ones are no faster

Settle = Callable[[np.ndarray], float]


@dataclass(frozen=True, eq=False)
class Trie:
    """Rows of tokens in lexicographic order; a node at depth d is the run of rows that begin with the same d tokens.

    Attributes:
        prefix: int64[P], the common beginning of all rows.
        tokens: int32[n, W], the tokens after the prefix, END after a row's last token. END is less than any token, so
            of the rows of a node those that end in it come first.
        split: int32[n], how many of these tokens a row shares with the one above it.
        order: int64[n], the number of each row before they were sorted.
    """

    prefix: np.ndarray
    tokens: np.ndarray
    split: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, candidates: Candidates, tokenizer: Any, numbers: np.ndarray | None = None) -> "Trie":
        """Build the trie of all candidates, or of those with these numbers, in their order.

        It depends on the tokenizer alone: one serves every model that is compared.

        Raises:
            InputError: no token precedes the secret, so nothing could predict it.
        """
        return cls.of_rows(candidates.tokens(tokenizer, numbers))

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> "Trie":
        """Build the trie as `of` does, from rows int[n, W] with END after the last token of each.

        Raises:
            InputError: the rows have no first token in common; the first token would count in no row's
                log-probability.
        """
        shortest = int((rows != END).sum(1).min())
        alike = (rows == rows[0]).all(0)
        common = min(len(alike) if alike.all() else int(np.argmin(alike)), shortest - 1)
        if common < 1:
            raise InputError(
                "template: the secret stands first and the tokenizer has no token that starts a row, so nothing "
                "predicts its beginning; put text before it"
            )
        rest = rows[:, common:]
        order = np.lexsort(rest.T[::-1])
        tokens = np.ascontiguousarray(rest[order])
        differs = tokens[1:] != tokens[:-1]
        split = np.where(differs.any(1), differs.argmax(1), tokens.shape[1])
        split = np.concatenate([[0], split]).astype(np.int32)
        return cls(rows[0, :common].astype(np.int64), tokens, split, order)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row, with the prefix, in sorted order: int64[n]."""
        lengths: np.ndarray = len(self.prefix) + (self.tokens != END).sum(1)
        return lengths

    @property
    def plain_positions(self) -> int:
        """The tokens of all rows: the cost of reading each row from its beginning."""
        return int(self.lengths.sum())

    def rows(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the whole rows with these numbers: int64 each."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self))
        found = [self.tokens[i] for i in place[numbers]]
        return [np.concatenate([self.prefix, row[row != END]]) for row in found]

    def children(self, depth: int, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the children of nodes at `depth`, each a run of rows: (position of the parent, start, stop), int64.

        A row that ends in its parent is a child with the token END.
        """
        counts = stops - starts
        offsets = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(starts - offsets, counts)
        opens = self.split[rows] <= depth
        opens[offsets] = True
        first = np.flatnonzero(opens)
        parent = np.repeat(np.arange(len(starts)), counts)[first]
        return parent, rows[first], rows[first] + np.diff(first, append=len(rows))


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of a search.

    Attributes:
        totals: float64[n], each row's log-probability in nats; -inf for rows that were dropped.
        positions: tokens that were given to the model.
    """

    totals: np.ndarray
    positions: int


@dataclass(eq=False)
class _Level:
    """Nodes of one depth that the model has not been given yet, and the cache of their parents.

    None of them is below `floor`.
    """

    cache: Cache | None
    depth: int
    floor: float
    parent: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    total: np.ndarray

    def keep(self, places: np.ndarray | slice, floor: float | None = None) -> "_Level":
        floor = self.floor if floor is None else floor
        arrays = (self.parent, self.start, self.stop, self.total)
        return _Level(self.cache, self.depth, floor, *(array[places] for array in arrays))


def search(
    model: Any,
    trie: Trie,
    floor: float = -np.inf,
    settle: Settle | None = None,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """Compute the log-probability of every row that is not below `floor`.

    Works for every causal language model of transformers. One whose cache cannot be cut into rows (of other than plain
    or sliding attention) is given whole paths instead, which makes `positions` larger.

    Args:
        floor: in nats; a row below it may be dropped, and no other row is.
        settle: called with the log-probabilities that have just been found; returns the floor from there on; inf ends
            the search.
        progress: called with how many rows were dealt with since the last call.

    Raises:
        InputError: a row is longer than the model can read.
        Diverged: a log-probability is not a number.
    """
    refuse_long(model, len(trie.prefix) + trie.tokens.shape[1], "template")
    with reading(model):
        return _Search(model, trie, floor, settle, progress).run()


class _Search:
    def __init__(
        self,
        model: Any,
        trie: Trie,
        floor: float,
        settle: Settle | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._model, self._trie, self._floor = model, trie, floor
        self._settle, self._progress = settle, progress
        self._device = next(model.parameters()).device
        self._cached, self._batch = True, 1
        self._positions, self._done = 0, 0
        self._totals = np.full(len(trie), -np.inf)

    def run(self) -> Scores:
        open_ = self._root()
        while open_:  # the deepest first, so that few caches are held at a time
            level = open_.pop()
            if self._floor > level.floor:
                level = level.keep(level.total >= self._floor, self._floor)
            if len(level.start) > self._batch:
                open_.append(level.keep(slice(self._batch, None)))
                level = level.keep(slice(self._batch))
            if len(level.start):
                logits, cache = self._pass(level)
                del level.cache  # frees the parents' cache unless others wait for it
                open_ += self._expand(logits, cache, level)
            self._report(open_)
        totals = np.empty_like(self._totals)
        totals[self._trie.order] = self._totals
        return Scores(totals, self._positions)

    def _root(self) -> list[_Level]:
        prefix = torch.from_numpy(self._trie.prefix)[None].to(self._device)
        output = self._model(input_ids=prefix, use_cache=True)
        self._positions += prefix.numel()
        logits = output.logits.to(torch.promote_types(output.logits.dtype, torch.float32))
        cache = getattr(output, "past_key_values", None)
        self._cached = _can_be_cut(cache)
        self._batch = self._width(cache, logits.shape[-1])
        total = chosen(logits[:, :-1], prefix[:, 1:]).double().sum().item()
        whole = _Level(None, 0, self._floor, *(np.array([i]) for i in (0, 0, len(self._trie), total)))
        return self._expand(logits[:, -1], cache if self._cached else None, whole)

    def _width(self, cache: Any, vocabulary: int) -> int:
        """Return how many rows a pass takes, so that all caches and logits stay within about MEMORY bytes."""
        length = len(self._trie.prefix) + self._trie.tokens.shape[1]
        row = 3 * 4 * vocabulary  # logits, and the temporaries of a softmax over them
        if self._cached:
            held = sum(
                t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values)
            )
            row += held * length // len(self._trie.prefix)
        else:
            row *= length
        return int(np.clip(MEMORY // (_HELD * row), 1, _WIDEST))

    def _pass(self, level: _Level) -> tuple[torch.Tensor, Cache | None]:
        """Compute the logits (B, V) of the token after each node, and the cache of the nodes."""
        if self._cached:
            ids = self._trie.tokens[level.start, level.depth - 1][:, None]
        else:
            before = np.tile(self._trie.prefix, (len(level.start), 1))
            ids = np.concatenate([before, self._trie.tokens[level.start, : level.depth]], axis=1)
        inputs = torch.from_numpy(ids.astype(np.int64)).to(self._device)
        self._positions += inputs.numel()
        cache = None
        if level.cache is not None:
            cache = _cut(level.cache, torch.from_numpy(level.parent).to(self._device))
        output = self._model(input_ids=inputs, past_key_values=cache, use_cache=self._cached)
        logits = output.logits[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), cache

    def _expand(self, logits: torch.Tensor, cache: Cache | None, level: _Level) -> list[_Level]:
        """Score the children of nodes: rows that end are done, the others wait."""
        trie, depth = self._trie, level.depth
        parent, start, stop = trie.children(depth, level.start, level.stop)
        token = trie.tokens[start, depth]
        goes_on = token != END
        total = level.total[parent].astype(np.float64)
        places = torch.from_numpy(np.stack([parent, token]).astype(np.int64)[:, goes_on]).to(self._device)
        total[goes_on] += logits.log_softmax(-1)[places[0], places[1]].double().cpu().numpy()
        check_numbers(total)
        # The last row of a run is the longest; if it ends here, so do all.
        deeper = depth + 1 < trie.tokens.shape[1]
        ends = ~goes_on | (trie.tokens[stop - 1, depth + 1] == END if deeper else True)
        self._finish(start[ends], stop[ends], total[ends])
        wait = ~ends & (total >= self._floor)
        if not wait.any():
            return []
        return [_Level(cache, depth + 1, self._floor, parent, start, stop, total).keep(wait)]

    def _finish(self, start: np.ndarray, stop: np.ndarray, total: np.ndarray) -> None:
        sizes = stop - start  # rows of the same tokens
        rows = np.repeat(start - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        found = np.repeat(total, sizes)
        self._totals[rows] = np.where(found >= self._floor, found, -np.inf)
        if self._settle is not None and len(found):
            self._floor = self._settle(found)

    def _report(self, open_: list[_Level]) -> None:
        if self._progress is not None:
            waiting = sum(int((level.stop - level.start).sum()) for level in open_)
            done = len(self._trie) - waiting
            self._progress(done - self._done)
            self._done = done


def _can_be_cut(cache: Any) -> bool:
    """Tell whether a cache can be cut into rows.

    Other caches keep more than keys and values of the tokens before, and copies of a layer would share that.
    """
    if not isinstance(cache, Cache) or not cache.layers:
        return False
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    return all(type(layer) in known and getattr(layer, "is_initialized", False) for layer in cache.layers)


def _cut(cache: Cache, rows: torch.Tensor) -> Cache:
    """Return the cache of these rows.

    Its layers make new tensors when they grow, so the old cache stays unchanged.
    """
    found: Any = copy.copy(cache)
    found.layers = [copy.copy(layer) for layer in cache.layers]
    found.reorder_cache(rows)  # takes any rows, each as often as it is named
    cut: Cache = found
    return cut
