"""The models that studies start from."""

from __future__ import annotations

from pathlib import Path

from studies import corpora
from studies.runner.study import Scale, Work


def stories(work: Work) -> Path:
    """Return stories260K; at `full`, the name of GPT-2 small on the hub, which the papers train."""
    if work.scale is Scale.FULL:
        return Path("gpt2")
    work.source("20newsgroups")
    assert work.data is not None
    return corpora.stories(work.data, work.folder / "models" / "stories260K")
