"""Numbers for names, in order of first appearance: what a dictionary does, in less time and memory.

A dictionary of ten million names takes more than 100 bytes for each, and waits for memory several times a look-up. Here
names are looked up many at a time, in arrays. Names are compared as they are, so two names never share a number.
"""

import secrets

import numpy as np

WIDEST = 8  # words of 8 bytes; a longer name goes into a dictionary
_BLOCK = 1 << 16  # names placed anew at a time, when a table grows


class NameNumbers:
    """Numbers names from 0 in order of first appearance."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}  # by the words of a name
        self._others: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, names: list[str]) -> tuple[np.ndarray, list[str]]:
        """Return the number of each name, int64[n], and the names that are new, by their numbers."""
        text = "".join(names)
        raw: list[str] | list[bytes] = names  # a str of ASCII is taken as its bytes
        if not text.isascii():
            raw = [name.encode("utf-8", "surrogatepass") for name in names]
        words = -(-np.fromiter(map(len, raw), np.int64, len(raw)) // 8)
        words[(words < 1) | (words > WIDEST)] = 0
        if "\0" in text:  # an array of bytes cannot tell it from an end
            words[["\0" in name for name in names]] = 0
        entries, new = np.empty(len(names), dtype=np.int64), np.zeros(len(names), dtype=np.bool_)
        groups = [(width, np.flatnonzero(words == width)) for width in np.unique(words).tolist()]
        for width, places in groups:
            own = raw if len(places) == len(raw) else [raw[place] for place in places.tolist()]
            if width:
                table = self._tables.setdefault(width, _Table(width))
                keys = np.array(own, dtype=f"S{8 * width}").view("<u8").reshape(-1, width)
                entries[places], new[places] = table.enter(keys)
            else:
                met: set[str] = set()
                for place in places.tolist():
                    new[place] = names[place] not in self._others and names[place] not in met
                    met.add(names[place])
        fresh = np.flatnonzero(new)
        numbers = np.empty(len(names), dtype=np.int64)
        numbers[fresh] = self._count + np.arange(len(fresh))
        for width, places in groups:
            begun = places[new[places]]
            if width:
                table = self._tables[width]
                table.numbers[entries[begun]] = numbers[begun]
                numbers[places] = table.numbers[entries[places]]
            else:
                self._others.update((names[place], int(numbers[place])) for place in begun.tolist())
                numbers[places] = [self._others[names[place]] for place in places.tolist()]
        self._count += len(fresh)
        return numbers, [names[place] for place in fresh.tolist()]


class _Table:
    """Names of one width, in a hash table with open addressing.

    Attributes:
        numbers: int64, the number of each entry.
    """

    def __init__(self, width: int) -> None:
        self._width, self._count = width, 0
        self._keys = np.empty((0, width), dtype=np.uint64)
        self.numbers = np.empty(0, dtype=np.int64)
        self._slots = np.zeros(0, dtype=np.uint32)  # an entry's place plus one; 0 if free
        # Drawn anew by each process, so that nobody can choose names which all meet in one place.
        self._factors = [np.uint64(secrets.randbits(64) | 1) for _ in range(width + 1)]

    def enter(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find or make the entries of names: their places, int64[n], and bool[n], true at the first of a new name."""
        self._reserve(self._count + len(keys))
        entries, new = np.empty(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
        slots, left = self._first_slots(keys), np.arange(len(keys))
        while len(left):
            found = self._slots[slots].astype(np.int64) - 1
            free = found < 0
            if free.any():
                first = self._claim(left[free], slots[free])
                begun, taken = left[free][first], slots[free][first]
                made = np.arange(self._count, self._count + len(begun))
                self._slots[taken] = made + 1
                self._keys[made], entries[begun], new[begun] = keys[begun], made, True
                self._count += len(begun)
                found[free] = self._slots[slots[free]].astype(np.int64) - 1
            same = self._keys[found, 0] == keys[left, 0]
            for word in range(1, self._width):
                same &= self._keys[found, word] == keys[left, word]
            entries[left[same]] = found[same]
            left, slots = left[~same], (slots[~same] + 1) & (len(self._slots) - 1)
        return entries, new

    def _claim(self, names: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Give each free slot to the first of the names that meet there; return which names those are: bool[n]."""
        self._slots[slots[::-1]] = names[::-1] + 1  # of equal places, the last one assigned remains
        first: np.ndarray = self._slots[slots] == names + 1
        return first

    def _first_slots(self, keys: np.ndarray) -> np.ndarray:
        mixed = np.zeros(len(keys), dtype=np.uint64)
        for word, factor in enumerate(self._factors[:-1]):
            mixed += keys[:, word] * factor
        mixed = (mixed ^ mixed >> np.uint64(29)) * self._factors[-1]
        return (mixed >> np.uint64(65 - len(self._slots).bit_length())).astype(np.int64)

    def _reserve(self, entries: int) -> None:
        """Make room for so many entries."""
        if entries > len(self.numbers):
            room = max(entries, len(self.numbers) * 3 // 2, 1024)
            self._keys.resize((room, self._width), refcheck=False)  # in place, where the system can
            self.numbers.resize(room, refcheck=False)
        if 3 * entries <= 2 * len(self._slots):
            return
        self._slots = np.zeros(0, dtype=np.uint32)  # given up before the larger one is made
        self._slots = np.zeros(1 << max(11, (3 * entries // 2).bit_length()), dtype=np.uint32)
        for first in range(0, self._count, _BLOCK):
            left = np.arange(first, min(first + _BLOCK, self._count))
            slots = self._first_slots(self._keys[left])
            while len(left):
                on = self._slots[slots] != 0
                on[~on] = ~self._claim(left[~on], slots[~on])
                left, slots = left[on], (slots[on] + 1) & (len(self._slots) - 1)
