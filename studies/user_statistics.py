"""Records and rows of a unit in every public text that has units (000: Table 1, Figure 5; 003: Table 1, Figure 8)."""

from __future__ import annotations

import json
import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from confide.config.loading import check
from confide.models.loading import load_tokenizer
from confide.models.names import BUNDLED
from confide.runs.preparation import prepare
from confide.utils.chart import Bars, panels_svg
from confide.utils.tally import Tally
from studies.runner.findings import Finding, exact
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.texts import TEXTS, Document

RECORDS, ROWS = "records", "rows"
LENGTH = 64  # tokens of a row
_MOST = {Scale.TINY: 200, Scale.SMALL: None, Scale.FULL: None}  # records that are read of each text


@dataclass(frozen=True)
class Source:
    """A text and what its units are.

    Attributes:
        title: as in a sentence.
        of: what a record of which unit is.
        path: below the folder of public data.
        unit: the field that names the unit.
        template: the text of a record.
        records: reads the file's lines.
    """

    title: str
    of: str
    path: str
    unit: str
    template: str
    records: Callable[[IO[str]], Iterator[Document]]

    @classmethod
    def known(cls, name: str, title: str, of: str) -> Source:
        text = TEXTS[name]
        return cls(title, of, text.source, text.unit, text.template, text.documents)


def _turns(lines: IO[str]) -> Iterator[Document]:
    for line in lines:
        dialogue = json.loads(line)
        for turn in dialogue["turns"]:
            yield {"dialogue": dialogue["dialogue_id"], "text": turn["text"]}


def _speeches(lines: IO[str]) -> Iterator[Document]:
    """Yield the speeches of a play: blocks between blank lines, the first line the speaker's name and a colon."""
    for block in lines.read().split("\n\n"):
        speaker, _, speech = block.strip().partition(":\n")
        if speech.strip():
            yield {"speaker": speaker, "text": speech}


SOURCES = {
    "newsgroups": Source.known("newsgroups", "20 Newsgroups", "posts of a sender"),
    "enron": Source.known("enron", "Enron, sent mail", "mails of a sender"),
    "articles": Source.known("articles", "WikiText-2", "paragraphs of an article"),
    "dialogues": Source(
        "SGD", "turns of a dialogue", "sgd-dialogues/train.jsonl.xz", "dialogue", "{text}", _turns
    ),
    "speeches": Source(
        "Shakespeare", "speeches of a speaker", "tinyshakespeare/input.txt", "speaker", "{text}", _speeches
    ),
}
# (text, records, units, min, median, mean, max) as printed; of 003 the mean follows from the others.
PAPERS = (
    ("Enron Email, training (000)", "240,173", "", "1", "2.0", "13.2", "5,049"),
    ("BookSum, training (000)", "9,600", "", "1", "28.5", "52.2", "266"),
    ("Stack Overflow, training (003)", "135.8 M", "342.5 K", "1", "183", "396", "194.2 K"),
    ("CC-News, training (003)", "661.6 K", "7.4 K", "1", "16", "89", "24.4 K"),
)


def measure(work: Work) -> list[Row]:
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    found: list[Row] = []
    for name, source in SOURCES.items():
        work.console.say(f"{source.title}: {source.of}")
        for what, tally in counted(source, name, work).items():
            pairs = zip(tally.values.tolist(), tally.counts.tolist(), strict=True)
            found += [
                columns | {"what": what, "text": name, "size": size, "units": units} for size, units in pairs
            ]
    return found


def counted(source: Source, name: str, work: Work) -> dict[str, Tally]:
    """Count the records of each unit, and the rows that confide cuts them into."""
    path = work.source(source.path)
    opened = lzma.open if path.suffix == ".xz" else open
    folder = work.folder / "user-statistics" / name
    folder.mkdir(parents=True, exist_ok=True)
    of_unit = Counter[str]()
    with (
        opened(path, "rt", encoding="utf-8") as lines,
        open(folder / "records.jsonl", "w", encoding="utf-8") as out,
    ):
        for record in islice(source.records(lines), _MOST[work.scale]):
            of_unit[str(record[source.unit])] += 1
            out.write(json.dumps(record) + "\n")
    sizes = np.array(list(of_unit.values()), dtype=np.int64)
    return {RECORDS: Tally.of([sizes]), ROWS: _rows(source, folder, work)}


def _rows(source: Source, folder: Path, work: Work) -> Tally:
    raw: dict[str, Any] = {
        "model": BUNDLED,
        "data": {
            "train": str(folder / "records.jsonl"),
            "text": source.template,
            "unit": source.unit,
            "max_length": LENGTH,
            "eval": None,
            "duplicates": False,
        },
        "privacy": {"mechanism": "none"},
        "run": str(folder / "run"),
    }
    config = check(raw, "study user-statistics")
    return prepare(config, load_tokenizer(config), folder / "graph", crew=work.crew).train.rows_per_unit()


# what was found ------------------------------------------------------------------------------------------------
def tallies(rows: Sequence[Row], what: str) -> dict[str, Tally]:
    """Return how many units have how many records, or rows, by text."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault(row["text"], []).append((row["size"], row["units"]))
    return {text: Tally(*np.array(sorted(pairs), dtype=np.int64).T) for text, pairs in found.items()}


LARGEST = 0.1
"""The share of the units that is looked at as the largest. The papers name none."""


_exact = partial(exact, unit="number", is_beyond=True)  # the papers' tables are of other texts


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Ask whether the texts that stand in for the papers' are shaped as those are; the papers speak of their own."""
    records = tallies(rows, RECORDS)
    found = []
    for name in ("newsgroups", "enron", "articles"):
        own, title = records[name], SOURCES[name].title
        found += [
            _exact(
                f"Few units have most of the text: the largest tenth has more than half of the records ({title}).",
                "Table 1, Figure 5; 003: Table 1, Figure 8",
                "share of the records that the largest tenth of the units has; a tenth and half are our bounds, since "
                "the papers plot and name none",
                of_largest(own, LARGEST),
                low=0.5,
                unit="share",
            ),
            _exact(
                f"Some unit has a single record ({title}).",
                "Table 1; 003: Table 1",
                "the least records of a unit",
                float(own.values[0]),
                high=1.0,
                is_check=True,
            ),
        ]
    for name, least, most, words in (
        ("newsgroups", 100.0, np.inf, "20 Newsgroups are as uneven as the paper's mail"),
        (
            "enron",
            100.0,
            np.inf,
            "The sent mail of 124 senders is as uneven as the paper's mail of all senders",
        ),
        ("articles", 3.0, 30.0, "WikiText-2 is as even as the paper's books"),
    ):
        own = records[name]
        bound = "3 to 30 times" if name == "articles" else "at least 100 times"
        paper = "BookSum: 9.3" if name == "articles" else "Enron: 2,525"
        claim = f"{words}: the largest unit is {bound} the median ({paper})."
        found.append(
            _exact(
                claim,
                "Table 1",
                "most records of a unit / median; ours is the bound",
                own.most / own.median,
                least,
                most,
            )
        )
    found.append(
        _exact(
            "The sent mail of 124 senders is as sparse as the paper's mail of all senders: half have two mails or "
            "fewer.",
            "Table 1",
            "median records of a sender",
            records["enron"].median,
            high=2.0,
        )
    )
    return found


def of_largest(tally: Tally, share: float) -> float:
    """Return the share of all records that the largest units have, so many of the units, rounded up."""
    sizes = np.repeat(tally.values, tally.counts)[::-1]
    return float(sizes[: math.ceil(share * len(sizes))].sum() / sizes.sum())


# as pictures and tables ----------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    cells = [_line(SOURCES[name], tally) for name, tally in tallies(rows, RECORDS).items()]
    heads = ["text", "records", "units", "min", "median", "mean", "max", "share of the largest tenth"]
    return [
        Table(
            "Table 1 of 000 and of 003: records of a unit",
            heads,
            [*cells, *([*line, ""] for line in PAPERS)],
            "The Enron lines do not compare: here are the sent folders of 124 people, each with many mails, and the "
            "paper counts all senders, half of whom have two mails or fewer. 003 prints two more lines, of test parts. "
            "That of Stack Overflow has a median of 43.2 K and a maximum of 29, which seem to have changed places. In "
            "the other public texts here (GLUE, arXiv, and those with marked entities) every record is a unit of its "
            "own.",
        ),
        Table(
            f"The same in rows of {LENGTH} tokens, as confide cuts them",
            ["text", "rows", *heads[2:]],
            [_line(SOURCES[name], tally) for name, tally in tallies(rows, ROWS).items()],
            "The tokenizer is that of the bundled model; a row ends with its record.",
        ),
    ]


def _line(source: Source, tally: Tally) -> list[str]:
    total = int(tally.values @ tally.counts)
    facts: Mapping[str, float] = tally.summary()
    shown = [f"{facts['min']:,}", f"{facts['median']:,g}", f"{facts['mean']:,.1f}", f"{facts['max']:,}"]
    shown.append(f"{of_largest(tally, LARGEST):.0%}")
    return [f"{source.title}, {source.of}", f"{total:,}", f"{tally.number:,}", *shown]


def plots(rows: Sequence[Row]) -> list[Plot]:
    panels = []
    for name, tally in tallies(rows, RECORDS).items():
        bins = tally.most.bit_length()
        units = tally.in_bins([1 << place for place in range(bins + 1)])
        names = [f"{1 << place}" if place < 10 else f"{1 << place - 10}k" for place in range(bins)]
        bars = dict(zip(names, map(float, units), strict=True))
        panels.append(Bars(SOURCES[name].title, f"{SOURCES[name].of}, from here to the next", "units", bars))
    words = "how many units have how many records, for each text"
    return [Plot("user-statistics", words, panels_svg("Records of a unit", panels))]


STUDY = Study(
    name="user-statistics",
    paper="000",
    shows=("Table 1", "Figure 5", "003: Table 1", "003: Figure 8"),
    question="How many records do the units of a text have?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=2,
    deviations="20 Newsgroups and the sent mail of 124 Enron senders in place of all Enron mail, of Stack Overflow and "
    "CC-News; articles of WikiText-2 in place of BookSum. Nothing is held out, and the Enron mail here is not cleaned.",
    reads=("20newsgroups", "enron-sent", "wikitext-2", "sgd-dialogues", "tinyshakespeare"),
    plots=plots,
)
