"""The texts of training studies, each cut by unit into three: to train on, to choose by, and to report on once.

A unit's part follows from its name alone, so that every study and every scale has the same parts.
"""

from __future__ import annotations

import csv
import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import confide
from studies.runner.made import made
from studies.runner.study import Scale, Work

PARTS = ("train", "validation", "test")
_HELD_OUT_OF_UNIT = 2
_SHARE = 0.1  # of the units, for validation and for the test each
_HEADING = re.compile(r"= [^=].*[^=] =")  # of an article; sections have more signs

Document = dict[str, Any]
T = TypeVar("T")


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return so many items, at equal distances; all of them, if there are no more.

    The first ones may be of one kind: a text often begins with many documents of one.
    """
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


@dataclass(frozen=True)
class Text:
    """A public text whose documents belong to units.

    Attributes:
        title: as in a sentence.
        source: the file below the folder of public data.
        unit: the field that names the unit.
        template: the text of a document.
        documents: reads the file's lines.
        most: how many documents are read at `small`; None for all. Of these, validation and test have two of a unit.
        of_unit: how many documents of a unit are read at `small`; None for all.
        of_unit_at_full: the same at `full`.
        tiny: how many documents are read at `tiny`; the training part then has two of a unit, if `of_unit` is given.
        held_out: how many documents validation and test have at `small`, each.
        units: how many units the training part has, the first that are met; None for all.
    """

    title: str
    source: str
    unit: str
    template: str
    documents: Callable[[IO[str]], Iterator[Document]]
    most: int | None = None
    of_unit: int | None = None
    of_unit_at_full: int | None = None
    tiny: int = 200
    held_out: int = 160
    units: int | None = None

    def parts(self, work: Work) -> dict[str, Path]:
        """Write the three parts, or find them as they were written: JSON lines, by the names of `PARTS`."""
        most = {Scale.TINY: self.tiny, Scale.SMALL: self.most, Scale.FULL: None}[work.scale]
        held_out = {Scale.TINY: 8, Scale.SMALL: self.held_out, Scale.FULL: None}[work.scale]
        read = f"{Path(self.source).parts[0]}{self.documents.__name__}"
        of_unit = self.of_unit_at_full if work.scale is Scale.FULL else self.of_unit
        name = "-".join(str(part or "all") for part in (read, most, of_unit, held_out))
        name += f"-{self.units}" if self.units else ""
        folder = work.folder / "texts" / name
        paths = {part: folder / f"{part}.jsonl" for part in PARTS}
        made(
            folder,
            lambda building: self._write(
                self._source(work), most, held_out, work.scale is Scale.TINY, building
            ),
        )
        return paths

    def _source(self, work: Work) -> Path:
        return work.source(self.source)

    def _write(
        self, source: Path, most: int | None, held_out: int | None, is_tiny: bool, folder: Path
    ) -> None:
        of_part, of_unit, met = Counter[str](), Counter[str](), set[str]()
        most_of_unit = _HELD_OUT_OF_UNIT if is_tiny and self.of_unit else self.of_unit
        with ExitStack() as opened:
            files = {
                part: opened.enter_context(open(folder / f"{part}.jsonl", "w", encoding="utf-8"))
                for part in PARTS
            }
            lines = opened.enter_context(lzma.open(source, "rt", encoding="utf-8"))
            for document in islice(self.documents(lines), most):
                unit = str(document[self.unit])
                part = part_of(unit)
                if held_out is not None:
                    in_all, of_one = (
                        (None, most_of_unit) if part == "train" else (held_out, _HELD_OUT_OF_UNIT)
                    )
                else:
                    in_all, of_one = None, self.of_unit_at_full
                if _is_full(of_part[part], in_all) or _is_full(of_unit[unit], of_one):
                    continue
                if part == "train" and unit not in met and _is_full(len(met), self.units):
                    continue
                if part == "train":
                    met.add(unit)
                of_part[part] += 1
                of_unit[unit] += 1
                files[part].write(json.dumps(document) + "\n")


def _is_full(count: int, most: int | None) -> bool:
    return most is not None and count >= most


def part_of(unit: str) -> str:
    """Return the part that a unit is in."""
    place = int.from_bytes(hashlib.sha256(unit.encode()).digest()[:4], "big") / 2**32
    return "validation" if place < _SHARE else "test" if place < 2 * _SHARE else "train"


def _posts(lines: IO[str]) -> Iterator[Document]:
    for line in lines:
        post = json.loads(line)
        yield {name: post[name] for name in ("from", "subject", "body")}


def _mails(lines: IO[str]) -> Iterator[Document]:
    for line in lines:
        mail = json.loads(line)
        to = {address.strip().lower() for name in ("to", "cc") for address in mail[name].split(",")}
        yield {
            "from": mail["from"].strip().lower(),
            "to": sorted(to - {""}),
            "subject": mail["subject"],
            "body": mail["body"],
        }


def _abstracts(lines: IO[str]) -> Iterator[Document]:
    for line in lines:
        paper = json.loads(line)
        yield {name: paper[name] for name in ("id", "text")}


def _articles(lines: IO[str]) -> Iterator[Document]:
    """Yield the paragraphs of WikiText-2; an article's unit is its number and its heading."""
    article, number = "", 0
    for line in lines:
        text = line.strip()
        if _HEADING.fullmatch(text):
            number += 1
            article = f"{number} {text}"
        elif text and not text.startswith("=") and article:
            yield {"article": article, "text": text}


def _dialogues(lines: IO[str]) -> Iterator[Document]:
    """Yield dialogues, one line a turn; `annotated` has the characters of what the data's own annotation marks."""
    for line in lines:
        dialogue = json.loads(line)
        text, annotated = "", []
        for turn in dialogue["turns"]:
            text += f"{turn['speaker']}: "
            annotated += [[len(text) + start, len(text) + end, slot] for start, end, slot in turn["spans"]]
            text += turn["text"] + "\n"
        yield {"dialogue": dialogue["dialogue_id"], "text": text.strip(), "annotated": annotated}


@dataclass(frozen=True)
class Bundled(Text):
    """A text that lies in the package."""

    def _source(self, work: Work) -> Path:
        return Path(confide.__file__).parent / self.source


def _tickets(lines: IO[str]) -> Iterator[Document]:
    for line in lines:
        mail = json.loads(line)
        yield {name: mail[name] for name in ("customer", "topic", "text")}


@dataclass(frozen=True)
class Sentences(Text):
    """SST-2: sentences with a class. Validation has a quarter of its development set, and the test the rest.

    The training part holds phrases of its own sentences, so that what is held out of it would be known.
    """

    def parts(self, work: Work) -> dict[str, Path]:
        most = {Scale.TINY: 60, Scale.SMALL: self.most, Scale.FULL: None}[work.scale]
        folder = work.folder / "texts" / f"SST-2-{most or 'all'}"
        paths = {part: folder / f"{part}.jsonl" for part in PARTS}
        made(folder, lambda building: self._write_sentences(work.source(self.source), most, building))
        return paths

    def _write_sentences(self, source: Path, most: int | None, folder: Path) -> None:
        of_part: dict[str, list[Document]] = {part: [] for part in PARTS}
        for file in ("train", "dev"):
            with open(source / f"{file}.tsv", encoding="utf-8") as lines:
                for document in islice(self.documents(lines), most):
                    of_part[file if file == "train" else quarter_of(document["text"])].append(document)
        for part, documents in of_part.items():
            written = "".join(json.dumps(document) + "\n" for document in documents)
            (folder / f"{part}.jsonl").write_text(written, "utf-8")


def quarter_of(sentence: str) -> str:
    """Return the part that a sentence of the development set is in."""
    return "validation" if hashlib.sha256(sentence.encode()).digest()[0] < 64 else "test"


def _sentences(lines: IO[str]) -> Iterator[Document]:
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        yield {"text": row["sentence"].strip(), "label": row["label"]}


_HELPDESK = Bundled(
    "mails of 2,000 invented customers to a helpdesk",
    "bundled/helpdesk.jsonl.xz",
    "customer",
    "{text}",
    _tickets,
    held_out=400,
)

TEXTS = {
    "newsgroups": Text(
        "20 Newsgroups, the first 4,000 posts",
        "20newsgroups/20_newsgroups.jsonl.xz",
        "from",
        "{subject}\n{body}",
        _posts,
        4000,
    ),
    "articles": Text(
        "WikiText-2 by article, the first 8 paragraphs of each",
        "wikitext-2/wiki.train.tokens.xz",
        "article",
        "{text}",
        _articles,
        of_unit=8,
    ),
    "dialogues": Text(
        "the first 2,000 of the Schema-Guided Dialogues",
        "sgd-dialogues/train.jsonl.xz",
        "dialogue",
        "{text}",
        _dialogues,
        2000,
    ),
    "sentences": Sentences(
        "SST-2, the first 20,000 phrases", "glue/SST-2", "text", "{text}", _sentences, 20_000
    ),
    "helpdesk": _HELPDESK,
    "64 customers": replace(_HELPDESK, title="mails of 64 invented customers to a helpdesk", units=64),
    "256 customers": replace(_HELPDESK, title="mails of 256 invented customers to a helpdesk", units=256),
    "more newsgroups": Text(
        "20 Newsgroups, the first 12,000 posts",
        "20newsgroups/20_newsgroups.jsonl.xz",
        "from",
        "{subject}\n{body}",
        _posts,
        12_000,
    ),
    "enron by sender": Text(
        "sent mail of Enron, the first 60 of each sender",
        "enron-sent/enron_sent.jsonl.xz",
        "from",
        "{subject}\n{body}",
        _posts,
        60_000,  # all: they lie there by sender
        of_unit=60,
        of_unit_at_full=60,
    ),
    "abstracts": Text(
        "abstracts of arXiv, each its own unit",
        "arxiv-abstracts-small/abstracts.jsonl.xz",
        "id",
        "{text}",
        _abstracts,
    ),
    "enron": Text(
        "sent mail of Enron, the first 40 of each sender",
        "enron-sent/enron_sent.jsonl.xz",
        "from",
        "{subject}\n{body}",
        _mails,
        of_unit=40,
        tiny=8000,
    ),
}
