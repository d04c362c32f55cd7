"""How much memory there is, how much a piece of work took at its peak, and whether it did not suffice."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from confide.utils.errors import InputError

_GROUP = Path("/sys/fs/cgroup")  # of a container, whose limit is below the machine's

# As torch's allocator on a CPU says it, oneDNN, CUDA's driver, and its libraries where they find no room for what they
# need.
_WORDS = (
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory object",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class OutOfMemory(Exception):
    """The memory of some rank did not suffice; what was computed so far is of no use."""


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on a GPU or on the CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError, OutOfMemory)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    )


def too_long(tokens: int) -> InputError:
    """What is to be said where a batch of a single row does not fit."""
    return InputError(
        f"data.max_length: not even one row of {tokens} tokens fits in memory: shorten the rows, set "
        "train.gradient_checkpointing: true, or choose a smaller model"
    )


def not_again(tokens: int) -> InputError:
    """What is to be said where the ranks of a split model are in the middle of a pass of so many tokens."""
    return InputError(
        f"train.micro_tokens: memory ran out with {tokens:,} tokens a micro-batch, and under train.distributed: fsdp "
        "a pass cannot be started over: set fewer and resume"
    )


def give_back(device: torch.device) -> None:
    """Let go of memory that torch keeps for itself on a GPU, whose pieces may be of the wrong sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free(device: torch.device) -> int | None:
    """Bytes that can be had now; None where the system does not tell."""
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
    """Bytes that this process could have at most, were it alone on the machine; None where the system does not tell."""
    return _least(
        _least(_line(Path("/proc/meminfo"), "MemTotal:"), _number(_GROUP / "memory.max")),
        _left(),
    )


def _left() -> int | None:
    """What the limits of this process (`ulimit -v`, `ulimit -d`) leave to it; None where there are none."""
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
    """The smaller of two numbers, of which one may be unknown."""
    known = [number for number in (one, other) if number is not None]
    return min(known, default=None)


def peak(device: torch.device, work: Callable[[], None]) -> int | None:
    """Bytes in use at the peak of `work`, of this process or on its GPU; None where the system does not tell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device)
    process = Path(f"/proc/{os.getpid()}")
    try:
        (process / "clear_refs").write_text("5")  # the peak so far is forgotten (proc(5))
    except OSError:
        return None
    work()
    return _line(process / "status", "VmHWM:")


def _line(path: Path, name: str) -> int | None:
    """The bytes that a line `name value [kB]` of a system file gives."""
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
    return int(text) if text.isdigit() else None  # `max` is no limit
