"""What a run of a study would see of its text, without training: who owns which rows, and how many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confide.config.loading import check
from confide.config.schema import Config
from confide.data.shape import Shape
from confide.models.loading import load_tokenizer
from confide.runs.folder import Run
from confide.runs.preparation import prepared_data
from studies.runner.grid import Keys, nested
from studies.runner.study import Work
from studies.runner.texts import TEXTS


def config_of(text: str, keys: Keys, work: Work, name: str) -> Config:
    """Return the config of a run on the training part of a text.

    Args:
        name: of its folder below the study's.
    """
    raw: Mapping[str, Any] = {
        "data.train": str(TEXTS[text].parts(work)["train"]),
        "data.eval": None,
        "data.text": TEXTS[text].template,
        "data.unit": TEXTS[text].unit,
        "data.duplicates": False,
        "privacy.published_key": f"study {name}",
        "run": str(work.folder / name),
        **keys,
    }
    return check(nested(raw), f"study {name}")


def shape_of(config: Config, work: Work) -> Shape:
    """Return the shape of a config's training rows; they are prepared if they are not there."""
    run = Run(config)
    with run.locked():
        return prepared_data(run, load_tokenizer(config), work.console).train.shape()
