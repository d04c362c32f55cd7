"""Token ids of many texts, by fastokens where it is installed: it needs a third of the time of transformers' own.

It is a second implementation of the same tokenizers, so it is used with care: not if it cannot read the tokenizer, not
if its answer to a probe or to the first texts differs, and never for a text with a special token in it, where it is
known to differ for some models. It does not tell the characters of a token: who needs them asks the tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_PROBE = (
    "It's 9 o'clock:  they'LL pay 1,234.50 EUR\tfor it. \r\n\n  if x != y:\n\treturn None   ",
    "Grüße an Çağla, Ωμέγα; 東京で42個 हिन्दी १२३ \u00a0\u2028 naïve cafe\u0301 ﬁ 👩‍🚀 \u200b İKſ",
    "\x00\x7f\x85 <> [] {{}} ___ --- ''' \"\"\" \\n http://a.example/b?c=d&e#f",
)
_COMPARED = 64  # of the first texts


class TokenIds:
    """Encodes texts without special tokens at their ends; the ids are those of the tokenizer.

    Args:
        tokenizer: any of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._quick = _quick(tokenizer)
        self._is_compared = False
        if self._quick is not None:
            self._keep_if_alike(_PROBE, self._quick(_PROBE))
        special = [token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values()]
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")

    @property
    def is_quick(self) -> bool:
        """Whether fastokens does the work."""
        return self._quick is not None

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text: int64[tokens]."""
        if self._quick is None:
            return self._own(texts)
        is_plain = [self._special.search(text) is None for text in texts]
        plain = [text for text, chosen in zip(texts, is_plain, strict=True) if chosen]
        found = self._quick(plain)
        if plain and not self._is_compared:
            self._is_compared = True
            self._keep_if_alike(plain[:_COMPARED], found[:_COMPARED])
            if not self.is_quick:
                return self._own(texts)
        quick = iter(found)
        own = iter(self._own([text for text, chosen in zip(texts, is_plain, strict=True) if not chosen]))
        return [next(quick) if chosen else next(own) for chosen in is_plain]

    def _own(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:  # tokenizers do not accept an empty list
            return []
        return [
            np.asarray(ids, np.int64)
            for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        ]

    def _keep_if_alike(self, texts: Sequence[str], found: Sequence[Ids]) -> None:
        if not all(map(np.array_equal, found, self._own(texts))):
            self._quick = None


def _quick(tokenizer: Any) -> Callable[[Sequence[str]], list[Ids]] | None:
    try:
        import fastokens
    except ImportError:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    plain = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    try:
        reader = fastokens.Tokenizer.from_json_str(json.dumps(plain))
    except ValueError:  # it does not know this kind of tokenizer
        return None

    def encode(texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        ids, bounds = reader.encode_batch_flat(list(texts), add_special_tokens=False)
        ends = np.frombuffer(bounds, np.uint64)[1:-1].astype(np.int64)
        return np.split(np.frombuffer(ids, np.uint32).astype(np.int64), ends)

    return encode
