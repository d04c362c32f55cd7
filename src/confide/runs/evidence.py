"""Keep what an audit's games have shown of a run, for its guarantee, apart from all other results of the audit.

Only the guesses from the released model count here: the guarantee's words rest on nothing but these guesses and
the coins of made-up units. Guesses from noised sums subtract what all real units added. That is private, and
stays in the run folder.
"""

import hashlib
from collections.abc import Sequence

from confide.randomness.seal import Broken, Seal
from confide.runs.folder import Run
from confide.utils.errors import InputError

_USE = "evidence"


def keep(run: Run, steps: int, lines: Sequence[str]) -> None:
    """Keep what games played after so many steps have shown, a line each, until others are played on the same model."""
    if lines:
        kept = {"model": model_id(run), "steps": steps, "lines": list(lines)}
        Seal(run.key()).write_json(run.evidence_path, _USE, kept)


def evidence(run: Run, steps: int) -> tuple[str, ...]:
    """Read the lines that were kept of this very run after so many steps; none for another model in its folder.

    Raises:
        InputError: the file was not written by an audit of this run.
    """
    if not run.evidence_path.exists():
        return ()
    try:
        kept = Seal(run.key()).read_json(run.evidence_path, _USE)
    except Broken:
        raise InputError(
            f"{run.evidence_path} is damaged, or of another run: remove it, and audit this run again"
        ) from None
    is_this = kept["steps"] == steps and kept["model"] == model_id(run)
    return tuple(kept["lines"]) if is_this else ()


def model_id(run: Run) -> str:
    """Identify a training run among all others, by a hash of its ledger."""
    ledger = run.ledger_path.read_bytes() if run.ledger_path.exists() else b""
    return hashlib.sha256(ledger).hexdigest()
