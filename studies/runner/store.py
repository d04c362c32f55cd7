"""Keep measurements as a Parquet table, and read them back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from confide.utils.files import whole_file
from studies.runner.study import Row


def write(rows: Sequence[Row], path: Path) -> None:
    """Write rows; a column that a row lacks is null there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as building:
        pq.write_table(table, building, compression="zstd")


def read(path: Path) -> list[Row]:
    """Return the rows of a table."""
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows
