"""How fast sensitive text is found: words a second by level of a spaCy pipeline, megabytes a second by patterns.

    python benchmarks/detection.py [--pipeline en_core_web_sm] [--data FILE --text FIELD] [--levels LEVEL ...]
        [--patterns NAME ...] [--words 80000] [--megabytes 8] [--processes 2] [--rounds 3] [--json]

Without --data the text is made up: the mails to a help desk that `confide quickstart` trains on. A text that is too
short is read again. Words stand between white space; tokens are what the pipeline cuts text into, with punctuation. The
fastest round counts; processes are started before it. With --pipeline the whole pipeline is timed by itself in one
process too, which tells how fast the machine is; without it only patterns are measured.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from confide.cli.quickstart import MAILS
from confide.config.schema import Detector
from confide.data.readers import read
from confide.sensitive.detectors import LEVELS, SharedDetector
from confide.utils.workers import Crew


def source(path: str | None, field: str) -> Iterator[str]:
    """Texts without an end."""
    while True:
        for each in read(path or str(MAILS), text=field, unit=None):
            yield each.text


def first(texts: Iterator[str], least: float, size: Any) -> list[str]:
    """As many texts as come to `least` by `size`, at most 100,000 characters of each."""
    chosen, total = [], 0
    for text in texts:
        chosen.append(text[:100_000])
        total += size(chosen[-1])
        if total >= least:
            return chosen
    raise AssertionError  # the source has no end


def words_in(text: str) -> int:
    return len(text.split())


def bytes_in(text: str) -> int:
    return len(text.encode())


def fastest(detector: SharedDetector, texts: Sequence[str], rounds: int) -> tuple[float, int]:
    """Seconds of the fastest round, and the number of findings. One round more goes before, which starts processes."""
    seconds, found = [], 0
    for _ in range(rounds + 1):
        began = time.perf_counter()
        found = sum(map(len, detector.find(texts)))
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]), found


def tokens_in(texts: Sequence[str], pipeline: str) -> int:
    import spacy

    cut = spacy.load(pipeline).tokenizer
    return sum(len(cut(text)) for text in texts)


def alone(texts: Sequence[str], pipeline: str, rounds: int) -> float:
    """Seconds of the fastest round of the whole pipeline by itself, in one process: what this machine can do."""
    import spacy

    whole, seconds = spacy.load(pipeline), []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in whole.pipe(texts):
            pass
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    figures, crew = [], Crew(args.processes)
    if args.pipeline is not None:
        texts = first(source(args.data, args.text), args.words, words_in)
        words, tokens = sum(map(words_in, texts)), tokens_in(texts, args.pipeline)
        seconds = alone(texts, args.pipeline, args.rounds)
        figures.append(_by_words("spaCy, one process", words, tokens, seconds))
        for level in args.levels:
            with SharedDetector(Detector(level=level, pipeline=args.pipeline), "level", crew) as detector:
                seconds, found = fastest(detector, texts, args.rounds)
            figures.append(_by_words(level, words, tokens, seconds) | {"findings": found})
    texts = first(source(args.data, args.text), 1e6 * args.megabytes, bytes_in)
    for names in (args.patterns, *([name] for name in args.each)):
        with SharedDetector(Detector(patterns=names), "patterns", crew) as detector:
            seconds, found = fastest(detector, texts, args.rounds)
        speed = sum(map(bytes_in, texts)) / 1e6 / seconds
        what = names if isinstance(names, str) else " ".join(names)
        figures.append({"what": what, "megabytes_per_second": round(speed, 2), "findings": found})
    return figures


def _by_words(what: str, words: int, tokens: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "words_per_second": round(words / seconds),
        "tokens_per_second": round(tokens / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipeline", help="of spaCy, by name or folder")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--patterns", nargs="+", default="all", help="recognisers; default: all")
    parser.add_argument("--each", nargs="+", default=[], help="recognisers that are measured alone as well")
    parser.add_argument("--data", help="text, as data.train of a config")
    parser.add_argument("--text", default="text", help="its field or template")
    parser.add_argument("--words", type=int, default=80_000, help="that levels are measured on")
    parser.add_argument("--megabytes", type=float, default=8, help="that patterns are measured on")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args)
    if args.json:
        print(json.dumps(figures))
        return
    for row in figures:
        speeds = [
            f"{row[name]:>10,} {name.replace('_per_', '/')}" for name in row if name.endswith("_per_second")
        ]
        findings = [f"{row['findings']:>10,} findings"] if "findings" in row else []
        print(f"{row['what']:18}", *speeds, *findings)


if __name__ == "__main__":
    main()
