"""Read the text of a config into unit graphs: cut it into rows, hold units out, count what happened."""

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from confide.config import registry
from confide.data.both_sides import units_that_train
from confide.data.cutting import Cutter, Row
from confide.data.documents import UNLISTED, Recipe, side_of
from confide.data.part_work import (
    BATCH,
    BATCH_CHARACTERS,
    Finished,
    Finishing,
    Item,
    items_of,
)
from confide.data.readers import Counts, Document
from confide.data.readers.duplicates import Sketches
from confide.data.readers.fields import spelt_alike
from confide.data.spans import Mention
from confide.data.taking import taken
from confide.data.text_work import Rows, Text, TextWork
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.data.within import part
from confide.data.wording import loss_on, read_key
from confide.privacy import mechanisms
from confide.privacy.secret_targets import class_of
from confide.randomness.streams import RunKey
from confide.runs import canaries
from confide.runs.canaries import Manifest
from confide.runs.data_source import marks_of
from confide.runs.given import Given
from confide.runs.kept_parts import StoreOf
from confide.runs.planting import Planting
from confide.sensitive.redaction.rows import RedactedRow
from confide.sensitive.secrets.finders import find_all
from confide.sensitive.secrets.sources import check_rows, close, counts_of, searchers
from confide.utils.errors import InputError
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.sensitive.redaction.documents import RedactedDocuments

Progress = Callable[[int, str], None]  # documents read since the last call, and the counts so far
Taken = TypeVar("Taken", Document, Finished)
Side = str | None  # of the split: train, eval, or neither
_HELD = 1 << 20  # tokens of rows that wait to be written
_LOOKED_THROUGH = 500_000  # names of units, in a second or two


class Reading:
    """One pass over the text.

    `crew` does what can be done to each text by itself. The rest happens here, in the order of the text.
    """

    def __init__(
        self,
        config: "Config",
        tokenizer: Any,
        progress: Progress | None,
        key: RunKey | None = None,
        given: Given | None = None,
        crew: Crew | None = None,
        store: StoreOf | None = None,
    ):
        self.given, self.crew, self.store = given or Given(), crew, store
        self.config, self.tokenizer, self.progress, self.key = config, tokenizer, progress, key
        self.needs = mechanisms.needs_of(config)
        self.counts, self.after = Counts(), Counts()  # of what is read, and of what becomes of it
        task = registry.task_facts(config.task)
        self.has_classes = task.has_classes
        self.classes = {str(number): number for number in range(self.given.classes or 0)}
        self.trained: set[int] = set()  # classes of training rows
        self.held: dict[int, str] = {}  # classes of held-out rows, and where each was first met
        self.finders = searchers(config, crew) if self.needs.secrets else None
        data = config.data
        self.work = TextWork(tokenizer, task.cuts_documents, data.max_length, self.finders is not None)
        self.sketches = Sketches() if data.duplicates else None
        self.redacted: RedactedDocuments | None = None  # while the training text is read
        self.any_found = False
        self.manifest = Manifest.draw(config, tokenizer, key) if config.canaries.count else None

    def write(self, folder: Path, cache: Path) -> dict[str, Any]:
        """Write all graphs into `folder`. Return the facts."""
        data = self.config.data
        with ExitStack() as stack:
            stack.callback(close, self.finders or [])
            writers = {"train": self._writer(stack, folder / "train", self.finders is not None)}
            if isinstance(data.eval, float) or data.eval_within is not None:
                writers["eval"] = self._writer(stack, folder / "eval")
            if self.needs.redaction != "none":
                from confide.sensitive.redaction.documents import RedactedDocuments

                # If no row holds the text behind its masks, a mask is a single token.
                span_tokens = self.config.redacted.span_tokens if self.needs.redaction == "beside" else 1
                self.redacted = stack.enter_context(
                    RedactedDocuments(self.config, self.tokenizer, cache, span_tokens, self.key, self.crew)
                )
            if self.needs.second_graph:
                writers["public"] = self._writer(stack, folder / "public")
            planting = self._planting()
            if data.eval_within is None:
                self._fill(data.train, writers, data.eval if isinstance(data.eval, float) else 0.0)
            else:
                self._fill_within(data.eval_within, writers, folder / "whole")
            self._check_found(writers)
            if planting is not None:
                self._plant(planting, writers, stack.enter_context(self._beside(folder)))
        if isinstance(data.eval, str):
            with ExitStack() as stack:
                self._fill(data.eval, {"eval": self._writer(stack, folder / "eval")}, 1.0)
        self._check_classes()
        facts = dict(UnitGraph.open(folder / "train").statistics())
        if self.finders is not None:
            facts["secrets"] = _of_secrets(UnitGraph.open(folder / "train"))
            facts["secrets"]["counts"] = counts_of(self.finders)
        if self.redacted is not None:
            facts["redaction"] = self.redacted.facts()
        for name in ("eval", "public"):
            facts[name] = UnitGraph.open(folder / name).statistics() if (folder / name).is_dir() else None
        facts["counts"], facts["notes"] = (
            dict(self._counted()),
            [*self.counts.notes(), *self._spellings(folder), *self._on_both_sides(folder)],
        )
        if planting is not None:
            planting.manifest.write(folder)
            facts["canaries"] = planting.facts()
        if self.sketches is not None:
            facts["duplicates"] = _of_duplicates(self.sketches)
        if self.has_classes:
            facts["classes"] = list(self.classes)
        return facts

    def _spellings(self, folder: Path) -> list[str]:
        """Return a remark if several units may be one, of a graph that is not too large to look through."""
        graphs = [UnitGraph.open(folder / name) for name in ("train", "eval") if (folder / name).is_dir()]
        if self.config.data.unit is None or sum(graph.n_units for graph in graphs) > _LOOKED_THROUGH:
            return []
        # The unit of a document that nobody owns begins with a blank.
        names = {name for graph in graphs for name in graph.unit_names() if not name.startswith(" ")}
        if not (alike := spelt_alike(names)):
            return []
        return [
            f"warning: data.unit: {alike:,} of {len(names):,} names differ from another only in capitals or spaces. "
            "If these are one person, write them alike: each spelling is protected, and held out, as its own person"
        ]

    def _on_both_sides(self, folder: Path) -> Iterator[str]:
        """Yield a remark if a file of held-out text has units that train. Where units are secrets, no name tells."""
        if not isinstance(self.config.data.eval, str) or self.needs.secrets:
            return
        held_out = UnitGraph.open(folder / "eval")
        names = ("train", "public") if self.needs.second_graph else ("train",)
        trained = [UnitGraph.open(folder / name) for name in names]
        if number := units_that_train(self.config.data, held_out, trained):
            yield (
                f"warning: data.eval: {number:,} of its {held_out.n_units:,} units also train: losses on their text "
                "are not those of others, and no noise covers them"
            )

    def _planting(self) -> Planting | None:
        """Return the canaries to plant, after a check that the claim is about such canaries; None if there are none."""
        if self.manifest is None:
            return None
        work = self.work
        cutter = Cutter(work.tokenizer, work.in_rows, work.length, work.places)
        return Planting(self.manifest, self.config, cutter, self.redacted, self._mentions)

    def _writer(self, stack: ExitStack, folder: Path, unowned: bool = False) -> GraphWriter:
        marked = loss_on(self.config) != "all" or self.given.token_field is not None
        counted = bool(self.config.privacy.histograms.of)
        return stack.enter_context(GraphWriter(folder, len(self.tokenizer), {}, unowned, marked, counted))

    def _counted(self) -> Counts:
        """Return all counts, in an order that does not depend on who does the work."""
        found = Counts(self.counts)
        found.update(self.after)
        return found

    def _fill(self, source: str, writers: dict[str, GraphWriter], share: float) -> None:
        """Write every row of `source` into the graph of its side; `share` of the units are held out."""
        data = self.config.data
        with closing(self._items(source, "train" in writers, share)) as items:
            for batch in _batches(taken(items, data, self.counts, self.after), BATCH):
                documents = [each.document for each in batch]
                sides = [side_of(document.units, share) for document in documents]
                if "train" in writers and self.sketches is not None:
                    for each in batch:
                        self.sketches.add(each.document.units, each.worked.sketch)
                for each, side in zip(batch, sides, strict=True):
                    if each.worked.counts and self._cuts(side):
                        self.after.update(each.worked.counts)
                rows = [each.worked.rows for each in batch]
                self._write(documents, rows, list(self._placed(documents, sides)), writers)
                if self.progress is not None:
                    self.progress(len(batch), "" if self.redacted is None else self.redacted.note())
        self._check_filled(source, writers, share)

    def _fill_within(self, share: float, writers: dict[str, GraphWriter], folder: Path) -> None:
        """Write all rows, then deal them out: how many a unit has is known at the end alone. Canaries come later."""
        data = self.config.data
        with ExitStack() as stack:
            self._fill(data.train, {"train": self._writer(stack, folder)}, 0.0)
        whole = UnitGraph.open(folder)
        held = part(whole, share, data.eval_within_most, writers["train"], writers["eval"])
        self.after["rows held out of units that train"] += held
        shutil.rmtree(folder)

    def _items(self, source: str, trains: bool, share: float) -> Generator[Item, None, None]:
        data = self.config.data
        given = self.given.records() if trains and self.given.documents is not None else None
        work = replace(
            self.work, without_quotes=data.strip_quotes, sketched=trains and self.sketches is not None
        )
        is_redacted = trains and self.redacted is not None
        finishing = Finishing(
            Recipe.of(self.config, self.tokenizer),
            work,
            share,
            frozenset({"eval"}) if is_redacted else frozenset({"train", "eval"}),
            bare=not is_redacted and not (trains and self.finders is not None),
            limit=data.max_documents,
            batch=BATCH,
        )
        store = None if self.store is None else partial(self.store, "train" if trains else "eval")
        return items_of(finishing, source, self.crew or Crew(), given, store)

    def _cuts(self, side: Side) -> bool:
        return side == "eval" or (side == "train" and self.redacted is None)

    def _text_of(self, document: Document) -> Text:
        return Text(document.text, document.where, document.layout, document.tokens, self._cuts("train"))

    def _check_filled(self, source: str, writers: dict[str, GraphWriter], share: float) -> None:
        trains = "train" in writers
        if trains and 0 < self.counts["documents"] == self.counts[UNLISTED]:
            raise InputError(
                f"data.conditions: no document of {source} has the values of an entry in the fields of data.condition: "
                "is something spelt in another way?"
            )
        if self.finders is not None and trains:
            check_rows(self.finders, self.counts["records"])
        if not any(writers[side].rows for side in writers if side != "eval" or not trains):
            if trains and share and writers["eval"].rows:
                raise InputError(
                    f"data.eval: a share of {share:g} held out every unit and left none to train on; lower it"
                )
            purpose = "train on" if trains else "evaluate on"
            raise InputError(f"{source}: no text was left to {purpose} ({self._counted().sentence()})")
        if trains and share and not writers["eval"].rows:
            raise InputError(
                f"data.eval: a share of {share:g} of the units left none to hold out, since there are too few: set a "
                "larger share, or name a file of held-out text"
            )

    def _write(
        self,
        batch: list[Document],
        rows: list[Rows],
        placed: Sequence[tuple[int, str, int | None]],
        writers: dict[str, GraphWriter],
    ) -> None:
        """Write the rows of documents, each into the graph of its side."""
        mentioned = self._mentions(batch) if "train" in writers else None
        self.any_found = self.any_found or bool(mentioned and any(mentioned))
        if self.redacted is not None:
            private = [(at, label) for at, side, label in placed if side == "train"]
            self._redact([batch[at] for at, _ in private], [label for _, label in private], writers)
            placed = [entry for entry in placed if entry[1] != "train"]
        waiting = {side: _Waiting(writer) for side, writer in writers.items()}
        for at, side, label in placed:
            document = batch[at].condition  # of its first row
            for row in rows[at]:
                units: Sequence[str] = batch[at].units
                if mentioned is not None and side == "train":
                    planted = units if batch[at].where == canaries.WHERE else ()
                    units = [*planted, *row.secrets(mentioned[at])]
                waiting[side].add(row, units, label, document)
                document = -1
        for each in waiting.values():
            each.write()

    def _plant(self, planting: Planting, writers: dict[str, GraphWriter], beside: GraphWriter) -> None:
        """Write canaries among the training rows; `beside` gets the rows of all contents, planted or not."""
        planting.lay_beside(beside)
        do = self.work.ready()
        for batch in _batches(planting.manifest.documents(self.config), BATCH):
            worked = do([self._text_of(document) for document in batch])
            for each in worked:
                self.after.update(each.counts or {})
            placed = [(at, "train", None) for at in range(len(batch))]
            self._write(batch, [each.rows for each in worked], placed, writers)
        nothing = canaries.blank(self.tokenizer)
        for name in planting.manifest.absent():
            writers["train"].add(nothing, [name])

    def _beside(self, folder: Path) -> GraphWriter:
        return GraphWriter(folder / canaries.GRAPH, len(self.tokenizer), {})

    def _placed(self, batch: list[Document], sides: list[Side]) -> Iterator[tuple[int, str, int | None]]:
        """Yield, for each used document, its place in the batch, its side and its class."""
        for at, (document, side) in enumerate(zip(batch, sides, strict=True)):
            if side is None:
                self.counts["documents dropped: owners on both sides of the split"] += 1
            elif self.needs.redaction == "apart" and side == "train" and not self._is_new(document):
                self.counts["documents dropped: the same text as one before"] += 1
            else:
                label = self._label(document, held_out=side == "eval") if self.has_classes else None
                yield at, side, label

    def _is_new(self, document: Document) -> bool:
        assert self.redacted is not None
        return self.redacted.is_new(document)

    def _redact(
        self, batch: list[Document], labels: list[int | None], writers: dict[str, GraphWriter]
    ) -> None:
        """Write the rows of training documents into the graphs that the mechanism trains on."""
        assert self.redacted is not None
        for document, label, rows in zip(batch, labels, self.redacted.rows(batch), strict=True):
            screened = self.redacted.is_screened(document)
            for row in rows:
                for name, tokens in self._forms(row, screened):
                    writers[name].add(tokens, document.units, label)

    def _forms(self, row: RedactedRow, screened: bool) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the graphs that a row goes to, each with the form of the row."""
        if self.needs.redaction == "instead":
            yield "train", row.masked
        elif self.needs.redaction == "apart":
            yield "train" if row.has_finding else "public", row.masked
        else:
            yield "train", row.tokens
            if screened:
                yield "public", row.masked

    def _check_found(self, writers: dict[str, GraphWriter]) -> None:
        """Refuse a config that would protect nothing, or leave a mechanism without rows."""
        source, config = self.config.data.train, self.config
        if self.finders is not None and not self.any_found:
            raise InputError(
                f"secrets: none was found in {source}: check what `secrets` lists, and that "
                f"{read_key(self.config.data)} is the text that holds them"
            )
        if self.redacted is None:
            return
        if not self.redacted.any_found:
            raise InputError(
                f"detector: nothing sensitive was found in {source}: check what `detector` looks for, and that "
                f"{read_key(self.config.data)} is the text that holds it"
            )
        if "public" in writers and not writers["public"].rows:
            if marks_of(config) is not None:
                raise InputError("redacted.marks: none of its documents has a row that is trained on")
            raise InputError(
                f"detector: every row of {source} has a finding, and crt takes its ordinary steps on rows without "
                "one: shorten rows (data.max_length), detect less, or choose mechanism redacted or selective"
            )
        if not writers["train"].rows:
            raise InputError(f"detector: what it finds in {source} is in no row that predicts anything")

    def _mentions(self, batch: list[Document]) -> list[list[Mention]] | None:
        """Find where each document mentions secrets; None if units are not secrets.

        A canary's number already is a secret, namely that canary's. If a finder recognises it, it is not a
        further secret.
        """
        if self.finders is None:
            return None
        found = find_all(self.finders, batch)
        if self.manifest is None:
            return found
        start, end = self.manifest.place()
        return [
            [m for m in own if m.end <= start or m.start >= end] if document.where == canaries.WHERE else own
            for document, own in zip(batch, found, strict=True)
        ]

    def _label(self, document: Document, held_out: bool) -> int:
        if document.label is None:
            raise InputError(
                f"{document.where}: has no label in field {self.config.data.label!r} (data.label): fill it in, or "
                "remove this record"
            )
        label = self.classes.setdefault(str(document.label), len(self.classes))
        if held_out:
            self.held.setdefault(label, document.where)
        else:
            self.trained.add(label)
        return label

    def _check_classes(self) -> None:
        """Check that there are several classes to learn, and that each has a row to learn it from."""
        field = self.config.data.label
        for label, where in self.held.items():
            if label not in self.trained:
                raise InputError(
                    f"{where}: no training row has the class of this held-out row (field {field!r}): add one to "
                    "data.train, or remove this row"
                )
        if self.has_classes and len(self.trained) < 2:
            raise InputError(
                f"data.label: field {field!r} holds one class alone, so there is nothing to tell apart"
            )


class _Waiting:
    """Rows that wait to be written to one graph together."""

    def __init__(self, writer: GraphWriter) -> None:
        self._writer = writer
        self._tokens: list[np.ndarray] = []
        self._units: list[Sequence[str]] = []
        self._labels: list[int | None] = []
        self._documents: list[int] = []
        self._held = 0

    def add(self, row: Row, units: Sequence[str], label: int | None, document: int) -> None:
        self._documents.append(document)
        self._tokens.append(row.tokens)
        self._units.append(units)
        self._labels.append(label)
        self._held += len(row.tokens)
        if self._held >= _HELD:
            self.write()

    def write(self) -> None:
        if not self._tokens:
            return
        labels = None if self._labels[0] is None else [label for label in self._labels if label is not None]
        lengths = [len(tokens) for tokens in self._tokens]
        self._writer.add_many(np.concatenate(self._tokens), lengths, self._units, labels, self._documents)
        self._tokens, self._units, self._labels, self._documents, self._held = [], [], [], [], 0


def _of_duplicates(sketches: Sketches) -> dict[str, Any]:
    """Return figures on text that occurs in several units, held out or not; never text."""
    found = sketches.report()
    names = ("rows", "units", "rows_exact", "rows_near", "rows_passages", "rows_affected", "share_affected")
    return {name: getattr(found, name) for name in names} | {"sentences": found.sentences()}


def _of_secrets(graph: UnitGraph) -> dict[str, Any]:
    """Count the secrets of each class, and their rows. No secret is returned."""
    classes: dict[str, dict[str, int]] = {}
    for name, rows in zip(graph.unit_names(), graph.shape().rows_per_unit.tolist(), strict=True):
        found = classes.setdefault(class_of(name), {"secrets": 0, "mentions": 0, "most": 0})
        found["secrets"] += 1
        found["mentions"] += rows
        found["most"] = max(found["most"], rows)
    holding = graph.owned_rows()
    return {"rows_with": holding, "rows_without": graph.n_rows - holding, "classes": classes}


def _batches(items: Iterable[Taken], size: int) -> Iterator[list[Taken]]:
    """Yield documents, as many at a time as bounded memory allows."""
    batch: list[Taken] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += item.size if isinstance(item, Finished) else len(item.text)
        if len(batch) == size or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
