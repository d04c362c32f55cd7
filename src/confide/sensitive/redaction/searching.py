"""Search documents for what `confide redact` shows, and count it: in this process or in others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.config.schema import Config
from confide.config.schema import Policy as Settings
from confide.config.sections import schema_for
from confide.randomness.streams import RunKey
from confide.sensitive.detectors import asked
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.counting import Counts
from confide.sensitive.redaction.masking import Place
from confide.sensitive.redaction.policy import Policy
from confide.utils.errors import InputError
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.data_section import Data
    from confide.data.readers import Document


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found in a document.

    Attributes:
        tested: the findings of the detectors under test.
        annotated: the annotated spans that they are compared with.
        counts: of this document.
    """

    tested: list[Span]
    annotated: list[Span]
    counts: Counts


class Searching:
    """The detectors under test, and the annotations that they are compared with, if any. Use it in a `with` statement.

    It is a job: whoever gets it opens the detectors again, and each process of this machine uses the cache. It holds
    the run key then, which never leaves this machine: the nodes of a cluster get neither key nor cache.

    Args:
        config, against, tokenizer, cache, key, crew: as of `preview.survey`.

    Attributes:
        kinds: as of `Policy`, with those of the annotations if they are masked.
        compares: whether there are annotations.

    Raises:
        InputError: as `Policy.of` raises it; or there are annotations both in `against` and in the policy.
    """

    def __init__(
        self,
        config: Config,
        against: str | None,
        tokenizer: Any,
        cache: Path | None,
        key: RunKey | None,
        crew: Crew | None = None,
    ) -> None:
        self._config, self._against, self._tokenizer = config, against, tokenizer
        self._cache, self._key, self._crew = cache, key, crew
        self._tested, self._annotations, self._masks_annotated = self._opened()

    @property
    def identity(self) -> str:
        """A keyed fingerprint of all that decides, with the documents, what is found."""
        assert self._key is not None
        prints = [each and each.fingerprint for each in (self._tested, self._annotations)]
        parts = ["search", *prints, self._against, self._tokenizer is not None]
        return self._key.fingerprint(json.dumps(parts).encode())

    @property
    def kinds(self) -> tuple[str, ...]:
        annotations = self._annotations
        annotated = annotations.kinds if annotations is not None and self._masks_annotated else ()
        return (*self._tested.kinds, *annotated)

    @property
    def compares(self) -> bool:
        return self._annotations is not None

    def masked(self, found: Searched) -> list[Span]:
        """Return the spans of a document that are masked."""
        return sorted({*found.tested, *found.annotated}) if self._masks_annotated else found.tested

    def ready(self) -> Callable[[Sequence[Document]], list[Searched]]:
        def search(documents: Sequence[Document]) -> list[Searched]:
            tested = self._tested.find(documents)
            stated = self._annotations
            annotated = [[] for _ in documents] if stated is None else stated.find(documents)
            found = []
            for each in zip(documents, tested, annotated, self._offsets(documents), strict=True):
                document, own, compared, offsets = each
                searched = Searched(own, compared, Counts())
                searched.counts.add(document.text, self.masked(searched), offsets)
                found.append(searched)
            return found

        return search

    def close(self) -> None:
        """End the processes of the detectors."""
        self._tested.close()

    def __enter__(self) -> Searching:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of a config with sections of its own is made as the config is read, so it cannot be sent.
        detector = self._config.detector.model_dump(exclude_none=True)
        stays = self._crew is None or self._crew.cluster is None
        kept = (self._cache, self._key) if stays else (None, None)
        return _reopened, (self._config.data, detector, self._against, self._tokenizer, *kept)

    def _opened(self) -> tuple[Policy, Policy | None, bool]:
        """Open the policy under test and that of the annotations, and tell whether these are masked as well."""
        config, against = self._config, self._against
        detector = config.detector
        others = bool(asked(detector) or detector.words or detector.expressions)
        if against is not None and detector.spans is not None:
            raise InputError(
                f"--against {against}: detector.spans names {detector.spans}, which the other detectors are compared "
                "with already; leave one of the two out"
            )
        field = against or (detector.spans if others else None)
        if field is None:
            return Policy.of(config, self._cache, self._key, self._crew), None, False
        tested = config.model_copy(update={"detector": detector.model_copy(update={"spans": None})})
        annotated = config.model_copy(update={"detector": Settings(spans=field)})
        # Annotations first: a fault in them leaves no processes behind.
        compared = Policy.of(annotated)
        return Policy.of(tested, self._cache, self._key, self._crew), compared, against is None

    def _offsets(self, batch: Sequence[Document]) -> Sequence[Sequence[Place]]:
        if self._tokenizer is None:
            return [()] * len(batch)
        texts = [document.text for document in batch]
        found = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        places: Sequence[Sequence[Place]] = found["offset_mapping"]
        return places


def _reopened(
    data: Data,
    detector: dict[str, Any],
    against: str | None,
    tokenizer: Any,
    cache: Path | None,
    key: RunKey | None,
) -> Searching:
    schema = schema_for({"detector": detector})
    section: Any = schema.model_fields["detector"].annotation
    config = schema.model_construct(data=data, detector=section.model_validate(detector))
    return Searching(config, against, tokenizer, cache, key, Crew())
