"""The unit graph on disk: all rows, and the units that each row belongs to.

A graph is a folder of raw little-endian arrays and one `meta.json` that names them. M rows, N units:

| file | type | length | holds |
|---|---|---|---|
| `tokens.bin` | uint16, uint32 or int32 | tokens | all rows, one after the other; see `loss_mask` for int32 |
| `row_offsets.bin` | int64 | M + 1 | row i is `tokens[row_offsets[i]:row_offsets[i + 1]]` |
| `unit_rows.bin` | int64 | incidences | rows of unit 0, in ascending order, then of unit 1, ... |
| `unit_offsets.bin` | int64 | N + 1 | where each unit starts in `unit_rows` |
| `owners.bin` | int64 | incidences | units of row 0, then of row 1, ... |
| `owner_offsets.bin` | int64 | M + 1 | where each row starts in `owners`; absent if every row has one owner |
| `names.bin`, `name_offsets.bin` | uint8, int64 | bytes, N + 1 | the units' names in UTF-8 |
| `labels.bin` | int64 | M | class of each row; absent if rows have none |
| `documents.bin` | int32 | M | `Document.condition` of a document's first row, -1 of others; absent unless counted |

Everything is memory-mapped: opening costs the same at 100 rows and at 100 million, and fetching a unit's
rows costs what they weigh.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from confide.data.by_unit import Pairs, incidences, write_by_unit
from confide.data.graph_files import ARRAYS, FORMAT, META, VERSION, differences, map_array, read_header
from confide.data.names import NameNumbers
from confide.data.shape import Shape
from confide.utils.errors import InputError
from confide.utils.files import sync
from confide.utils.tally import Tally

BLOCK = 1 << 20  # bytes read at a time by the digest
NAMES = 1 << 16  # names numbered or read at a time
WRITTEN = (
    "tokens",
    "row_offsets",
    "owners",
    "owner_offsets",
    "names",
    "name_offsets",
    "labels",
    "documents",
)  # as rows come


class UnitGraph:
    """A graph opened for reading. Arrays are memory-mapped and read-only.

    `unit_rows[unit_offsets[u]:unit_offsets[u + 1]]` are the rows of unit u, for code that works on all units at once.
    `meta` holds the values that the writer was given.
    """

    def __init__(self, folder: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = header["meta"]
        self.vocabulary: int = header["vocabulary"]
        self.tokens = arrays["tokens"]
        self.row_offsets = arrays["row_offsets"]
        self.unit_rows = arrays["unit_rows"]
        self.unit_offsets = arrays["unit_offsets"]
        self.labels = arrays.get("labels")
        self.documents = arrays.get("documents")
        self._owners = arrays["owners"]
        self._owner_offsets = arrays.get("owner_offsets")
        self._names = arrays["names"]
        self._name_offsets = arrays["name_offsets"]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "UnitGraph":
        """Open a graph. Raises InputError if the folder is no graph, of another version, or damaged."""
        folder = Path(folder)
        header = read_header(folder)
        try:
            arrays = {name: map_array(folder, name, entry) for name, entry in header["arrays"].items()}
            graph = cls(folder, header, arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{folder / META} is damaged: prepare the data again") from error
        for offsets, array, length in (
            ("row_offsets", "tokens", graph.n_rows),
            ("unit_offsets", "unit_rows", graph.n_units),
            ("name_offsets", "names", graph.n_units),
            ("owner_offsets", "owners", graph.n_rows),
        ):
            ends = arrays.get(offsets)
            if ends is not None and (
                len(ends) != length + 1 or ends[0] != 0 or ends[-1] != len(arrays[array])
            ):
                raise InputError(f"{folder / offsets}.bin is damaged: prepare the data again")
        return graph

    @property
    def n_rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def n_units(self) -> int:
        return len(self.unit_offsets) - 1

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def single_owner(self) -> bool:
        """True if every row belongs to exactly one unit."""
        return self._owner_offsets is None

    @cached_property
    def row_lengths(self) -> np.ndarray:
        """The number of tokens of every row, int64[M]; for a few rows use `lengths_of`."""
        return np.diff(self.row_offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of these rows: int64[len(rows)]."""
        lengths: np.ndarray = self.row_offsets[rows + 1] - self.row_offsets[rows]
        return lengths

    def rows_of(self, unit: int) -> np.ndarray:
        """Return the rows of a unit in ascending order: int64, a read-only view."""
        self._within(unit, self.n_units, "unit")
        return self.unit_rows[self.unit_offsets[unit] : self.unit_offsets[unit + 1]]

    def owners_of(self, row: int) -> np.ndarray:
        """Return the units of a row: int64, a read-only view; empty only in a graph that was written with `unowned`."""
        self._within(row, self.n_rows, "row")
        if self._owner_offsets is None:
            return self._owners[row : row + 1]
        return self._owners[self._owner_offsets[row] : self._owner_offsets[row + 1]]

    def incidences(self) -> Iterator[Pairs]:
        """Yield all pairs of a row and one of its units by row, in blocks."""
        offsets = None if self.single_owner else self.folder / "owner_offsets.bin"
        return incidences(self.folder / "owners.bin", offsets, self.n_rows)

    def owned_rows(self) -> int:
        """Count the rows that have a unit, in bounded memory."""
        if self.single_owner:
            return self.n_rows
        return sum(int(np.count_nonzero(own)) for own in differences(self.folder, "owner_offsets"))

    def unit_name(self, unit: int) -> str:
        self._within(unit, self.n_units, "unit")
        name = self._names[self._name_offsets[unit] : self._name_offsets[unit + 1]]
        return name.tobytes().decode("utf-8", "surrogatepass")

    def unit_names(self) -> list[str]:
        """Return the names of all units."""
        return list(self.each_name())

    def each_name(self) -> Iterator[str]:
        """Yield the names of all units, in bounded memory."""
        for low in range(0, self.n_units, NAMES):
            offsets = self._name_offsets[low : low + NAMES + 1]
            names = self._names[offsets[0] : offsets[-1]].tobytes()
            for start, end in pairwise((offsets - offsets[0]).tolist()):
                yield names[start:end].decode("utf-8", "surrogatepass")

    def fetch(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the tokens of each row, in the order of `rows`.

        The arrays are read-only views in the stored type (uint16, uint32, or int32 with marks): nothing is copied.
        `loss_mask.ids_of` gives the tokens themselves, as int64. Raises IndexError for a row that is not there.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows):
            self._within(int(rows.min()), self.n_rows, "row")
            self._within(int(rows.max()), self.n_rows, "row")
        starts, ends = self.row_offsets[rows].tolist(), self.row_offsets[rows + 1].tolist()
        return [self.tokens[start:end] for start, end in zip(starts, ends, strict=True)]

    def shape(self) -> Shape:
        """Return counts and ownership, the same object each time: a derived value is computed once."""
        return self._shape

    @cached_property
    def _shape(self) -> Shape:
        rows_per_unit = np.diff(self.unit_offsets)
        rows_per_unit.setflags(write=False)
        return Shape(
            rows_per_unit,
            self.n_rows,
            self.n_tokens,
            self.single_owner,
            offsets=self.unit_offsets,
            rows_of_units=self.unit_rows,
            names=self.unit_names,
            folder=self.folder,
            pairs=self.incidences,
        )

    def statistics(self) -> dict[str, Any]:
        """Compute counts, and min, median, mean and max of rows per unit and of tokens per row. Not private."""
        return {
            "rows": self.n_rows,
            "units": self.n_units,
            "tokens": self.n_tokens,
            "rows_per_unit": self.rows_per_unit().summary(),
            "row_tokens": Tally.of(differences(self.folder, "row_offsets")).summary(),
        }

    def rows_per_unit(self) -> Tally:
        """Count units by their number of rows, in bounded memory."""
        return Tally.of(differences(self.folder, "unit_offsets"))

    def digest(self, update: Callable[[bytes], object]) -> None:
        """Pass the whole graph to `update`, a method as in hashlib and hmac: equal graphs make equal calls.

        A plain hash of private text must never be published, since anyone can test guesses with it; pass a keyed one.
        """
        present = [f"{name}.bin" for name in ARRAYS if (self.folder / f"{name}.bin").exists()]
        for name in [META, *present]:
            path = self.folder / name
            update(f"{name} {path.stat().st_size}\n".encode())
            with open(path, "rb") as file:
                while block := file.read(BLOCK):
                    update(block)

    def plain_digest(self) -> bytes:
        """Hash the whole graph without a key. The hash stays inside this process: only HMACs of it are written."""
        plain = hashlib.sha256()
        self.digest(plain.update)
        return plain.digest()

    @staticmethod
    def _within(index: int, size: int, what: str) -> None:
        # A negative index would silently select another row.
        if not 0 <= index < size:
            raise IndexError(f"{what} {index} of {size}")


class GraphWriter:
    """Writes a graph; use it in a `with` block.

    Everything goes into a temporary folder next to `folder`, is flushed to disk, and is then renamed: a graph exists
    whole or not at all. An exception inside the block removes the temporary folder. The text is confidential, so only
    the owner can read the folder (mode 700). Memory holds the units' names and one block of rows, never all rows.

    Args:
        vocabulary: number of token ids; up to 65,536 are stored as uint16, more as uint32.
        meta: any JSON, stored with the graph.
        unowned: whether a row may be without a unit, such as one that holds no secret.
        marked: whether rows mark tokens that are not predicted, see `loss_mask`; they are then stored as int32.
        counted: whether to store where documents begin, and the condition of each.

    Raises:
        InputError: `folder` exists and is not empty, or cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        vocabulary: int,
        meta: Mapping[str, Any] | None = None,
        unowned: bool = False,
        marked: bool = False,
        counted: bool = False,
    ) -> None:
        if not 0 < vocabulary <= 1 << 32:
            raise ValueError(f"a vocabulary of {vocabulary} tokens cannot be stored")
        self.folder = Path(folder)
        self.vocabulary = vocabulary
        self.rows = 0
        self._meta = json.loads(json.dumps(dict(meta or {})))  # fails now rather than after an hour
        self._types = dict.fromkeys(ARRAYS, "<i8")
        self._types |= {
            "tokens": "<u2" if vocabulary <= 1 << 16 else "<u4",
            "names": "|u1",
            "documents": "<i4",
        }
        self._counted = counted
        if marked:
            self._types["tokens"] = "<i4"
        self._least = -vocabulary if marked else 0
        self._names, self._unnumbered = NameNumbers(), list[str]()
        self._tokens = self._incidences = self._named_bytes = 0
        self._unowned, self._one_each = unowned, True
        self._labelled: bool | None = None
        self._files: dict[str, BinaryIO] = {}
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InputError(f"{self.folder} is already there: remove it or choose another folder")
        with self._disk():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._part = Path(
                tempfile.mkdtemp(prefix=f".{self.folder.name}.", suffix=".part", dir=self.folder.parent)
            )
        with self._undone():
            for name in WRITTEN:
                self._files[name] = open(self._path(name), "wb")  # noqa: SIM115
            for name in ("row_offsets", "owner_offsets", "name_offsets"):
                self._write(name, np.zeros(1))

    def __enter__(self) -> "GraphWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
        elif self._part.exists():
            self.close()

    def add(
        self, tokens: Sequence[int] | np.ndarray, units: str | Sequence[str], label: int | None = None
    ) -> None:
        """Append one row; its owners are `units`. Many rows are faster through `add_many`."""
        self.add_many(tokens, [len(tokens)], [units], None if label is None else [label])

    def add_many(
        self,
        tokens_flat: Sequence[int] | np.ndarray,
        lengths: Sequence[int] | np.ndarray,
        units: Sequence[str | Sequence[str]],
        labels: Sequence[int] | np.ndarray | None = None,
        documents: Sequence[int] | None = None,
    ) -> None:
        """Append rows: their tokens one after the other, their lengths, and the owner or owners of each.

        `documents` is what `documents.bin` holds of them; by default they begin no document.

        A name repeated within a row counts once. Raises InputError, and appends nothing, if a row has no
        unit, no token or a token outside the vocabulary, or if some rows have labels and others have none. Rows are
        counted from 0.
        """
        tokens = np.asarray(tokens_flat)
        sizes = np.asarray(lengths, dtype=np.int64)
        if not len(sizes) == len(units) or (labels is not None and len(labels) != len(sizes)):
            raise ValueError("as many lengths, units and labels are needed as there are rows")
        if not len(sizes):
            return
        if sizes.min() < 1:
            row = self.rows + int(np.argmax(sizes < 1))
            raise InputError(f"row {row} has no tokens: leave empty texts out")
        ends = np.cumsum(sizes)
        if ends[-1] != len(tokens) or tokens.dtype.kind not in "iu":
            raise ValueError("the lengths must add up to the number of tokens, and tokens be integers")
        self._check_tokens(tokens, ends)
        if self._labelled not in (None, labels is not None):
            have, before = ("a", "none") if labels is not None else ("no", "one")
            raise InputError(f"row {self.rows} has {have} label where the rows before it have {before}")
        owners, owner_counts = self._owners(units)

        with self._undone():
            self._write("tokens", tokens)
            self._write("row_offsets", self._tokens + ends)
            self._write("owner_offsets", self._incidences + np.cumsum(owner_counts))
            if labels is not None:
                self._write("labels", np.asarray(labels))
            if self._counted:
                self._write(
                    "documents", np.full(len(sizes), -1) if documents is None else np.asarray(documents)
                )
            self._unnumbered += owners
            if len(self._unnumbered) >= NAMES:
                self._number()
        self._labelled = labels is not None
        self.rows += len(sizes)
        self._tokens += len(tokens)
        self._incidences += len(owners)
        self._one_each = self._one_each and bool((owner_counts == 1).all())

    def close(self) -> UnitGraph:
        """Finish, rename into place and open. Raises InputError if no row was added or the disk is full."""
        with self._undone():
            if not self.rows:
                raise InputError(f"the unit graph {self.folder} would be empty: no row was found")
            if not self._incidences:
                raise InputError(f"the unit graph {self.folder} would have no unit: none of its rows has one")
            self._number()
            for file in self._files.values():
                file.close()
            self._drop_unused()
            write_by_unit(
                self._part,
                self._path("owners"),
                None if self._one_each else self._path("owner_offsets"),
                self.rows,
                self._incidences,
                len(self._names),
            )
            self._write_header()
            for path in [*self._part.iterdir(), self._part]:
                sync(path)
            self._part.rename(self.folder)
        with self._disk():
            sync(self.folder.parent)
        return UnitGraph.open(self.folder)

    def _check_tokens(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        if tokens.min() >= self._least and tokens.max() < self.vocabulary:
            return
        place = int(np.argmax((tokens < self._least) | (tokens >= self.vocabulary)))
        row = self.rows + int(np.searchsorted(ends, place, side="right"))
        raise InputError(
            f"row {row} has token {tokens[place]}, outside the vocabulary of {self.vocabulary}: "
            "encode it with the tokenizer the graph is written for"
        )

    def _owners(self, units: Sequence[str | Sequence[str]]) -> tuple[list[str], np.ndarray]:
        """Return the units of all rows, one row after the other, and how many each row has."""
        if {*map(type, units)} == {str} and all(units):
            return list(units), np.ones(len(units), dtype=np.int64)  # type: ignore[arg-type]
        rows = [[own] if isinstance(own, str) else list(dict.fromkeys(own or ())) for own in units]
        names = list(chain.from_iterable(rows))
        if not (all(map(bool, names)) and {*map(type, names)} <= {str} and (self._unowned or all(rows))):
            self._refuse_unnamed(rows)
        return names, np.fromiter(map(len, rows), np.int64, len(rows))

    def _refuse_unnamed(self, rows: list[list[str]]) -> None:
        """Raise InputError for the first row with a unit that has no name, or without a unit where it needs one."""
        for row, names in enumerate(rows, start=self.rows):
            if not (names or self._unowned) or not all(isinstance(name, str) and name for name in names):
                raise InputError(f"row {row} has no unit: name who it belongs to, or leave the row out")

    def _drop_unused(self) -> None:
        if self._one_each:
            self._path("owner_offsets").unlink()
        if not self._labelled:
            self._path("labels").unlink()
        if not self._counted:
            self._path("documents").unlink()

    def _number(self) -> None:
        """Write the numbers of the names that wait, and the names that are new among them."""
        for first in range(0, len(self._unnumbered), NAMES):
            numbers, new = self._names.of(self._unnumbered[first : first + NAMES])
            self._write("owners", numbers)
            text = [name.encode("utf-8", "surrogatepass") for name in new]
            self._files["names"].write(b"".join(text))
            ends = self._named_bytes + np.cumsum(np.fromiter(map(len, text), np.int64, len(text)))
            self._write("name_offsets", ends)
            self._named_bytes = int(ends[-1]) if new else self._named_bytes
        self._unnumbered.clear()

    def _write_header(self) -> None:
        arrays = {}
        for name in filter(lambda name: self._path(name).exists(), ARRAYS):
            size = self._path(name).stat().st_size
            arrays[name] = {"type": self._types[name], "length": size // np.dtype(self._types[name]).itemsize}
        header = {
            "format": FORMAT,
            "version": VERSION,
            "vocabulary": self.vocabulary,
            "arrays": arrays,
            "meta": self._meta,
        }
        (self._part / META).write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")

    def _path(self, name: str) -> Path:
        return self._part / f"{name}.bin"

    def _write(self, name: str, values: np.ndarray) -> None:
        self._files[name].write(np.ascontiguousarray(values, dtype=self._types[name]).data)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"the unit graph {self.folder} cannot be written: {reason}") from error

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Guard a block as `_disk` does, and leave nothing half-written if anything goes wrong."""
        try:
            with self._disk():
                yield
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # the unwritten rest of a full disk is not wanted any more
                file.close()
        shutil.rmtree(self._part, ignore_errors=True)
