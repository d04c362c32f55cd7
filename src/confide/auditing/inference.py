"""User inference: was any text of this user trained on (Kandpal et al. 2023)?

The statistic of a user is the mean, over a few of their rows, of log(p_model / p_reference). It needs no row that was
trained on: a model that has learned how a person writes reveals them by rows that it has never seen.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.auditing.membership import Columns
from confide.auditing.rates import CONFIDENCE, FPRS, Rates, rates
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError

ROWS = 50
"""The number of rows of each user that are examined: the first ones."""

PER = ("token", "row")


@dataclass(frozen=True, eq=False)
class Asked:
    """The rows that are examined for each user, in pairs. A row of several owners appears once for each.

    Attributes:
        units, rows: int64[pairs], by unit.
        limit: the most rows of a unit.
        left_out: units of the graph that have no such row.
    """

    units: np.ndarray
    rows: np.ndarray
    limit: int
    left_out: int

    @property
    def among(self) -> np.ndarray:
        """The examined rows, each once: the rows to ask `membership.columns` for."""
        return np.unique(self.rows)


def ask(graph: UnitGraph, limit: int = ROWS, among: np.ndarray | None = None) -> Asked:
    """Choose the first rows of every unit.

    Args:
        limit: the most rows of a unit; a user with thousands of rows would otherwise take most of the time.
        among: bool[M], the rows that may be asked for; None: all. To examine fresh rows of trained users, pass the
            rows that training could not draw; for trained rows, those that it could.

    Raises:
        InputError: `limit` is impossible, or no unit has such a row.
    """
    if limit < 1:
        raise InputError(f"rows of a user: at least 1, not {limit}")
    owned = np.diff(graph.unit_offsets)
    units, rows = np.repeat(np.arange(graph.n_units), owned), np.asarray(graph.unit_rows)
    if among is not None:
        kept = among[rows]
        units, rows = units[kept], rows[kept]
    counts = np.bincount(units, minlength=graph.n_units)
    turn = np.arange(len(units)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = turn < limit
    left_out = int((counts == 0).sum())
    if left_out == graph.n_units:
        raise InputError("user inference: no user has a row that may be asked for")
    return Asked(units[first], rows[first], limit, left_out)


def statistic(asked: Asked, own: Columns, reference: Columns, per: str = "token") -> np.ndarray:
    """Compute log(p_model / p_reference) of each user, in nats, in the order of users: float64[users].

    Users without a row that holds anything to predict are left out.

    Args:
        asked: which rows of which users.
        own, reference: columns of the audited model, and of one that has not seen these users, such as the base model,
            over `asked.among` or more rows.
        per: "token", the log ratio of all rows over the number of their tokens; or "row", the mean over rows of the log
            ratio of the whole row, as in the paper, where all rows have one length and the two orders of users agree.
            With other lengths, long rows dominate the second. Choose before seeing either.

    Raises:
        ValueError: the two columns are not of the same tokens, or `per` is neither.
    """
    if per not in PER:
        raise ValueError(f"per is {' or '.join(PER)}, not {per!r}")
    own.check_same(reference)
    here, places = own.places(asked.rows)
    present, user = np.unique(asked.units[here], return_inverse=True)
    ratios = (reference.loss - own.loss)[places] * own.tokens[places]
    weights = own.tokens[places] if per == "token" else np.ones(len(places))
    sums = np.bincount(user, ratios, len(present))
    return np.asarray(sums / np.bincount(user, weights, len(present)))


@dataclass(frozen=True)
class UserInference:
    """The success of the attack over users: an estimate, and no guarantee of anything.

    Attributes:
        member_rows: "trained": the members' rows that were looked at are ones that training could draw; "fresh": none
            of them is, as in the paper; "mixed": some are. Trained rows tell more.
        limit: the most rows of a user; rows: how many were examined, of members and of others.
        left_out: users without such rows, of members and of others.
        per: "row" or "token", see `statistic`.
        rates: rates over users.
    """

    member_rows: str
    limit: int
    rows: tuple[int, int]
    left_out: tuple[int, int]
    per: str
    rates: Rates

    def to_json(self) -> dict[str, Any]:
        return {
            "member_rows": self.member_rows,
            "limit": self.limit,
            "rows": list(self.rows),
            "left_out": list(self.left_out),
            "per": self.per,
            "rates": self.rates.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Users:
    """One side of the comparison: the examined rows, and the columns of the two models."""

    asked: Asked
    own: Columns
    reference: Columns


def infer(
    members: Users,
    others: Users,
    in_use: np.ndarray | None = None,
    per: str = "token",
    fprs: tuple[float, ...] = FPRS,
    confidence: float = CONFIDENCE,
) -> UserInference:
    """Compare users in training with users held out, from columns that exist already: no model is asked.

    Args:
        members: users whose text was trained on; others: held-out users, with the same limit of rows each.
        in_use: bool[M], the rows of the members' graph that training could draw; None: all of them, as where it draws
            chunks of a user's whole text.
        per: see `statistic`.

    Raises:
        InputError: there are fewer than two users on a side.
        ValueError: the sides were asked for different numbers of rows, or as `statistic`.
    """
    if members.asked.limit != others.asked.limit:
        raise ValueError("a mean over more rows scatters less: ask both sides for as many rows of a user")
    found = [statistic(side.asked, side.own, side.reference, per) for side in (members, others)]
    if min(map(len, found)) < 2:
        raise InputError(
            f"user inference: takes two users in training and two held out (data.eval), not {len(found[0])} and "
            f"{len(found[1])}"
        )
    sides = list(zip((members.asked, others.asked), found, strict=True))
    dropped = [asked.left_out + len(np.unique(asked.units)) - len(users) for asked, users in sides]
    return UserInference(
        member_rows=_kind(members.asked.rows, in_use),
        limit=members.asked.limit,
        rows=(len(members.asked.rows), len(others.asked.rows)),
        left_out=(dropped[0], dropped[1]),
        per=per,
        rates=rates(found[0], found[1], None, fprs, confidence),
    )


def _kind(rows: np.ndarray, in_use: np.ndarray | None) -> str:
    used = np.ones(len(rows), dtype=bool) if in_use is None else in_use[rows]
    if used.all():
        return "trained"
    return "mixed" if used.any() else "fresh"
