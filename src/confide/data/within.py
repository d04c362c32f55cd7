"""Hold rows out within units: the first share of each unit's own rows (Charles et al. 2024, appendix G).

The rest trains. So the losses on held-out rows are about the very units that are protected, and nothing that is
released may depend on them.
"""

import numpy as np

from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError

_BLOCK = 1 << 16  # units or rows at a time


def first_rows(counts: np.ndarray, share: float, most: int) -> np.ndarray:
    """Return how many of its first rows each unit holds out: int64[N].

    It is the share, rounded up, at most `most`, and never all rows: a unit with one row holds out none. It depends on
    the unit's own rows alone, so that no unit decides what another trains on.

    Args:
        counts: int64[N], rows of each unit.
    """
    asked = np.ceil(counts * share - 1e-9).astype(
        np.int64
    )  # 0.07 of 100 rows are 7, in floating point a little more
    found: np.ndarray = np.minimum(asked, np.minimum(most, counts - 1))
    return found


def held_out(graph: UnitGraph, share: float, most: int) -> np.ndarray:
    """Return which rows are held out: bool[M].

    Raises:
        InputError: a row has several owners.
    """
    if not graph.single_owner:
        raise InputError("data.eval_within: needs rows with one owner each, and some rows here have several")
    found = np.zeros(graph.n_rows, dtype=bool)
    for low in range(0, graph.n_units, _BLOCK):
        offsets = np.asarray(graph.unit_offsets[low : low + _BLOCK + 1])
        counts = np.diff(offsets)
        place = np.arange(offsets[-1] - offsets[0]) - np.repeat(offsets[:-1] - offsets[0], counts)
        is_first = place < np.repeat(first_rows(counts, share, most), counts)
        found[graph.unit_rows[offsets[0] : offsets[-1]][is_first]] = True
    return found


def part(graph: UnitGraph, share: float, most: int, train: GraphWriter, held: GraphWriter) -> int:
    """Write each row of a graph to `held` if it is one of its unit's first, else to `train`; return how many are held.

    Raises:
        InputError: a row has several owners, no row can be held out, or a held-out row has a class that no training row
            has.
    """
    is_held = held_out(graph, share, most)
    if not is_held.any():
        raise InputError("data.eval_within: no unit has a second row, so none can be held out")
    if graph.labels is not None:
        labels = np.asarray(graph.labels)
        alone = np.setdiff1d(labels[is_held], labels[~is_held])
        if len(alone):
            raise InputError(
                f"data.eval_within: it would hold out every row of {len(alone)} of the classes: set a "
                "smaller data.eval_within or data.eval_within_most, or bring more rows of them"
            )
    names: dict[int, str] = {}
    for rows, units, _ in graph.incidences():
        for low in range(0, len(rows), _BLOCK):
            for writer, chosen in ((held, True), (train, False)):
                here = is_held[rows[low : low + _BLOCK]] == chosen
                own = rows[low : low + _BLOCK][here]
                if not len(own):
                    continue
                of_units = units[low : low + _BLOCK][here].tolist()
                names |= {unit: graph.unit_name(unit) for unit in set(of_units) - names.keys()}
                tokens = graph.fetch(own)
                lengths = [len(each) for each in tokens]
                owners = [names[unit] for unit in of_units]
                of_rows = None if graph.labels is None else np.asarray(graph.labels[own])
                writer.add_many(np.concatenate(tokens), lengths, owners, of_rows)
    return int(is_held.sum())
