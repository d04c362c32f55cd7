"""The memory of the machine, the peak of a piece of work, and whether the memory ran out."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from confide.utils.errors import InputError

_GROUP = Path("/sys/fs/cgroup")  # of a container, whose limit is below the machine's

# Messages of torch's allocator on a CPU, of oneDNN, of CUDA's driver, and of its libraries if they lack room.
_WORDS = (
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory object",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class OutOfMemory(Exception):
    """The memory of some rank ran out; everything computed so far is useless."""


def ran_out(error: BaseException) -> bool:
    """Tell whether an error says that the memory ran out, on a GPU or on the CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError, OutOfMemory)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    )


def too_long(tokens: int) -> InputError:
    """Build the error for a batch of a single row that does not fit."""
    return InputError(
        f"data.max_length: not even one row of {tokens} tokens fits in memory: shorten the rows, set "
        "train.gradient_checkpointing: true, or choose a smaller model"
    )


def not_again(tokens: int) -> InputError:
    """Build the error for ranks of a split model that run out of memory during a pass of so many tokens."""
    return InputError(
        f"train.micro_tokens: memory ran out with {tokens:,} tokens a micro-batch, and under train.distributed: fsdp "
        "a pass cannot be started over: set fewer and resume"
    )


def not_between_ranks() -> InputError:
    """Build the error for a rank that runs out of memory while the ranks add up, when the others already wait."""
    return InputError(
        "train.micro_tokens: memory ran out while the ranks added up their sums, and the others may be one message "
        "ahead: set fewer tokens and resume"
    )


def give_back(device: torch.device) -> None:
    """Free memory that torch keeps for itself on a GPU, whose pieces may be of the wrong sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free(device: torch.device) -> int | None:
    """Return the bytes available now; None if the system does not tell."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    machine = _least(_line(Path("/proc/meminfo"), "MemAvailable:"), _left())
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if machine is None or limit is None or used is None:
        return machine
    cached = _line(_GROUP / "memory.stat", "inactive_file") or 0  # counted as used, and given up when needed
    return min(machine, limit - used + cached)


def whole() -> int | None:
    """Return the bytes that this process could have at most, alone on the machine; None if that is unknown."""
    return _least(
        _least(_line(Path("/proc/meminfo"), "MemTotal:"), _number(_GROUP / "memory.max")),
        _left(),
    )


def _left() -> int | None:
    """Return the bytes that this process's limits (`ulimit -v`, `ulimit -d`) leave to it; None without limits."""
    try:
        import resource
    except ImportError:  # no such limits on this system
        return None
    status, found = Path(f"/proc/{os.getpid()}/status"), None
    for limit, line in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most, used = resource.getrlimit(limit)[0], _line(status, line)
        if most != resource.RLIM_INFINITY and used is not None:
            found = _least(found, max(0, most - used))
    return found


def _least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two numbers, either of which may be unknown."""
    known = [number for number in (one, other) if number is not None]
    return min(known, default=None)


def peak(device: torch.device, work: Callable[[], None]) -> int | None:
    """Return the bytes in use at the peak of `work`, of this process or on its GPU; None if that is unknown."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device)
    process = Path(f"/proc/{os.getpid()}")
    try:
        (process / "clear_refs").write_text("5")  # reset the peak so far (proc(5))
    except OSError:
        return None
    work()
    return _line(process / "status", "VmHWM:")


def _line(path: Path, name: str) -> int | None:
    """Read the bytes that a line `name value [kB]` of a system file gives."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            value, *unit = line.removeprefix(name).split()
            return int(value) * (1024 if unit == ["kB"] else 1)
    return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # `max` means no limit
