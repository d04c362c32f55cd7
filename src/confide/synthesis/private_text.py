"""Read the private text of a run again, to hold a corpus against it. It takes the run folder, and the text itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from confide.config.schema import Config
from confide.data.conditions import Conditions
from confide.data.documents import documents_of, side_of, training_documents
from confide.data.readers import Counts, Document
from confide.data.unit_graph import UnitGraph
from confide.data.wording import is_worded
from confide.runs import preparation
from confide.runs.folder import is_sweep
from confide.runs.records import RECORD
from confide.runs.released import Released
from confide.utils.errors import InputError


@dataclass(frozen=True)
class Text:
    """One text.

    Attributes:
        text: without the condition in front of it.
        whole: as a model reads it.
        unit: who it belongs to; of several owners all, joined.
        fields: of its record.
    """

    text: str
    whole: str
    unit: str
    fields: Mapping[str, Any]


class PrivateText:
    """The text that a run trained on, and text of other units.

    Attributes:
        dropped: held-out documents that were left out since their unit trained; counted while they are read.
    """

    def __init__(self, released: Released, held_out: str | None):
        self.released, self._file = released, held_out
        self.run = released.run
        self.dropped = 0

    @classmethod
    def of(cls, folder: Path, held_out: str | None = None) -> "PrivateText":
        """Find the text of a run.

        Args:
            held_out: a source of the form of `data.train`; default: what the run held out.

        Raises:
            InputError: the run is not here, or its text is not, or there is no held-out text.
        """
        if not (folder / "config.yaml").is_file() or is_sweep(folder):
            raise InputError(
                f"{folder}: --evaluate and --leaks hold the corpus against the private text, so they need a run folder "
                "that was trained by itself, where that text is; a release alone knows nothing of it"
            )
        released = Released.of(folder)
        if not released.facts.is_causal:
            raise InputError(f"{folder}: a model of task {released.facts.name} writes no text")
        if "documents" in released.run.made_with():
            raise InputError(
                f"{folder}: a program handed over the documents of this run, so confide cannot read them again"
            )
        found = cls(released, held_out)
        found._check()
        return found

    @property
    def config(self) -> Config:
        return self.released.run.config

    @cached_property
    def _tokenizer(self) -> Any:
        return self.released.tokenizer if is_worded(self.config) else None

    @cached_property
    def _conditions(self) -> Conditions | None:
        return Conditions.of(self.config.data)

    def _check(self) -> None:
        run = self.run
        if self._file is None and (self.config.data.eval is None or self.config.data.eval_within is not None):
            raise InputError(
                f"{run.root}: this run held out no text of other units (data.eval); give some with --held-out FILE, in "
                "the form of data.train"
            )
        if not (run.data / RECORD).is_file():
            raise InputError(
                f"{run.data}: the prepared rows are gone, which say whose text trained: `confide prepare {run.root}` "
                "makes them again"
            )
        if preparation.outdated(self.config, run.data, run.data_key()):
            raise InputError(
                f"{self.config.data.train}: the text has changed, or is gone, since this run read it, so it is not "
                "what the model learnt from: put the files back as they were"
            )

    def train(self) -> Iterator[Text]:
        """Yield the documents that the model learnt from; planted canaries are not among them."""
        return map(self._text, training_documents(self.config, self._tokenizer))

    def held_out(self) -> Iterator[Text]:
        """Yield documents of units that did not train."""
        self.dropped = 0
        trained = set(UnitGraph.open(self.run.data / "train").unit_names())
        for document in self._others():
            if any(unit in trained for unit in document.units if self._is_name(unit)):
                self.dropped += 1
            else:
                yield self._text(document)

    def _is_name(self, unit: str) -> bool:
        """Tell whether a unit's name means the same in another file: not if documents were numbered."""
        return not unit.startswith(" ") and (self._file is None or self.config.data.unit is not None)

    def _others(self) -> Iterator[Document]:
        data = self.config.data
        source = self._file or (data.eval if isinstance(data.eval, str) else None)
        if source is not None:
            yield from documents_of(self.config, source, Counts(), tokenizer=self._tokenizer)
            return
        assert isinstance(data.eval, float)
        for document in documents_of(self.config, data.train, Counts(), tokenizer=self._tokenizer):
            if side_of(document.units, data.eval) == "eval":
                yield document

    def _text(self, document: Document) -> Text:
        said = _said(document.fields.get(str(self.config.data.messages)))
        if said:  # without what the chat template puts around it, as in a corpus
            return Text(said, said, " ".join(document.units), document.fields)
        conditions = self._conditions
        before = "" if conditions is None else conditions.prefix_of(document.fields, document.where)
        text = document.text.removeprefix(before)
        return Text(text, document.text, " ".join(document.units), document.fields)


def _said(messages: object) -> str:
    """Return what is said in a list of messages; "" if it is none."""
    if not isinstance(messages, list | tuple):
        return ""
    said = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return "\n\n".join(content for content in said if isinstance(content, str))
