"""Read the documents that training rows are cut from, as `prepare` reads them, without cutting rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.data.documents import Recipe, side_of
from confide.data.part_work import Finished, Finishing, Search, items_of
from confide.data.readers import Counts, Document
from confide.data.taking import taken
from confide.data.text_work import TextWork
from confide.randomness.streams import RunKey
from confide.runs.data_source import files_of, source_of
from confide.runs.kept_parts import keeper
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config


@dataclass(frozen=True)
class TrainingText:
    """The training documents of a config, none that is held out. It may be read several times.

    Attributes:
        config: the config.
        tokenizer: that of the model.
        parts: the folder where finished parts of a large source are kept; see `kept_parts`.
        key: the run key, which seals them.
        crew: who reads; by default this process.
    """

    config: Config
    tokenizer: Any
    parts: Path
    key: RunKey
    crew: Crew | None = None

    def read(self, search: Search | None = None) -> Generator[Finished, None, None]:
        """Yield the documents with their numbers and, if they are searched, what was found, but without their fields.

        Raises:
            InputError: the source, or a record in its place among the documents.
        """
        config, data = self.config, self.config.data
        share = data.eval if isinstance(data.eval, float) else 0.0
        finishing = Finishing(
            Recipe.of(config, self.tokenizer),
            TextWork(self.tokenizer, False, data.max_length, without_quotes=data.strip_quotes),
            share,
            cut=frozenset(),
            limit=data.max_documents,
            search=search,
        )
        store = keeper(self.parts, source_of(config), files_of(config), self.key)
        side = partial(store, "texts" if search is None else "searched")
        with closing(items_of(finishing, data.train, self.crew or Crew(), store=side)) as items:
            for each in taken(items, data, Counts(), Counter()):
                if side_of(each.document.units, share) == "train":
                    yield each

    def documents(self) -> Generator[Document, None, None]:
        """Yield the documents, with their fields."""
        with closing(self.read()) as found:
            for each in found:
                yield each.document

    def forget(self) -> None:
        """Remove the finished parts: whoever read them has all that it wanted."""
        shutil.rmtree(self.parts, ignore_errors=True)
