"""Read a data set of transformers' or TRL's kind as documents: text or token ids, each with its unit."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

from confide.config import registry
from confide.config.schema import Config
from confide.data.cutting import Cutter
from confide.data.documents import documents_of
from confide.data.loss_mask import ids_of, is_predicted, marked
from confide.data.readers import Counts, Record, documents
from confide.data.turn_cutting import TurnCutter
from confide.data.wording import is_worded
from confide.privacy import mechanisms
from confide.utils.errors import InputError

TOKENS = "input_ids"
_PACKED = ("seq_lengths", "position_ids", "cu_seq_lens_q")
_MASKS = (
    "completion_mask",
    "assistant_masks",
)  # as TRL and apply_chat_template have them: 1 where it is predicted
_IGNORED = -100  # of a label: its token is not predicted


class Rows(Sequence[Mapping[str, Any]]):
    """The rows of a training set as documents, read anew each time.

    Args:
        dataset: a `datasets.Dataset`, or anything with a length and rows that are mappings.
        name: what an error calls the data set.

    Attributes:
        columns: the names of the fields of a row.
        tokenised: rows hold token ids, not text.

    Raises:
        InputError: the data set has no length, lacks the unit, or holds rows packed of several.
    """

    def __init__(self, dataset: Any, name: str = "train_dataset"):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InputError(
                f"{name}: give a data set with a length, not a stream ({type(dataset).__name__}): rows are drawn from "
                "all of it, and it is read twice"
            )
        if not len(dataset):
            raise InputError(f"{name}: it is empty")
        plain = getattr(dataset, "with_format", None)
        self._dataset = plain(None) if plain is not None else dataset
        self._name = name
        first = self._mapping(0)
        self.columns = list(getattr(dataset, "column_names", None) or first)
        packed = [column for column in _PACKED if column in self.columns]
        if packed:
            raise InputError(
                f"{name}: column {packed[0]!r} says that its rows are packed of several, and a row packed of several "
                "users' text protects none of them: give one user's text a row"
            )
        self.tokenised = TOKENS in self.columns
        self._units: list[str] = []

    def fields(self, tokenizer: Any) -> dict[str, str]:
        """Return the keys of the `data` section that follow from the columns' usual names."""
        if self.tokenised or "text" in self.columns:
            return {}
        if "messages" in self.columns:
            if getattr(tokenizer, "chat_template", None) is None:
                return {"text": "messages"}  # a dialogue with the speakers' names
            return {"messages": "messages"} | ({"tools": "tools"} if "tools" in self.columns else {})
        if {"prompt", "completion"} <= set(self.columns):
            return {"prompt": "prompt", "completion": "completion"}
        return {}

    def check(self, config: Config, causal: bool) -> None:
        """Check that the columns that a config names are there.

        Raises:
            InputError: the unit is no column; or the rows hold tokens, and the config needs text.
        """
        self._causal = causal
        self._units = units = _listed(config.data.unit)
        for unit in self.lacking(units):
            raise InputError(
                f"{self._name}: unit {unit!r} is none of its columns ({', '.join(self.columns)}): every row must "
                "say whose it is; keep that column when rows are tokenised, or give the text"
            )
        needs = mechanisms.needs_of(config)
        if self.tokenised and (needs.secrets or needs.redaction != "none" or config.data.clean != "none"
                               or config.data.strip_quotes):  # fmt: skip
            raise InputError(
                f"{self._name}: mechanism {config.privacy.mechanism} or data.clean reads text, and these rows are "
                "token ids already: give the text"
            )

    def refuse_joined(self, config: Config) -> None:
        """Refuse tokens that look joined and cut into blocks, if no column says whose a row is.

        A guarantee says of a row that it is of one document, and a block of joined texts is not. Rows of texts have
        different lengths; blocks have one.

        Raises:
            InputError: all rows have one length.
        """
        if config.data.unit is not None or len(self) == 1:
            return
        lengths = [len(row[TOKENS]) for row in self]
        most = max(lengths)
        if sum(length != most for length in lengths) <= 1:  # the last block may be shorter
            raise InputError(
                f"{self._name}: every row has {most} tokens, as if texts were joined and cut into blocks (group_texts "
                "of run_clm.py), and a block holds text of several: give one text a row, or name the column that says "
                "whose each row is (unit)"
            )

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, at: Any) -> Any:
        return self._row(self._mapping(at), at)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for at in range(len(self)):
            yield self[at]

    def distinct(self, unit: str | list[str] | None) -> int:
        """Return how many units own a row; each row is one if none is named."""
        return len(self) if unit is None else len(self._owners(unit, "refuse"))

    def owners(self, unit: str | list[str]) -> set[str]:
        """Return the names of the units that own a row; rows that nobody owns are left out."""
        # A row that nobody owns becomes a unit by itself, whose name begins with a blank.
        return {name for name in self._owners(unit, "own") if not name.startswith(" ")}

    def _owners(self, unit: str | list[str], without_unit: Literal["refuse", "own"]) -> set[str]:
        given = (Record(row, f"row {at}", [0]) for at, row in enumerate(self))
        found = documents(given, "text", _listed(unit), None, Counts(), without_unit=without_unit)
        return {owner for document in found for owner in document.units}

    def lacking(self, unit: str | list[str]) -> list[str]:
        """Return the fields of a unit that are no columns."""
        return [each for each in _listed(unit) if re.split(r"[.\[]", each, maxsplit=1)[0] not in self.columns]

    def contents(self, columns: Sequence[str]) -> set[int]:
        """Return numbers that tell apart what rows hold in these columns; in another process they are others."""
        rows = map(self._mapping, range(len(self)))
        return {hash(repr([_plain(row.get(column)) for column in columns])) for row in rows}

    def digest(self) -> bytes:
        """Digest all rows. A plain hash of private text: it must never be written without a key."""
        plain = hashlib.sha256()
        for row in self:
            plain.update(repr(sorted((name, _plain(value)) for name, value in row.items())).encode())
        return plain.digest()

    def _mapping(self, at: Any) -> Mapping[str, Any]:
        row = self._dataset[at]
        if not isinstance(row, Mapping):
            raise InputError(f"{self._name}: row {at} is a {type(row).__name__}, and no mapping of columns")
        return row

    def _row(self, row: Mapping[str, Any], at: int) -> Mapping[str, Any]:
        if TOKENS not in row:
            return row
        for unit in self._units:
            owners = row.get(unit)
            if isinstance(owners, list | tuple) and len(set(map(str, owners))) < len(owners):
                raise InputError(
                    f"{self._name}: row {at} names an owner twice in {unit!r}, as joined rows do (group_texts of "
                    "run_clm.py joins every column): give one text a row"
                )
        ids = np.asarray(row[TOKENS]).reshape(-1)
        mask, labels = row.get("attention_mask"), row.get("labels")
        kept = np.ones(len(ids), bool) if mask is None else np.asarray(mask).reshape(-1).astype(bool)
        if self._causal and labels is not None:
            own = np.asarray(labels).reshape(-1)
            if len(own) != len(ids) or ((own != ids) & (own != _IGNORED))[kept].any():
                raise InputError(
                    f"{self._name}: row {at} has labels that are neither its input_ids nor {_IGNORED}: "
                    "confide predicts the tokens of a row, and no others"
                )
            ids = marked(ids, own != _IGNORED)
        elif self._causal:
            masks = [np.asarray(row[name]).reshape(-1) for name in _MASKS if row.get(name) is not None]
            if any(len(each) != len(ids) for each in masks):
                raise InputError(f"{self._name}: row {at} has a mask of another length than its input_ids")
            if masks:
                ids = marked(ids, np.logical_and.reduce([each.astype(bool) for each in masks]))
        return {**row, TOKENS: ids[kept].tolist()}

    _causal = False


def _listed(unit: str | list[str] | None) -> list[str]:
    return [unit] if isinstance(unit, str) else unit or []


def tokenised(dataset: Any, config: Config, tokenizer: Any) -> Any:
    """Return an evaluation set whose rows are token ids, cut as training rows are.

    `labels` say which tokens are predicted, as they are in training.

    Raises:
        InputError: no text is there.
    """
    columns = getattr(dataset, "column_names", None)
    facts, data = registry.task_facts(config.task), config.data
    if columns is None or not facts.cuts_documents:
        return dataset
    if TOKENS in columns:
        return in_pieces(dataset, config)
    from datasets import Dataset

    rows = Rows(dataset, "eval_dataset")
    cutter = Cutter(tokenizer, facts.cuts_documents, data.max_length)
    turns = TurnCutter(tokenizer, data.max_length) if is_worded(config) else None
    nobodys = data.model_copy(update={"unit": None, "max_documents": None, "label": None})
    found: dict[str, list[list[int]]] = {
        name: [] for name in ((TOKENS, "labels") if facts.is_causal else (TOKENS,))
    }
    given = (Record(row, f"eval_dataset row {at}") for at, row in enumerate(rows))
    as_read = config.model_copy(update={"data": nobodys})
    for document in documents_of(as_read, "eval_dataset", Counts(), given, tokenizer):
        if turns is None or document.layout is None:
            cut = cutter.rows([document.text])[0]
        else:
            cut = turns.rows(document.text, document.layout, document.where)
        for row in cut:
            ids = ids_of(row.tokens)
            found[TOKENS].append(ids.tolist())
            if facts.is_causal:
                found["labels"].append(np.where(is_predicted(row.tokens), ids, _IGNORED).tolist())
    if not found[TOKENS]:
        raise InputError("eval_dataset: no text is left to evaluate on")
    return Dataset.from_dict(found)


def in_pieces(dataset: Any, config: Config) -> Any:
    """Return an evaluation set of token ids whose longer rows are cut at `max_length`, as those of training are."""
    length = config.data.max_length
    if TOKENS not in (getattr(dataset, "column_names", None) or ()) or not hasattr(dataset, "__len__"):
        return dataset
    if all(len(ids) <= length for ids in dataset[TOKENS]):
        return dataset

    def pieces(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in batch}
        for at, ids in enumerate(batch[TOKENS]):
            for start in range(0, max(1, len(ids) - 1), length):  # a row of one token predicts nothing
                for name, values in batch.items():
                    value = values[at]
                    follows = isinstance(value, list) and len(value) == len(ids)  # a value for each token
                    found[name].append(value[start : start + length] if follows else value)
        return found

    return dataset.with_format(None).map(pieces, batched=True)


class Padding:
    """Pads the rows of an evaluation to a batch. Tokens without a label of their own are predicted."""

    def __init__(self, tokenizer: Any):
        self._of_labels = DataCollatorForSeq2Seq(tokenizer)
        self._of_tokens = DataCollatorForLanguageModeling(tokenizer, mlm=False)

    def __call__(self, rows: list[Any]) -> Any:
        return self._of_labels(rows) if "labels" in rows[0] else self._of_tokens(rows)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
