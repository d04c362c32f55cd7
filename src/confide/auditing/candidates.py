"""All values that a secret might have had, each within the text that was planted, as token rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.utils.errors import InputError

END = -1  # stands after the last token of a row that is shorter than others

_AT_ONCE = 1 << 16  # texts that are tokenised together: bounds the memory of the lists of tokens


@dataclass(frozen=True)
class Candidates:
    """A space R of secrets under one template.

    Attributes:
        before, after: the text on both sides of the secret.
        size: |R|.
        secret: the candidate of each number below `size`.
        number: the number of each candidate, the inverse of `secret`; raises ValueError for any other text.
    """

    before: str
    after: str
    size: int
    secret: Callable[[int], str]
    number: Callable[[str], int]

    @classmethod
    def digits(cls, template: str, digits: int) -> "Candidates":
        """Return all numbers with this many digits, 000000 to 999999 for six.

        Args:
            template: text with one `{}` in place of the secret.

        Raises:
            InputError: the template has no such place, or several.
        """

        def number(secret: str) -> int:
            if len(secret) != digits or not (secret.isascii() and secret.isdigit()):
                raise ValueError(secret)
            return int(secret)

        return cls(*_sides(template), 10**digits, lambda place: f"{place:0{digits}d}", number)

    @classmethod
    def among(cls, template: str, secrets: Sequence[str]) -> "Candidates":
        """Return a space of listed secrets, which must all be different.

        Raises:
            InputError: the template has no place for a secret, or several; or two secrets are the same.
        """
        places = {secret: place for place, secret in enumerate(secrets)}
        if len(places) < len(secrets):
            raise InputError("candidates: some secrets are listed twice, and a rank would count them twice")

        def number(secret: str) -> int:
            if secret not in places:
                raise ValueError(secret)
            return places[secret]

        return cls(*_sides(template), len(secrets), secrets.__getitem__, number)

    def text(self, number: int) -> str:
        return f"{self.before}{self.secret(number)}{self.after}"

    def numbers(self, secrets: Sequence[str]) -> np.ndarray:
        """Return the number of each secret: int64[K].

        Raises:
            InputError: a secret is not among the candidates.
        """
        try:
            return np.array([self.number(secret) for secret in secrets], dtype=np.int64)
        except ValueError:
            raise InputError("secrets: one of them is not among the candidates of its template") from None

    def tokens(self, tokenizer: Any, numbers: np.ndarray | None = None) -> np.ndarray:
        """Tokenise the whole text of each candidate, after the token that starts a row: int32[n, W].

        Shorter rows are filled up with END.

        Args:
            numbers: which candidates; None means all.
        """
        numbers = np.arange(self.size) if numbers is None else numbers
        parts = []
        for first in range(0, len(numbers), _AT_ONCE):
            texts = [self.text(number) for number in numbers[first : first + _AT_ONCE].tolist()]
            found = tokenizer(
                texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
            )
            parts.append(_matrix(found["input_ids"]))
        width = max(part.shape[1] for part in parts)
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        filled = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=END) for part in parts]
        rows = np.concatenate(filled)
        return rows if start is None else np.pad(rows, ((0, 0), (1, 0)), constant_values=start)


def _sides(template: str) -> tuple[str, str]:
    before, *after = template.split("{}")
    if len(after) != 1:
        raise InputError(f"template: it needs one {{}} where the secret stands, and has {len(after)}")
    return before, after[0]


def _matrix(rows: list[list[int]]) -> np.ndarray:
    lengths = np.array([len(row) for row in rows])
    found = np.full((len(rows), lengths.max()), END, dtype=np.int32)
    found[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate([np.asarray(row) for row in rows])
    return found
