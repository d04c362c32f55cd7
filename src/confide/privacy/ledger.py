"""The record of what a run has spent: an append-only file, flushed to disk before a step's result is used."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confide.utils.errors import InputError


def first_entry(path: Path) -> dict[str, Any]:
    """Read the entry with which a run began.

    Raises:
        InputError: no run began there, or the line is damaged.
    """
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.readline())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is missing or damaged, and without it nobody knows what was trained")
    return found


def digest(path: Path, steps: int) -> bytes:
    """Compute SHA-256 of the lines from the first to that of step number `steps`.

    Lines of steps that were taken again are left out.

    Raises:
        InputError: there are fewer lines, or one is damaged.
    """
    plain, missing = hashlib.sha256(), steps + 1
    if path.exists():
        data = path.read_bytes()
        for line, entry in _entries(path, data[: data.rfind(b"\n") + 1]):
            if "again" not in entry:
                plain.update(line + b"\n")
                missing -= 1
            if not missing:
                break
    if missing:
        raise InputError(
            f"{path} does not record every step up to {steps}, which the checkpoint has taken: lines are missing, and "
            "the ledger cannot be trusted"
        )
    return plain.digest()


def versions(path: Path) -> list[str]:
    """Return the versions of confide that took steps, in the order of their first step."""
    if not path.exists():
        return []
    data = path.read_bytes()
    found = [entry.get("confide") for _, entry in _entries(path, data[: data.rfind(b"\n") + 1])]
    return [version for version in dict.fromkeys(found) if isinstance(version, str)]


def _entries(path: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            raise InputError(f"{path} line {number} is damaged: the ledger cannot be trusted")
        yield line, entry


class Ledger:
    """One JSON object a line, in the order of the steps.

    A step is written and flushed *before* its noised gradient moves the weights: whatever dies when, the ledger never
    knows of fewer steps than were taken. A resumed run repeats the steps since its last checkpoint with the same draws
    and the same noise. That spends nothing new: everything the dead attempt computed since the checkpoint is lost, and
    where arithmetic repeats to the bit it is the same anyway. `record` does not write a repeated entry twice; it
    checks that the entry equals the one in the file. Each entry names the version of confide that took the step. If
    another version repeats the step, a line `{"again": ...}` says so.
    """

    def __init__(self, path: Path):
        self.path = path
        self.entries: list[dict[str, Any]] = []
        self._again: list[dict[str, Any]] = []
        self._read()
        self._stream = open(path, "ab")  # noqa: SIM115 - open for the life of the run

    def _read(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        found = list(_entries(self.path, whole))
        if len(whole) < len(data):
            # The run died while it wrote this line, before it used the step, so the line is not a step.
            with open(self.path, "r+b") as stream:
                stream.truncate(len(whole))
                stream.flush()
                os.fsync(stream.fileno())
        for _, entry in found:
            (self._again if "again" in entry else self.entries).append(entry)

    def record(self, number: int, entry: Mapping[str, Any]) -> None:
        """Write entry `number` (counted from 0), or check it against the one already there.

        Raises:
            InputError: the ledger has another entry at this place, or a gap would arise.
        """
        wanted = json.loads(json.dumps(entry))
        if number < len(self.entries):
            self._repeat(number, self.entries[number], wanted)
            return
        if number > len(self.entries):
            raise InputError(
                f"{self.path} ends at line {len(self.entries)}, before step {number}: lines are missing"
            )
        self._write(wanted)
        self.entries.append(wanted)

    def refuse_gaps(self) -> None:
        """Check that every step has its line.

        Raises:
            InputError: one has none.
        """
        recorded = [entry.get("step") for entry in self.entries[1:]]
        if recorded != list(range(len(recorded))):
            raise InputError(
                f"{self.path} does not record every step: lines are missing, and it cannot be trusted"
            )

    def refuse_another_generator(self, generator: str) -> None:
        """Check that all steps so far had the noise of one generator, where later noise takes back earlier noise.

        Raises:
            InputError: one had another.
        """
        others = {entry.get("generator", generator) for entry in self.entries[1:]} - {generator}
        if others:
            raise InputError(
                f"correlated noise: steps of this run were taken with noise by {min(others)}, and would go on with "
                f"noise by {generator}, which cannot take the former back; resume on the kind of device that it ran on"
            )

    def _repeat(self, number: int, old: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Check an entry against the one already in the file."""
        names = dict.fromkeys([*old, *wanted])
        differing = [name for name in names if old.get(name) != wanted.get(name) and name != "confide"]
        if differing == ["generator"] and "generator" in old and "generator" in wanted:
            raise InputError(
                f"{self.path} line {number + 1}: this step was taken with noise by {old['generator']}, and "
                f"would be taken again with other noise, by {wanted['generator']}: who saw both would see "
                "less noise than is claimed; resume on the kind of device that it ran on"
            )
        if differing:
            raise InputError(
                f"{self.path} line {number + 1} records another step than this run would take (differs in "
                f"{', '.join(differing)}): the run folder does not belong to this config and its files, or another "
                "version of confide began it"
            )
        again = {"again": number, "confide": wanted.get("confide")}
        if old.get("confide") != wanted.get("confide") and again not in self._again:
            self._write(again)
            self._again.append(again)

    def _write(self, entry: dict[str, Any]) -> None:
        self._stream.write(json.dumps(entry).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()
