"""Switch the faster equivalents on or off: oneDNN's products, aligned logits, and the kernel of the loss."""

from collections.abc import Iterator
from contextlib import contextmanager

_on = [True]


def is_on() -> bool:
    """Return True if the faster equivalents are on."""
    return _on[-1]


@contextmanager
def off() -> Iterator[None]:
    """Use torch's own paths in forward passes inside the context, in all threads, as `original_layers` does."""
    _on.append(False)
    try:
        yield
    finally:
        _on.pop()
