"""Keep freed memory in the process, so that a training step does not pay for fresh pages."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def keep_freed_memory() -> bool:
    """Ask glibc to reuse large freed blocks instead of returning each to the system; whether it agreed.

    A training step allocates the same few hundred megabytes again and again, and by default the system maps and zeroes
    every page of them anew, a third of a small model's step. The price is that blocks of many sizes leave gaps: the
    process holds up to 1.6 times what a run has in use at its peak. What is free by now, say after an earlier run of
    this process, is given back here, since blocks of other sizes would be laid beside it. Over many runs gaps grow all
    the same: these are better given a process each, as the studies do.
    """
    # -1 is never: 2 GB, the largest number, is less than a step may free.
    return set_thresholds(mmap=1 << 30, trim=-1, pad=1 << 26)


def set_thresholds(mmap: int, trim: int, pad: int) -> bool:
    """Give back what is free by now, and set glibc's thresholds, in bytes; whether it agreed.

    Args:
        mmap: larger blocks are mapped, each by itself.
        trim: more than this free at the end of the heap is given back.
        pad: what the heap grows by beyond what it must.
    """
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False  # another C library, which has its own ways
    malloc_trim(0)
    options = {_MMAP_THRESHOLD: mmap, _TRIM_THRESHOLD: trim, _TOP_PAD: pad}
    # All of them, whether or not one was refused.
    agreed = [mallopt(option, value) == 1 for option, value in options.items()]
    return all(agreed)
