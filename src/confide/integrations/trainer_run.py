"""A run of `confide.runs` in a Trainer's clothes: where its checkpoints lie, and who is told what it says."""

from pathlib import Path

from transformers.utils import logging

from confide.integrations.rows import Rows
from confide.runs.checkpoints import Checkpoints
from confide.runs.folder import Run
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.files import write_text

logger = logging.get_logger(__name__)

STATE = "confide"  # the folder of a checkpoint that holds confide's sealed state


class TrainerRun(Run):
    """A run whose checkpoints are those of a Trainer, each in a folder of its own.

    Attributes:
        resumes: the checkpoint that it goes on from.
    """

    resumes: Path | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoint that the run resumes from, if it does."""
        return Checkpoints((self.resumes or self.folder / "none") / STATE)

    def bind(self) -> None:
        """Make the folder this config's own and these rows' own, or refuse if it holds another run's steps."""
        super().bind()
        assert isinstance(self.given.documents, Rows)
        known, found = self.folder / "rows", self.key().fingerprint(self.given.documents.digest())
        if self.begun and known.exists() and known.read_text("utf-8") != found:
            raise InputError(
                f"train_dataset: {self.folder} holds a run that began with other rows: choose another output_dir, or "
                "remove that folder"
            )
        write_text(known, found)


class Logged(Console):
    """Says to transformers' log what `confide train` says on the terminal."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def say(self, text: str) -> None:
        if text.startswith("warning: "):
            logger.warning(text.removeprefix("warning: "))
        else:
            logger.info(text)
