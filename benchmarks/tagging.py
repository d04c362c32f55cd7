"""How fast a long list of secret words is found in text: megabytes (UTF-8) a second, up to the list of mentions.

    python benchmarks/tagging.py [--source FILE --text FIELD] [--words 100000] [--alternatives] [--json]

The list is Ganesh et al. 2025's: the words of ranks 50,001 to 150,000 by document frequency; of a text with fewer, all
but the more frequent third, filled up with words that do not occur. Without --source the text is made up.
One process, one thread; by the wall and by the processor. --alternatives: a regular expression for tokens with
a dictionary, and Aho-Corasick (ahocorasick_rs) on lower-cased ASCII, which count hits and give no mentions.
"""

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from confide.data.readers import Document, read
from confide.sensitive.secrets.words import Words

FIRST_RANK = 50_000


def made_up(megabytes: float) -> list[str]:
    """Abstracts of 150 words, of which some 5% have a rank that is listed, and one abstract in seven an accent."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxzé"))
    weights = 1 / np.arange(2, len(letters) + 2)
    weights[-1] = 1e-4 * weights.sum()
    lengths = generator.integers(3, 13, 300_000)
    spelt = "".join(generator.choice(letters, lengths.sum(), p=weights / weights.sum()))
    ends = np.cumsum(lengths).tolist()
    words = [spelt[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    ranks = (len(words) ** np.square(generator.random(int(megabytes * 1e6 / 8.5)))).astype(np.int64) - 1
    return [" ".join(words[rank] for rank in ranks[i : i + 150]) + "." for i in range(0, len(ranks), 150)]


def listed(texts: Sequence[str], count: int) -> list[str]:
    frequency: Counter[str] = Counter()
    for text in texts:
        frequency.update(set(re.findall(r"\w+", text.lower())))
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))
    first = min(FIRST_RANK, len(ranked) // 3)
    chosen = ranked[first : first + count]
    return chosen + [f"madeup{number}" for number in range(count - len(chosen))]


def by_tokens(words: Sequence[str], texts: Sequence[str]) -> Callable[[], int]:
    known, tokens = set(words), re.compile(r"\w+")
    return lambda: sum(word in known for text in texts for word in tokens.findall(text.lower()))


def by_aho_corasick(words: Sequence[str], texts: Sequence[str]) -> Callable[[], int]:
    from ahocorasick_rs import BytesAhoCorasick

    automaton = BytesAhoCorasick([f" {word} ".encode() for word in words])
    table = bytes(
        ord(chr(i).lower()) if i < 128 and (chr(i).isalnum() or chr(i) == "_") else 32 for i in range(256)
    )

    def count() -> int:
        joined = " ".join(["", *texts, ""]).encode().translate(table)
        pieces = (joined[i : i + (1 << 20)] for i in range(0, len(joined), 1 << 20))
        return sum(len(automaton.find_matches_as_indexes(piece, overlapping=True)) for piece in pieces)

    return count


def fastest(work: Callable[[], Any], rounds: int) -> tuple[float, float, Any]:
    """Seconds by the wall and of the processor, each of its fastest round, and what the last one gave."""
    walls, processors, result = [], [], None
    for _ in range(rounds):
        result = None  # the last round's mentions are not kept beside the next one's
        began = time.perf_counter(), time.process_time()
        result = work()
        walls.append(time.perf_counter() - began[0])
        processors.append(time.process_time() - began[1])
    return min(walls), min(processors), result


def measure(texts: list[str], words: list[str], rounds: int, alternatives: bool) -> dict[str, float]:
    documents = [Document(text, ("u",), None, "") for text in texts]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        path.write_text("\n".join(words), encoding="utf-8")
        build, _, finder = fastest(lambda: Words(path), 1)
    wall, processor, found = fastest(lambda: finder.find(documents), rounds)
    figures = {
        "documents": len(texts),
        "megabytes": round(megabytes, 2),
        "not_ascii_share": round(sum(not text.isascii() for text in texts) / len(texts), 3),
        "words": len(words),
        "mentions": sum(map(len, found)),
        "build_seconds": round(build, 2),
        "mb_per_second": round(megabytes / wall, 1),
        "mb_per_cpu_second": round(megabytes / processor, 1),
    }
    if alternatives:
        for name, make in (("tokens", by_tokens), ("aho_corasick", by_aho_corasick)):
            _, processor, hits = fastest(make(words, texts), rounds)
            figures |= {f"{name}_mb_per_cpu_second": round(megabytes / processor, 1), f"{name}_hits": hits}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="text, as data.train of a config")
    parser.add_argument("--text", default="text", help="its field or template")
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--megabytes", type=float, default=20, help="at most, in characters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alternatives", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.source is None:
        texts = made_up(args.megabytes)
    else:
        texts, size = [], 0.0
        for document in read(args.source, text=args.text, unit=None):
            texts.append(document.text)
            size += len(document.text)
            if size >= 1e6 * args.megabytes:
                break
    figures = measure(texts, listed(texts, args.words), args.rounds, args.alternatives)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):32} {value:>14,}")


if __name__ == "__main__":
    main()
