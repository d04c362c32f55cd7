"""Tell whether held-out rows are of units that train: then a loss on them is no loss on text of others.

Those of a share of the units (`data.eval: 0.1`) never are, as each unit is on one side. Those of a file may be, and
only the names of its units tell.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from confide.data.unit_graph import UnitGraph

if TYPE_CHECKING:
    from confide.config.data_section import Data


def units_that_train(data: "Data", held_out: UnitGraph, trained: Sequence[UnitGraph]) -> int:
    """Count the units of a held-out file that also train, by their names, as they are spelt.

    A document that nobody owns is a unit by itself, and its name is a number: two such documents of two files have one
    name by chance. They are compared by their file alone.

    Args:
        trained: all graphs that steps are taken on.
    """
    if not isinstance(data.eval, str):
        return 0
    if Path(data.eval).resolve() == Path(data.train).resolve():
        return held_out.n_units
    if data.unit is None:
        return 0
    left = {name for name in held_out.each_name() if not name.startswith(" ")}
    before = len(left)
    for graph in trained:
        left.difference_update(graph.each_name())
    return before - len(left)


def whose_rows(data: "Data", held_out: UnitGraph | None, trained: Sequence[UnitGraph]) -> str | None:
    """Say which held-out rows are of units that train; None if none is known to be."""
    if data.eval_within is not None:
        return "the first ones of units in training (data.eval_within)"
    if held_out is not None and (number := units_that_train(data, held_out, trained)):
        return f"in part those of {number:,} units in training (data.eval)"
    return None
