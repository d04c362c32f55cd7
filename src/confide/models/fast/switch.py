"""Whether what computes the same faster is on: oneDNN's products, aligned logits, and the kernel of the loss."""

from collections.abc import Iterator
from contextlib import contextmanager

_on = [True]


def is_on() -> bool:
    return _on[-1]


@contextmanager
def off() -> Iterator[None]:
    """While it lasts, forward passes take torch's own ways, in any thread. `activations.as_written` does this too."""
    _on.append(False)
    try:
        yield
    finally:
        _on.pop()
