"""Remember in a run folder which corpora its model has written, and what was measured of them.

Two files are kept. `texts.json` holds facts that were computed from the release alone. `texts-private.json` holds what
was measured on private text. Both forget a model that another one has replaced.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confide.runs.released import GUARANTEE, digests
from confide.utils.files import private_files, write_text

PUBLIC, PRIVATE = "texts.json", "texts-private.json"
NOT_OWN = (
    "The run does not remember writing this file. If something else wrote it, or somebody edited it, the guarantee "
    "says nothing of it."
)


def model_digest(release: Path) -> str:
    """Identify a released model by its files; the guarantee, to which an audit adds its evidence, is not among them."""
    files = {name: digest for name, digest in digests(release).items() if name != GUARANTEE}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def remember(folder: Path, release: Path, name: str, digest: str, facts: Mapping[str, Any]) -> None:
    """Add facts of a corpus to `PUBLIC` or `PRIVATE` in a run folder; what is there of other kinds stays.

    Args:
        name: of the file, `PUBLIC` or `PRIVATE`.
        digest: of the corpus.
    """
    found = remembered(folder, release, name)
    found[digest] = {**found.get(digest, {}), **facts}
    with private_files():
        write_text(
            folder / name, json.dumps({"model": model_digest(release), "corpora": found}, indent=1) + "\n"
        )


def remembered(folder: Path, release: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return what is known of the corpora of this released model, by their digests; nothing if the file is damaged."""
    try:
        found = json.loads((folder / name).read_text("utf-8"))
        is_this = found["model"] == model_digest(release)
        return dict(found["corpora"]) if is_this else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
