"""Keep freed memory in the process, so that a training step does not pay for fresh pages."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def keep_freed_memory() -> bool:
    """Ask glibc to reuse large freed blocks instead of returning each to the system; whether it agreed.

    A training step allocates the same few hundred megabytes again and again, and by default the system maps and zeroes
    every page of them anew. Peak memory is the same; it is only given back later.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library, which has its own ways
    # All of them, whether or not one was refused.
    settings = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1, _TOP_PAD: 1 << 26}
    agreed = [mallopt(option, value) == 1 for option, value in settings.items()]
    return all(agreed)
