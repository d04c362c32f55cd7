"""Turn text into unit graphs: tokenise, cut into rows, hold units out, report what happened."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.config import registry
from confide.data.cutting import Cutter, Row
from confide.data.documents import documents_of, side_of
from confide.data.readers import Counts, Document
from confide.data.readers.duplicates import find_duplicates
from confide.data.spans import Mention
from confide.data.turn_cutting import TurnCutter
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.data.wording import is_worded, loss_on
from confide.privacy import mechanisms
from confide.privacy.secret_targets import class_of
from confide.randomness.streams import RunKey
from confide.runs import canaries
from confide.runs.canaries import Manifest
from confide.runs.data_source import files_of, marks_of, source_of
from confide.runs.given import Given
from confide.runs.planting import Planting
from confide.runs.records import RECORD, check_files, read_record, write_record
from confide.sensitive.redaction.rows import RedactedRow
from confide.sensitive.secrets.finders import find_all
from confide.sensitive.secrets.sources import check_rows, counts_of, searchers
from confide.utils.errors import InputError
from confide.utils.files import write_text
from confide.utils.histogram import histogram_svg

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.sensitive.redaction.documents import RedactedDocuments

Progress = Callable[[int, str], None]  # documents read since the last call, and the counts so far
PICTURE = "rows_per_unit.svg"  # a histogram of the training rows
_BATCH = 512  # documents tokenised at a time
_BATCH_CHARACTERS = 1 << 22  # characters at which a batch ends, even with few documents


@dataclass(frozen=True)
class Prepared:
    """Output of `prepare` on disk.

    Attributes:
        train, held_out: unit graphs; held_out is None without evaluation data.
        public: for a mechanism that redacts, the rows without any sensitive text: if parallel to the training
            rows, their redacted forms; if apart from them, the rows that had no finding. None if there is no
            second graph.
        facts: counts of every step, statistics, duplicates: the `--json` of `confide prepare`.
    """

    train: UnitGraph
    held_out: UnitGraph | None
    facts: dict[str, Any]
    public: UnitGraph | None = None

    @property
    def classes(self) -> int | None:
        """Number of classes of the training labels; None if there are none."""
        names = self.facts.get("classes")
        return len(names) if names is not None else None


def load(
    config: "Config", folder: Path, key: RunKey | None = None, given: Given | None = None
) -> Prepared | None:
    """Load the graphs in `folder`, if they were made from such a config.

    Args:
        key: that of `prepare`.

    Raises:
        InputError: something there is damaged, or was made under another key.
    """
    if not (folder / RECORD).is_file():
        return None
    record = read_record(folder, key)
    if record["source"] != source_of(config, given):
        return None
    facts = record["facts"]
    try:
        held_out = UnitGraph.open(folder / "eval") if facts["eval"] is not None else None
        public = UnitGraph.open(folder / "public") if mechanisms.needs_of(config).second_graph else None
        found = Prepared(UnitGraph.open(folder / "train"), held_out, facts, public)
    except InputError as error:
        raise InputError(f"{error} (remove {folder} first)") from None
    check_files(folder, record["digests"])
    return found


def outdated(config: "Config", folder: Path, key: RunKey | None = None) -> bool:
    """Return True if the files that the graphs in `folder` were made from have changed since."""
    return bool(read_record(folder, key)["files"] != files_of(config))


def prepare(
    config: "Config",
    tokenizer: Any,
    folder: Path,
    progress: Progress | None = None,
    key: RunKey | None = None,
    given: Given | None = None,
) -> Prepared:
    """Read the text of a config into `folder/train`, `folder/eval` and, if rows are redacted, `folder/public`.

    Memory stays bounded. The sensitive passages that were found are kept next to `folder`, in `spans.db`.

    Raises:
        InputError: the data are at fault; the sentence names file, row or key. Nothing is left behind.
    """
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        files = files_of(
            config
        )  # before the text is read, so that a change while reading counts as a later change
        made = _Preparation(config, tokenizer, progress, key, given)
        facts = made.write(building, folder.with_name("spans.db"))
        write_record(building, {"source": source_of(config, given), "files": files, "facts": facts}, key)
        rows = UnitGraph.open(building / "train").rows_per_unit()
        write_text(building / PICTURE, histogram_svg(rows))
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    found = load(config, folder, key, given)
    assert found is not None
    return found


class _Preparation:
    """One pass over the text."""

    def __init__(
        self,
        config: "Config",
        tokenizer: Any,
        progress: Progress | None,
        key: RunKey | None = None,
        given: Given | None = None,
    ):
        self.given = given or Given()
        self.config, self.tokenizer, self.progress, self.key = config, tokenizer, progress, key
        self.needs, self.counts = mechanisms.needs_of(config), Counts()
        self.has_classes = registry.task_facts(config.task).has_classes
        self.classes = {str(number): number for number in range(self.given.classes or 0)}
        self.trained: set[int] = set()  # classes of training rows
        self.held: dict[int, str] = {}  # classes of held-out rows, and where each was first met
        self.finders = searchers(config) if self.needs.secrets else None
        self.cutter = Cutter(tokenizer, config.task, config.data.max_length, self.finders is not None)
        if is_worded(config):
            self.turns = TurnCutter(tokenizer, config.data.max_length, self.counts)
        self.redacted: RedactedDocuments | None = None  # while the training text is read
        self.any_found = False
        self.manifest = Manifest.draw(config, tokenizer, key) if config.canaries.count else None

    def write(self, folder: Path, cache: Path) -> dict[str, Any]:
        """Write all graphs into `folder`. Return the facts."""
        data = self.config.data
        with ExitStack() as stack:
            writers = {"train": self._writer(stack, folder / "train", self.finders is not None)}
            if isinstance(data.eval, float):
                writers["eval"] = self._writer(stack, folder / "eval")
            if self.needs.redaction != "none":
                from confide.sensitive.redaction.documents import RedactedDocuments

                # If no row holds the text behind its masks, a mask is a single token.
                span_tokens = self.config.redacted.span_tokens if self.needs.redaction == "beside" else 1
                self.redacted = stack.enter_context(
                    RedactedDocuments(self.config, self.tokenizer, cache, span_tokens, self.key)
                )
            if self.needs.second_graph:
                writers["public"] = self._writer(stack, folder / "public")
            planting = self._planting()
            self._fill(data.train, writers, data.eval if isinstance(data.eval, float) else 0.0)
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
        facts["counts"], facts["notes"] = dict(self.counts), self.counts.notes()
        if planting is not None:
            planting.manifest.write(folder)
            facts["canaries"] = planting.facts()
        if data.duplicates:
            facts["duplicates"] = self._duplicates()
        if self.has_classes:
            facts["classes"] = list(self.classes)
        return facts

    def _planting(self) -> Planting | None:
        """Return the canaries to plant, after a check that the claim is about such canaries; None if there are none."""
        if self.manifest is None:
            return None
        return Planting(self.manifest, self.config, self.cutter, self.redacted, self._mentions)

    def _writer(self, stack: ExitStack, folder: Path, unowned: bool = False) -> GraphWriter:
        marked = loss_on(self.config) != "all" or self.given.token_field is not None
        return stack.enter_context(GraphWriter(folder, len(self.tokenizer), {}, unowned, marked))

    def _training(self, counts: Counts) -> Iterator[Document]:
        given = self.given.records() if self.given.documents is not None else None
        return documents_of(self.config, self.config.data.train, counts, given, self.tokenizer)

    def _fill(self, source: str, writers: dict[str, GraphWriter], share: float) -> None:
        """Write every row of `source` into the graph of its side; `share` of the units are held out."""
        trains = "train" in writers
        found = self._training(self.counts)
        if not trains:
            found = documents_of(self.config, source, self.counts, tokenizer=self.tokenizer)
        for batch in _batches(found, _BATCH):
            self._write(batch, list(self._placed(batch, share)), writers)
            if self.progress is not None:
                self.progress(len(batch), "" if self.redacted is None else self.redacted.note())
        if self.finders is not None and trains:
            check_rows(self.finders, self.counts["records"])
        if not any(writers[side].rows for side in writers if side != "eval" or not trains):
            if trains and share and writers["eval"].rows:
                raise InputError(
                    f"data.eval: a share of {share:g} held out every unit and left none to train on; lower it"
                )
            purpose = "train on" if trains else "evaluate on"
            raise InputError(f"{source}: no text was left to {purpose} ({self.counts.sentence()})")
        if trains and share and not writers["eval"].rows:
            raise InputError(
                f"data.eval: a share of {share:g} of the units left none to hold out; raise it, or name a file"
            )

    def _write(
        self,
        batch: list[Document],
        placed: list[tuple[int, str, int | None]],
        writers: dict[str, GraphWriter],
    ) -> None:
        """Write the rows of documents, each into the graph of its side."""
        mentioned = self._mentions(batch) if "train" in writers else None
        self.any_found = self.any_found or bool(mentioned and any(mentioned))
        if self.redacted is not None:
            private = [(at, label) for at, side, label in placed if side == "train"]
            self._redact([batch[at] for at, _ in private], [label for _, label in private], writers)
            placed = [entry for entry in placed if entry[1] != "train"]
        used = [batch[at] for at, _, _ in placed]
        for (at, side, label), own in zip(placed, self._cut(used), strict=True):
            for row in own:
                units: Sequence[str] = batch[at].units
                if mentioned is not None and side == "train":
                    planted = units if batch[at].where == canaries.WHERE else ()
                    units = [*planted, *row.secrets(mentioned[at])]
                writers[side].add(row.tokens, units, label)

    def _cut(self, documents: Sequence[Document]) -> Iterator[Iterable[Row]]:
        """Cut documents into rows: chats and completions by their layout, tokens as they are."""
        plain = [each for each in documents if each.layout is None and each.tokens is None]
        rows = iter(self.cutter.rows([each.text for each in plain], [each.where for each in plain]))
        for each in documents:
            if each.tokens is not None:
                yield self.cutter.rows_of_tokens(each.tokens)
            else:
                yield (
                    next(rows) if each.layout is None else self.turns.rows(each.text, each.layout, each.where)
                )

    def _plant(self, planting: Planting, writers: dict[str, GraphWriter], beside: GraphWriter) -> None:
        """Write canaries among the training rows; `beside` gets the rows of all contents, planted or not."""
        planting.lay_beside(beside)
        for batch in _batches(planting.manifest.documents(self.config), _BATCH):
            self._write(batch, [(at, "train", None) for at in range(len(batch))], writers)
        nothing = canaries.blank(self.tokenizer)
        for name in planting.manifest.absent():
            writers["train"].add(nothing, [name])

    def _beside(self, folder: Path) -> GraphWriter:
        return GraphWriter(folder / canaries.GRAPH, len(self.tokenizer), {})

    def _placed(self, batch: list[Document], share: float) -> Iterator[tuple[int, str, int | None]]:
        """Yield, for each used document, its place in the batch, its side and its class."""
        for at, document in enumerate(batch):
            side = side_of(document.units, share)
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
                f"{self._text()} is the text that holds them"
            )
        if self.redacted is None:
            return
        if not self.redacted.any_found:
            raise InputError(
                f"detector: nothing sensitive was found in {source}: check what `detector` looks for, and that "
                f"{self._text()} is the text that holds it"
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

    def _text(self) -> str:
        """Return the key that says which text is read, with its value."""
        data = self.config.data
        key = (
            "messages"
            if data.messages is not None
            else "completion"
            if data.completion is not None
            else "text"
        )
        return f"data.{key} ({getattr(data, key)!r})"

    def _duplicates(self) -> dict[str, Any]:
        """Read the text again, held out or not, for text that occurs in several units. Return figures, never text."""
        found = find_duplicates(self._training(Counts()))
        names = (
            "rows",
            "units",
            "rows_exact",
            "rows_near",
            "rows_passages",
            "rows_affected",
            "share_affected",
        )
        return {name: getattr(found, name) for name in names} | {"sentences": found.sentences()}

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
            raise InputError(f"{document.where}: has no label in field {self.config.data.label!r}")
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
                raise InputError(f"{where}: the class in field {field!r} is that of no training row")
        if self.has_classes and len(self.trained) < 2:
            raise InputError(
                f"data.label: field {field!r} holds one class alone, so there is nothing to tell apart"
            )


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


def _batches(items: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Yield documents, as many at a time as bounded memory allows."""
    batch: list[Document] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += len(item.text)
        if len(batch) == size or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
