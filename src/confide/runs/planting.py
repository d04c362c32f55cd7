"""Plant canaries in the data, and check which parts of them are public and whether the claim's game can be played."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.data.cutting import Cutter
from confide.data.readers import Document
from confide.data.spans import Mention
from confide.data.unit_graph import GraphWriter
from confide.runs import canaries
from confide.runs.canaries import Canary, Manifest
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.sensitive.redaction.documents import RedactedDocuments


class Planting:
    """The canaries of one preparation.

    Args:
        redacted: finds and redacts, if the mechanism does.
        mentions: finds the mentions of documents, if units are secrets.

    Raises:
        InputError: under crt, the detector finds a number, or finds nothing next to it.
    """

    def __init__(
        self,
        manifest: Manifest,
        config: "Config",
        cutter: Cutter,
        redacted: "RedactedDocuments | None",
        mentions: Callable[[list[Document]], list[list[Mention]] | None],
    ):
        self.manifest = manifest
        self._config, self._cutter, self._redacted, self._mentions = config, cutter, redacted, mentions
        self._missed: list[int] = []  # canaries whose contents differ in what the claim calls public
        self._alike: list[int] = []  # for each canary, how many of the sampled numbers do not
        if manifest.game.has_mask:
            self._check_masks()

    def lay_beside(self, beside: GraphWriter) -> None:
        """Lay out the rows of all contents, planted or not.

        Raises:
            InputError: a content is more than one row.
        """
        for canary in self.manifest.canaries:
            for world, row in enumerate(self._rows_of(canary)):
                beside.add(row, [f"{canary.name}/{world}"])
        if self.manifest.game.texts > 1:
            self._compare()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the canaries.

        `count`; `missed`: how many are in no game, and `missing`: which, if any. For the game of values `alike`:
        for each canary, how many of `canaries.SAMPLED` random numbers in its place would change nothing public.
        """
        facts: dict[str, Any] = {"count": len(self.manifest.canaries), "missed": len(self._missed)}
        lists = {"missing": self._missed, "alike": self._alike}
        return facts | {name: own for name, own in lists.items() if own}

    def _compare(self) -> None:
        standing = []
        for number, canary in enumerate(self.manifest.canaries):
            public = self._public(self._contents(canary))
            if public[0] is None or public[0] != public[1]:
                self._missed.append(number)
            standing.append(public[canary.coin])
        if canaries.numbers_are_guessed(self._config):
            could = Counter(self._public([self._document(text) for text in self.manifest.sample()]))
            self._alike = [0 if own is None else could[own] for own in standing]

    def _check_masks(self) -> None:
        """Check that the detector, which misses each number, finds something else in the same row."""
        assert self._redacted is not None
        start, end = self.manifest.place()
        bad = 0
        for canary in self.manifest.canaries:
            self._rows_of(canary)
            secret, mask = self._contents(canary)
            bad += not self._redacted.misses_alone(secret, mask, start, end - start)
        if bad:
            name, length = self._config.privacy.mechanism, self._config.data.max_length
            raise InputError(
                f"canaries.template: with mechanism {name} the detector must miss the number of a canary, and find "
                f"something else within the same {length} tokens. This fails for {bad} of "
                f"{len(self.manifest.canaries)} canaries: put something that the detector finds into the template, "
                "beside the number, or take other canaries.digits"
            )

    def _rows_of(self, canary: Canary) -> list[np.ndarray]:
        """Return the one row of each of its contents, as it is trained on."""
        if self.manifest.game.has_mask:
            assert self._redacted is not None
            found = [[row.masked for row in own] for own in self._redacted.cut(self._contents(canary))]
        else:
            found = [[row.tokens for row in own] for own in self._cutter.rows(canary.contents)]
        for rows in found:
            if len(rows) != 1:
                raise InputError(
                    f"canaries: a text makes {len(rows)} rows, and must be one: use a shorter template or fewer "
                    f"canaries.tokens, or raise data.max_length ({self._config.data.max_length})"
                )
        return [row for (row,) in found]

    def _contents(self, canary: Canary) -> list[Document]:
        return [self._document(text, canary.name) for text in canary.contents]

    def _document(self, text: str, unit: str = "") -> Document:
        return canaries.document(text, unit, self._config)

    def _public(self, documents: list[Document]) -> Sequence[Hashable]:
        """Return what the claim calls public of each text; None if the claim does not protect what differs in it."""
        if self._redacted is not None:
            return self._redacted.public(documents)
        mentioned = self._mentions(documents)
        assert mentioned is not None  # the game of values is about secrets or about sensitive text
        rows = [list(own) for own in self._cutter.rows([document.text for document in documents])]
        # the number of tokens of a mention, and which rows hold which secrets
        return [
            (len(own[0].tokens), *own[0].secrets(mentions)) if len(own) == 1 else None
            for own, mentions in zip(rows, mentioned, strict=True)
        ]
