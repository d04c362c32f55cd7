"""What a study declares: its question, what it measures, what it expects to find, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.workers import Crew
from studies.runner.findings import Finding

Row = dict[str, Any]
"""One measurement, by column. Every value is a number, a text or None."""


class Scale(StrEnum):
    """How much is run.

    `tiny` shows in seconds that a study works, and its figures mean nothing. `small` is what two cores do in about an
    hour. `full` has the paper's model and data; in studies of confide alone, the bundled model at a size that a GPU
    does in minutes. The pages show what was recorded.
    """

    TINY = "tiny"
    SMALL = "small"
    FULL = "full"


@dataclass(frozen=True)
class Work:
    """Where and how a study runs.

    Attributes:
        data: the folder that holds the public data sets; None if none was given.
        folder: everything that the study writes; what lies there is not computed again.
        crew: the processes that share its runs.
        text: the one text to run a study on; None for all of its texts.
        again: what was trained anew, where runs of earlier commands do not count; None where they do.
        measured: measurements that are kept, of runs that need not be trained again.
    """

    data: Path | None
    folder: Path
    scale: Scale
    crew: Crew = field(default_factory=Crew)
    console: Console = field(default_factory=lambda: Console(quiet=True))
    text: str | None = None
    again: set[Path] | None = None
    measured: Sequence[Row] = ()

    def has(self, result: Path) -> bool:
        """Tell whether a result is there that need not be made."""
        return result.exists() and (self.again is None or result in self.again)

    def made(self, result: Path) -> None:
        """Note that a result was made, so that it counts from now on."""
        if self.again is not None:
            self.again.add(result)

    def kept(self, columns: Row) -> Row | None:
        """Return what was measured of the run with these columns, without them; None if nothing is kept of it."""
        for row in self.measured:
            if all(row.get(name) == value for name, value in columns.items()):
                return {
                    name: value for name, value in row.items() if name not in columns and value is not None
                }
        return None

    def chosen(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the texts to run on, of those of a study.

        Raises:
            InputError: the study does not have the one that was asked for.
        """
        if self.text is not None and self.text not in texts:
            raise InputError(f"--text: this study has {' and '.join(texts) or 'no text'}, not {self.text}")
        return texts if self.text is None else (self.text,)

    def source(self, name: str) -> Path:
        """Return a file or folder of the public data.

        Raises:
            InputError: it is not there.
        """
        if self.data is None:
            raise InputError(
                f"this study reads {name}: give --data, the folder that holds the public data sets"
            )
        found = self.data / name
        if not found.exists():
            raise InputError(f"{found}: no such file; --data is the folder that holds the public data sets")
        return found


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        title: what it shows, with the paper's number where it is one of the paper's.
        columns: the heads.
        cells: one sequence for each line.
        note: sentences below it.
    """

    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.cells]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"**{self.title}**\n\n{table}\n" + (f"\n{self.note}\n" if self.note else "")


@dataclass(frozen=True)
class Plot:
    """A picture of a page.

    Attributes:
        name: of its file, without `.svg`.
        words: what it shows, for those who cannot see it.
    """

    name: str
    words: str
    svg: str

    def markdown(self) -> str:
        return f"![{self.words}]({self.name}.svg)\n"


def no_plots(rows: Sequence[Row]) -> list[Plot]:
    return []


@dataclass(frozen=True)
class Study:
    """One experiment.

    Attributes:
        name: as on the command line.
        paper: 000 to 004; empty if it goes beyond the papers.
        shows: the paper's tables and figures whose shape it has.
        question: one sentence that ends with a question mark.
        measure: computes or trains; returns the measurements.
        findings: what the measurements say of the paper's claims.
        tables: the measurements in the paper's layout.
        minutes: of the scale `small` on two idle cores.
        deviations: what is otherwise than in the paper.
        reads: the folders of the public data that it needs.
        plots: the measurements as pictures.
        texts: those that it trains on at the scale `small`, if there are several; `--text` chooses one.
        lacks: what of a table or figure it does not have, by its name.
        follows_code: it measures this repository's own code, so that its figures change with each commit.
    """

    name: str
    paper: str
    shows: tuple[str, ...]
    question: str
    measure: Callable[[Work], list[Row]]
    findings: Callable[[Sequence[Row]], list[Finding]]
    tables: Callable[[Sequence[Row]], list[Table]]
    minutes: float
    deviations: str
    reads: tuple[str, ...] = ()
    plots: Callable[[Sequence[Row]], list[Plot]] = no_plots
    texts: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    follows_code: bool = False
