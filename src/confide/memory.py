"""How much memory there is, and how much a piece of work took at its peak."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

_GROUP = Path("/sys/fs/cgroup")  # of a container, whose limit is below the machine's


def free(device: torch.device) -> int | None:
    """Bytes that can be had now; None where the system does not tell."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    machine = _line(Path("/proc/meminfo"), "MemAvailable:")
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if machine is None or limit is None or used is None:
        return machine
    cached = _line(_GROUP / "memory.stat", "inactive_file") or 0  # counted as used, and given up when needed
    return min(machine, limit - used + cached)


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
