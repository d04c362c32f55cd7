"""The messages that a person sees while they wait: a bar with rate and time left, or one plain line every 30 seconds.

Messages and bars go to standard error; results go to standard output, so `--json` stays clean. Everything printed
goes through `guarded`: names and texts of data may hold control sequences that a terminal would obey.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Protocol

# Control characters but for the ends of lines and tabs, what turns or hides text (bidirectional marks, tags), other
# ends of lines, and halves of characters, which no encoding can write.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)


def plain(text: str) -> str:
    r"""Make a text safe for a terminal: control characters become Python escapes such as `\x1b`."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def on_one_line(text: str) -> str:
    """Write a sentence, which may hold a name with line ends, as one line."""
    return plain(text).replace("\n", "\\n")


class _Guarded:
    """A stream that writes `plain` text, and otherwise behaves like the stream within."""

    def __init__(self, stream: Any) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        written = plain(text)
        encoding = getattr(self.unguarded, "encoding", None)
        if encoding:  # of a terminal that knows few characters
            written = written.encode(encoding, "backslashreplace").decode(encoding)
        self.unguarded.write(written)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Keep out of standard output and standard error, within the block, everything that a terminal would obey."""
    with redirect_stdout(_Guarded(sys.stdout)), redirect_stderr(_Guarded(sys.stderr)):
        yield


class Track(Protocol):
    """Reports progress of one piece of work."""

    def __call__(self, advance: int = 1, note: str = "") -> None: ...


class Console:
    """The place where long work reports. `quiet` prints nothing."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def track(self, what: str, total: int | None = None, done: int = 0) -> Iterator[Track]:
        """Show a bar for `total` items of which `done` are done already; None if the total is unknown."""
        if self.quiet:
            yield lambda advance=1, note="": None
        elif sys.stderr.isatty():
            with _bar(what, total, done) as track:
                yield track
        else:
            yield _Lines(what, total, done)


@contextmanager
def _bar(what: str, total: int | None, done: int) -> Iterator[Track]:
    from rich.console import Console as Rich
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # The bar itself is drawn with escape sequences; the texts that it shows are made plain.
    out = getattr(sys.stderr, "unguarded", sys.stderr)
    with Progress(*columns, console=Rich(file=out)) as progress:
        task = progress.add_task(escape(plain(what)), total=total, completed=done, note="", rate="")
        began, count = time.monotonic(), 0

        def track(advance: int = 1, note: str = "") -> None:
            nonlocal count
            count += advance
            progress.update(task, advance=advance, rate=_rate(count, time.monotonic() - began))
            if note:
                progress.update(task, note=escape(plain(note)))

        yield track


class _Lines:
    """One plain line every 30 seconds, and one soon after the start."""

    def __init__(self, what: str, total: int | None, done: int):
        self.what, self.total, self.before = what, total, done
        self.count, self.began = 0, time.monotonic()
        self.due = self.began + 5

    def __call__(self, advance: int = 1, note: str = "") -> None:
        self.count += advance
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + 30
        done = self.before + self.count
        speed = self.count / (now - self.began)
        parts = [
            f"{self.what} {done}" + (f"/{self.total}" if self.total else ""),
            _rate(self.count, now - self.began),
        ]
        if self.total:
            parts.append(f"{_span((self.total - done) / speed)} left")
        print(", ".join(filter(None, [*parts, note])), file=sys.stderr, flush=True)


def _rate(count: int, seconds: float) -> str:
    if seconds <= 0 or not count:
        return ""
    speed = count / seconds
    return f"{speed:.3g}/s" if speed >= 1 else f"{1 / speed:.3g} s each"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
