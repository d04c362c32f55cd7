"""Which samples are left out of a corpus, by rules that look at the samples alone."""

from collections import Counter

REPEATS = 0.5
"""A text is degenerate if so large a share of its runs of four words occurred before in it."""

_RUN, _FEWEST = 4, 20  # words


class Rules:
    """Decide which samples a corpus keeps, in their order. Nothing but the samples is looked at.

    Attributes:
        left_out: how many samples each rule left out.
    """

    BLANK, TWICE, DEGENERATE = "blank", "exact duplicate", "degenerate: it repeats itself"

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._seen: set[str] = set()

    def keeps(self, text: str) -> bool:
        """Tell whether a sample is kept, and count it if not."""
        plain = " ".join(text.split())
        if not plain:
            why = self.BLANK
        elif plain in self._seen:
            why = self.TWICE
        elif repeats(plain) >= REPEATS:
            why = self.DEGENERATE
        else:
            self._seen.add(plain)
            return True
        self.left_out[why] += 1
        return False


def repeats(text: str) -> float:
    """Return the share of a text's runs of four words that occurred before in it; 0 for fewer than 20 words."""
    words = text.split()
    if len(words) < _FEWEST:
        return 0.0
    runs = [tuple(words[place : place + _RUN]) for place in range(len(words) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs)
