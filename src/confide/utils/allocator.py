"""Keep freed memory in the process, so that a training step does not pay for fresh pages."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def keep_freed_memory() -> bool:
    """Ask glibc to reuse large freed blocks instead of returning each to the system; tell whether it agreed.

    A training step allocates the same few hundred megabytes again and again. By default the system maps and zeroes
    every page of them anew, a third of a small model's step. The price is that blocks of many sizes leave gaps: the
    process holds up to 1.6 times the memory that a run has in use at its peak. Memory that is free by now, say after
    an earlier run of this process, is given back here, since blocks of other sizes would be laid next to it. Over many
    runs gaps grow all the same: it is better to give each run a process, as the studies do.
    """
    # -1 is never: 2 GB, the largest number, is less than a step may free.
    return set_thresholds(mmap=1 << 30, trim=-1, pad=1 << 26)


def set_thresholds(mmap: int, trim: int, pad: int) -> bool:
    """Give back memory that is free by now, and set glibc's thresholds, in bytes; tell whether it agreed.

    Args:
        mmap: larger blocks are mapped, each by itself.
        trim: more than this free at the end of the heap is given back.
        pad: the heap grows by this much beyond what it must.
    """
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False  # another C library, without these settings
    malloc_trim(0)
    options = {_MMAP_THRESHOLD: mmap, _TRIM_THRESHOLD: trim, _TOP_PAD: pad}
    # Set all of them, even if one was refused.
    agreed = [mallopt(option, value) == 1 for option, value in options.items()]
    return all(agreed)
