"""Collect the output of `confide secrets`: where secrets were found, masked, and what each asks for and gets."""

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from confide.data.documents import training_documents
from confide.data.shape import Shape
from confide.data.spans import Mention
from confide.data.wording import is_worded
from confide.privacy.accounting import Accountant, achieved, least_noise_for_secrets
from confide.privacy.mechanisms.secret import SecretProtection, published
from confide.privacy.row_weights import Spread
from confide.sensitive.secrets.finders import find_all
from confide.sensitive.secrets.sources import searchers
from confide.utils.files import whole_file
from confide.utils.rounding import at_least, at_most
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.data.readers import Document

MASK = "█████"
_AROUND = 40  # characters of context on each side of an example
_LOOKED_AT = 2000  # documents that examples are taken from
_BATCH = 200


def examples(config: "Config", most: int = 5) -> Iterator[tuple[str, str]]:
    """Yield (id, context) of a few mentions, of different secrets if possible; secrets in the context are masked."""
    from confide.models.loading import load_tokenizer

    tokenizer = load_tokenizer(config) if is_worded(config) else None
    documents, found = training_documents(config, tokenizer), searchers(config, Crew())
    shown: set[str] = set()
    for _ in range(_LOOKED_AT // _BATCH):
        if len(shown) == most:
            return
        batch = list(islice(documents, _BATCH))
        for document, mentions in zip(batch, find_all(found, batch), strict=True):
            for mention in mentions:
                if mention.secret not in shown and len(shown) < most:
                    shown.add(mention.secret)
                    yield mention.secret, _masked(document, mention, mentions)


def _masked(document: "Document", mention: Mention, mentions: list[Mention]) -> str:
    text = document.text
    if any((other.start, other.end) == (0, len(text)) for other in mentions):
        return f"({'all' if (mention.start, mention.end) == (0, len(text)) else 'part'} of {document.where})"
    first, last = max(0, mention.start - _AROUND), min(len(text), mention.end + _AROUND)
    hidden = np.zeros(last - first, dtype=bool)
    for other in mentions:
        hidden[max(0, other.start - first) : max(0, other.end - first)] = True
    shown, masked = [], False
    for place, character in enumerate(text[first:last]):
        if not hidden[place]:
            shown.append(character)
        elif not masked:
            shown.append(MASK)
        masked = bool(hidden[place])
    return " ".join("".join(shown).split())


def solution(mechanism: SecretProtection, shape: Shape) -> dict[str, Any]:
    """Return the solution of a config's linear program, with the noise by each accountant."""
    population, targets = mechanism.population(shape), mechanism.targets(shape)
    spread = Spread.of(mechanism.weights(shape))
    return {
        "secrets": shape.units,
        "rows": shape.rows,
        "incidences": shape.incidences,
        "rows_kept": spread.kept,
        "weights": spread.total,
        "effective_rows": spread.effective,
        "largest_probability": float(population.rho.max()),
        "epochs": mechanism.steps * mechanism.batch / spread.total,
        "noise_multiplier": {
            name: least_noise_for_secrets(population, targets, name) for name in get_args(Accountant)
        },
    }


def write_table(mechanism: SecretProtection, shape: Shape, noise_multiplier: float, path: Path) -> None:
    """Write one line per secret and prior: rows, rows expected in all steps, asked and reached. Private: by id."""
    targets, population = mechanism.targets(shape), mechanism.population(shape)
    reached, names = achieved(population, targets, noise_multiplier), shape.names()
    expected = np.add.reduceat(np.append(population.rho[population.rows], 0.0), population.offsets[:-1]) * (
        np.diff(population.offsets) > 0
    )
    with whole_file(path) as building, open(building, "w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(
            ["id", "published_as", "rows", "expected_uses", "prior", "posterior", "reached_at_most"]
        )
        for unit, p, r, most in zip(
            targets.unit.tolist(),
            targets.prior.tolist(),
            targets.posterior.tolist(),
            reached.tolist(),
            strict=True,
        ):
            uses = expected[unit] * population.steps
            shown = published(names[unit], unit, mechanism.secrets)
            row = [names[unit], shown, int(shape.rows_per_unit[unit]), f"{uses:.6g}"]
            lines.writerow([*row, at_least(p, 6), at_most(r, 6), at_most(most, 6)])
