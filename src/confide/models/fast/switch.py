"""Whether what computes the same faster is on: oneDNN's products, aligned logits, and the kernel of the loss."""

from collections.abc import Iterator
from contextlib import contextmanager

_on = [True]


def is_on() -> bool:
    return _on[-1]


@contextmanager
def off() -> Iterator[None]:
    """Within it, forward passes take torch's own ways, in all threads; `activations.original_layers` does so too."""
    _on.append(False)
    try:
        yield
    finally:
        _on.pop()
