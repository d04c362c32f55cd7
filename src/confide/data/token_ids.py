"""Token ids of many texts, by fastokens where it is installed: it needs a fifth of the time of transformers' own.

It is a second implementation of the same tokenizers, so it is used with care: not if it cannot read the tokenizer, not
if its answers to some hundred made-up texts differ, and never for a text with a special token in it, where it is known
to differ for some models. The texts are always the same ones, so all processes decide alike. It does not tell the
characters of a token: who needs them asks the tokenizer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Quick = Callable[[Sequence[str]], list[Ids]]

_WRITTEN = (
    "It's 9 o'clock:  they'LL pay 1,234.50 EUR\tfor it. \r\n\n  if x != y:\n\treturn None   ",
    "Grüße an Çağla, Ωμέγα; 東京で42個 हिन्दी १२३ \u00a0\u2028 naïve cafe\u0301 ﬁ 👩‍🚀 \u200b İKſ",
    "\x00\x7f\x85 <> [] {{}} ___ --- ''' \"\"\" \\n http://a.example/b?c=d&e#f",
)
_BITS = (
    *" \n\t.,;:'\"-_/<>@#0123456789",
    "  ",
    "\r\n",
    "'s",
    "'LL",
    "\u00a0",
    "\u2028",
    "\u3000",
    "²",
    "Ⅷ",
    "é",
    "e\u0301",
)
_PROBES = 200
_KEPT = 4  # tokenizers of which it is known whether the two agree


def _probe() -> list[str]:
    """Return texts of words, signs and characters of all scripts; the same ones each time."""
    chosen = random.Random(0)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: chosen.choice(_BITS),
        lambda: "".join(chosen.choice("etaoinshrdluETAOIN") for _ in range(chosen.randrange(1, 9))),
        lambda: chr(chosen.randrange(0x20, 0x2000)),
        lambda: chr(chosen.randrange(0x2000, 0xD800)),
        lambda: chr(chosen.randrange(0x1F300, 0x1FA00)),
    )
    made = ("".join(chosen.choice(kinds)() for _ in range(chosen.randrange(60))) for _ in range(_PROBES))
    return [*_WRITTEN, *made]


class TokenIds:
    """Encodes texts without special tokens at their ends; the ids are those of the tokenizer.

    Args:
        tokenizer: any of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _special(self) -> re.Pattern[str]:
        found = [token.content for token in getattr(self._tokenizer, "added_tokens_decoder", {}).values()]
        return re.compile("|".join(map(re.escape, found)) or r"(?!)")

    @cached_property
    def _quick(self) -> Quick | None:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        plain = json.dumps(json.loads(backend.to_str()) | {"truncation": None, "padding": None})
        if plain not in _TRIED:
            if len(_TRIED) >= _KEPT:
                _TRIED.clear()
            _TRIED[plain] = self._tried(_reader(plain))
        return _TRIED[plain]

    def _tried(self, quick: Quick | None) -> Quick | None:
        if quick is None:
            return None
        probe = [text for text in _probe() if not self._special.search(text)]
        return quick if all(map(np.array_equal, quick(probe), self._own(probe))) else None

    @property
    def is_quick(self) -> bool:
        """Whether fastokens does the work."""
        return self._quick is not None

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text: int64[tokens]."""
        if self._quick is None:
            return self._own(texts)
        is_plain = [self._special.search(text) is None for text in texts]
        quick = iter(self._quick([text for text, chosen in zip(texts, is_plain, strict=True) if chosen]))
        own = iter(self._own([text for text, chosen in zip(texts, is_plain, strict=True) if not chosen]))
        return [next(quick) if chosen else next(own) for chosen in is_plain]

    def _own(self, texts: Sequence[str]) -> list[Ids]:
        if not texts:  # tokenizers do not accept an empty list
            return []
        return [
            np.asarray(ids, np.int64)
            for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        ]


_TRIED: dict[str, Quick | None] = {}
"""What came of the tokenizers that this process met, as JSON."""


def _reader(tokenizer: str) -> Quick | None:
    """Load a tokenizer, which is given as JSON; None if fastokens is not there or does not know this kind."""
    try:
        import fastokens

        reader = fastokens.Tokenizer.from_json_str(tokenizer)
    except (ImportError, ValueError):
        return None

    def encode(texts: Sequence[str]) -> list[Ids]:
        if not texts:
            return []
        ids, bounds = reader.encode_batch_flat(list(texts), add_special_tokens=False)
        ends = np.frombuffer(bounds, np.uint64)[1:-1].astype(np.int64)
        return np.split(np.frombuffer(ids, np.uint32).astype(np.int64), ends)

    return encode
