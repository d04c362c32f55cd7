"""Text that stands in several units: exact and near-duplicates, and passages in common.

A user's guarantee reaches the rows they own. Where their words also stand in somebody else's row (a quoted
reply, a forward, a chain letter), they train the model from there as well. This report says how often: it holds row
numbers and figures, and neither text nor hashes of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.data.readers.documents import Document
from confide.data.readers.sketching import FACTOR, Sketch, Sketcher, mix
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 512  # documents that are sketched together
_CROWD = 40  # in a larger bucket a row is compared with the next row only, not with all


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """Rows are documents, numbered from 0 in the order of the stream. "Across units" means that the owners differ.

    rows, units: of the stream; short: rows of fewer than `shortest` words, which are not looked at.
    exact_groups: rows with the same words, of at least two sets of owners.
    near_pairs: (row, row, estimated Jaccard similarity), similarity at least `threshold`, not exact.
    rows_exact, rows_near: rows in some group or pair.
    rows_passages: rows that have 30 words in a row or more in common with a row of other owners (exact and
        near-duplicates included where they do); shorter passages of 16 words and more are found by chance.
    rows_affected: rows with any of the three.
    crowds: buckets of candidates so large that not all their pairs were compared.
    """

    rows: int
    units: int
    short: int
    shortest: int
    threshold: float
    exact_groups: tuple[tuple[int, ...], ...]
    near_pairs: tuple[tuple[int, int, float], ...]
    rows_exact: int
    rows_near: int
    rows_passages: int
    rows_affected: int
    crowds: int

    @property
    def share_affected(self) -> float:
        """The share of rows whose words also stand in a row of other owners."""
        return self.rows_affected / self.rows

    def sentences(self) -> list[str]:
        """Describe the report for people."""
        share = f"{self.rows_affected:,} of {self.rows:,} documents ({self.share_affected:.1%})"
        lines = [
            f"{share} share words with documents of other owners:",
            f"{self.rows_exact:,} have an exact duplicate there ({len(self.exact_groups):,} groups),",
            f"{self.rows_near:,} a near-duplicate (estimated Jaccard similarity from {self.threshold:g}),",
            f"{self.rows_passages:,} a passage of 30 words or more in common.",
        ]
        if self.short:
            lines.append(f"{self.short:,} documents of fewer than {self.shortest} words were not looked at.")
        return lines


def find_duplicates(
    documents: Iterable[Document], threshold: float = 0.8, shortest: int = 20, permutations: int = 64
) -> DuplicateReport:
    """Read a stream once and report the text that it has in common across units; see `Sketches`.

    Raises InputError for an empty stream, or a threshold outside (0, 1].
    """
    if not 0 < threshold <= 1:
        raise InputError(
            f"the threshold of near-duplicates is {threshold}; it must lie above 0 and not above 1."
        )
    sketcher, found = Sketcher(shortest, permutations), Sketches(shortest, permutations)
    stream = iter(documents)
    while some := list(islice(stream, _AT_ONCE)):
        for document, sketch in zip(some, sketcher([each.text for each in some]), strict=True):
            found.add(document.units, sketch)
    return found.report(threshold)


class Sketches:
    """The sketches of a stream of documents, and what they have in common.

    Words are compared in lower case, without punctuation and quote marks. Near-duplicates: MinHash over
    5-word shingles with banding (Leskovec, Rajaraman & Ullman, Mining of Massive Datasets, ch. 3), bands as
    datasketch chooses them for the threshold; the similarity of each candidate is then estimated from all
    `permutations`, with standard error sqrt(J(1-J)/permutations). Passages in common: winnowing (Schleimer,
    Wilkerson & Aiken, SIGMOD 2003) over 16-word fingerprints. No document is kept: a row costs 4 bytes a
    permutation, 16 for its digest and owners, and 12 for each fingerprint (1.5 a word; a row of 200 words
    some 600 bytes in all), twice that for a moment while buckets are sorted; each distinct set of owners costs its
    names.

    Args:
        shortest, permutations: as of the `Sketcher`.
    """

    def __init__(self, shortest: int = 20, permutations: int = 64) -> None:
        self._shortest, self._permutations = shortest, permutations
        self._owner_sets: dict[frozenset[str], int] = {}
        self._owners = _Column(np.int32)
        self._looked_at, self._print_rows = _Column(np.int64), _Column(np.int32)
        self._digests, self._prints = _Column(np.uint64), _Column(np.uint64)
        self._signatures = _Column(np.uint32)
        self._count = 0

    def add(self, units: Iterable[str], sketch: Sketch | None) -> None:
        """Add the next document; None stands for one that is too short."""
        row = self._count
        self._count += 1
        self._owners.extend([self._owner_sets.setdefault(frozenset(units), len(self._owner_sets))])
        if sketch is None:
            return
        self._looked_at.extend([row])
        self._digests.extend(sketch.digest)
        self._signatures.extend(sketch.signature)
        self._prints.extend(sketch.prints)
        self._print_rows.extend(np.full(len(sketch.prints), row, np.int32))

    def report(self, threshold: float = 0.8) -> DuplicateReport:
        """Report what stands in documents of different owners.

        Raises InputError if there are no documents.
        """
        if not self._count:
            raise InputError("there are no documents to look for duplicates in.")
        rows = self._arrays()
        exact = [group for group in _groups(rows.digests, rows.looked_at) if _crosses(rows.owners[group])]
        pairs, crowds = _near_pairs(rows, threshold, self._permutations)
        in_exact = _mask(rows.count, np.concatenate(exact) if exact else np.empty(0, np.int64))
        in_pairs = _mask(rows.count, np.array([row for pair in pairs for row in pair[:2]], np.int64))
        in_passages = _mask(rows.count, _shared_fingerprints(rows))
        return DuplicateReport(
            rows=rows.count,
            units=len({name for names in self._owner_sets for name in names}),
            short=rows.count - len(rows.looked_at),
            shortest=self._shortest,
            threshold=threshold,
            exact_groups=tuple(tuple(int(row) for row in group) for group in exact),
            near_pairs=pairs,
            rows_exact=int(in_exact.sum()),
            rows_near=int(in_pairs.sum()),
            rows_passages=int(in_passages.sum()),
            rows_affected=int((in_exact | in_pairs | in_passages).sum()),
            crowds=crowds,
        )

    def _arrays(self) -> _Arrays:
        return _Arrays(
            self._count,
            self._owners.array(),
            self._looked_at.array(),
            self._digests.array(),
            self._signatures.array().reshape(-1, self._permutations),
            self._prints.array(),
            self._print_rows.array(),
        )


@dataclass(frozen=True, slots=True)
class _Arrays:
    count: int
    owners: NDArray[np.int32]  # [rows] number of the set of owners
    looked_at: NDArray[np.int64]  # [S] rows that are long enough
    digests: NDArray[np.uint64]  # [S]
    signatures: NDArray[np.uint32]  # [S, permutations]
    prints: NDArray[np.uint64]  # [F] fingerprints of passages
    print_rows: NDArray[np.int32]  # [F] the row of each


class _Column:
    """An array that grows by doubling, so that a stream of unknown length takes only the memory of its values."""

    def __init__(self, kind: Any) -> None:
        self._values = np.empty(1024, kind)
        self._length = 0

    def extend(self, values: Sequence[int] | NDArray[Any]) -> None:
        end = self._length + len(values)
        if end > len(self._values):
            self._values = np.resize(self._values, max(end, 2 * len(self._values)))
        self._values[self._length : end] = values
        self._length = end

    def array(self) -> NDArray[Any]:
        return self._values[: self._length]


def _groups(keys: NDArray[np.uint64], rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each key that occurs more than once, in order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    bounds = np.flatnonzero(np.diff(ordered) != 0) + 1 if len(keys) else np.empty(0, np.int64)
    starts, ends = np.concatenate(([0], bounds)), np.concatenate((bounds, [len(keys)]))
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        yield rows[order[start:end]]


def _crosses(owners: NDArray[np.int32]) -> bool:
    return bool((owners != owners[0]).any())


def _near_pairs(
    rows: _Arrays, threshold: float, permutations: int
) -> tuple[tuple[tuple[int, int, float], ...], int]:
    from datasketch import MinHashLSH

    chosen = MinHashLSH(threshold=threshold, num_perm=permutations)
    positions = np.arange(len(rows.looked_at))
    found: dict[tuple[int, int], float] = {}
    crowds = 0
    for band in range(chosen.b):
        columns = rows.signatures[:, band * chosen.r : (band + 1) * chosen.r]
        keys = np.zeros(len(columns), np.uint64)
        for column in columns.T:
            keys = mix(keys * FACTOR + column)
        for bucket in _groups(keys, positions):
            crowds += len(bucket) > _CROWD
            reach = 1 if len(bucket) > _CROWD else len(bucket)
            for place, first in enumerate(bucket):
                others = bucket[place + 1 : place + 1 + reach]
                others = others[rows.owners[rows.looked_at[others]] != rows.owners[rows.looked_at[first]]]
                others = others[rows.digests[others] != rows.digests[first]]
                if len(others):
                    alike = (rows.signatures[others] == rows.signatures[first]).mean(axis=1)
                    for other, similarity in zip(
                        others[alike >= threshold], alike[alike >= threshold], strict=True
                    ):
                        pair = int(rows.looked_at[first]), int(rows.looked_at[other])
                        found[pair] = round(float(similarity), 3)
    return tuple((*pair, similarity) for pair, similarity in sorted(found.items())), crowds


def _shared_fingerprints(rows: _Arrays) -> NDArray[np.int64]:
    """Return the rows that have a fingerprint in common with a row of other owners."""
    order = np.argsort(rows.prints, kind="stable")
    hashes, owning = rows.prints[order], rows.print_rows[order]
    if not len(order):
        return np.empty(0, np.int64)
    begins = np.concatenate(([True], hashes[1:] != hashes[:-1]))
    group = np.cumsum(begins) - 1
    owners = rows.owners[owning]
    differs = owners != owners[np.flatnonzero(begins)][group]
    crossing = np.zeros(group[-1] + 1, bool)
    crossing[group[differs]] = True
    return np.unique(owning[crossing[group]]).astype(np.int64)


def _mask(count: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask
