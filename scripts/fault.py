"""What a fault is that somebody might put into the sources."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `file`; `tests` must then fail."""

    number: str
    what: str
    file: str
    old: str
    new: str
    tests: str
