"""The prior and the allowed posterior of every secret (Ganesh et al. 2025, "Hush!", Definition 3.1).

A prior is the chance of the best blind guess at a secret; a posterior is the allowed chance of the best attack on the
model. A secret may carry several pairs; all are enforced.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from confide.config.schema import Secrets
from confide.sensitive.secrets.finders import classes_of
from confide.sensitive.secrets.words import is_table, read_table, read_text, read_words
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pairs = list[tuple[float, float]]
_SHOWN = 5


def resolve(
    secrets: Secrets, ids: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Find the pairs of all secrets: `unit` int64[K] (a place in `ids`, ascending), `prior` and `posterior` float64[K].

    The first of these that states pairs for a secret counts: `secrets.values`, or a CSV of `secrets.words`, under its
    id; then under its class (the part before a colon, the longest first); then the config's `prior` and `posterior`.

    Raises:
        InputError: a pair violates 0 < prior < posterior < 1, an id in `secrets.values` is neither a secret nor a
            class,
            or a secret has no values. The sentence names file and line.
    """
    default = _default(secrets)
    listed, stated = _of_words(secrets)
    stated |= _of_values(secrets, {*ids, *listed, *(name for secret in ids for name in classes_of(secret))})
    unit: list[int] = []
    pairs: Pairs = []
    without = []
    for number, secret in enumerate(ids):
        own = next((stated[name] for name in (secret, *classes_of(secret)) if name in stated), default)
        if not own:
            without.append(secret)
        unit += [number] * len(own)
        pairs += own
    if without:
        shown = ", ".join(without[:_SHOWN]) + (", ..." if len(without) > _SHOWN else "")
        raise InputError(
            f"secrets.prior: {len(without):,} of {len(ids):,} secrets have no prior and posterior ({shown}); "
            "state both for all, or for them in secrets.values"
        )
    table = np.array(pairs, np.float64).reshape(-1, 2)
    return np.array(unit, np.int64), table[:, 0].copy(), table[:, 1].copy()


def class_of(secret: str) -> str:
    """Return the part of an identifier before its last colon; all of it if it has none (`rows`)."""
    return secret.rpartition(":")[0] or secret


def _default(secrets: Secrets) -> Pairs:
    if secrets.prior is None and secrets.posterior is None:
        return []
    if secrets.prior is None or secrets.posterior is None:
        missing = "prior" if secrets.prior is None else "posterior"
        raise InputError(f"secrets.{missing}: is missing; a prior and a posterior go together")
    priors = secrets.prior if isinstance(secrets.prior, list) else [secrets.prior]
    posteriors = secrets.posterior if isinstance(secrets.posterior, list) else [secrets.posterior]
    if len(priors) != len(posteriors) or not priors:
        raise InputError(
            f"secrets.posterior: has {len(posteriors)} values and secrets.prior {len(priors)}: each prior needs one"
        )
    return [
        _pair(prior, posterior, "secrets.prior") for prior, posterior in zip(priors, posteriors, strict=True)
    ]


def _of_words(secrets: Secrets) -> tuple[set[str], dict[str, Pairs]]:
    """Read the ids of the list of words with their class, and the values that a CSV states for them."""
    if secrets.words is None or not is_table(secrets.words):
        return set(), {}
    listed: set[str] = set()
    stated: dict[str, Pairs] = {}
    for entry in read_words(secrets.words):
        listed |= {entry.id, *classes_of(entry.id)}
        prior, posterior = entry.columns.get("prior", ""), entry.columns.get("posterior", "")
        if prior or posterior:
            where = f"secrets.words: {secrets.words} line {entry.line}"
            pair = _pair(_number(prior, "prior", where), _number(posterior, "posterior", where), where)
            pairs = stated.setdefault(entry.id, [])
            if pair not in pairs:  # several spellings of one secret state the same values
                pairs.append(pair)
    return listed, stated


def _of_values(secrets: Secrets, known: set[str]) -> dict[str, Pairs]:
    if secrets.values is None:
        return {}
    path = Path(secrets.values).expanduser()
    text = read_text(path, "secrets.values")
    stated: dict[str, Pairs] = {}
    for line, row in read_table(path, text, "secrets.values", ["id", "prior", "posterior"]):
        where = f"secrets.values: {path} line {line}"
        if row["id"] not in known:  # the id may be the secret's own text by mistake, so it is not shown
            near = difflib.get_close_matches(row["id"], sorted(known), 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{where}: the id is neither a secret nor a class of secrets{hint}")
        pair = _pair(
            _number(row["prior"], "prior", where), _number(row["posterior"], "posterior", where), where
        )
        stated.setdefault(row["id"], []).append(pair)
    if not stated:
        raise InputError(f"secrets.values: {path} states no values")
    return stated


def _number(text: str, name: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        shown = "is missing" if not text else "is not a number"
        raise InputError(f"{where}: the {name} {shown}") from None


def _pair(prior: float, posterior: float, where: str) -> tuple[float, float]:
    if not 0 < prior < posterior < 1:
        raise InputError(
            f"{where}: prior {prior:g} and posterior {posterior:g} do not satisfy 0 < prior < posterior < 1"
        )
    return prior, posterior
