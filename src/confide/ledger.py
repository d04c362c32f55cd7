"""What a run has spent: an append-only file, flushed to disk before a step's result is used."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confide.errors import InputError


def first_entry(path: Path) -> dict[str, Any]:
    """What a run was begun with.

    Raises:
        InputError: no run was begun there, or the line is damaged.
    """
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.readline())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path} is missing or damaged, and without it nobody knows what was trained")
    return found


class Ledger:
    """One JSON object a line, in the order of the steps.

    A step is written and flushed *before* its noised gradient moves the weights: whatever dies when, the
    ledger never knows of fewer steps than were taken. A resumed run repeats the steps since its last
    checkpoint with the same draws and the same noise. That spends nothing new: what the dead attempt computed
    since the checkpoint died with it, and where arithmetic repeats to the bit it is the same anyway. `record`
    checks that the repeated entry is the one that stands there instead of writing it twice.
    """

    def __init__(self, path: Path):
        self.path = path
        self.entries = self._read()
        self._stream = open(path, "ab")  # noqa: SIM115 - open for the life of the run

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            # The run died while writing this line, before its step was used: the line is not a step.
            with open(self.path, "r+b") as stream:
                stream.truncate(len(whole))
                stream.flush()
                os.fsync(stream.fileno())
        entries = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entries.append(json.loads(line))
            except ValueError:
                raise InputError(
                    f"{self.path} line {number} is damaged: the ledger cannot be trusted"
                ) from None
        return entries

    def record(self, number: int, entry: Mapping[str, Any]) -> None:
        """Write entry `number` (counted from 0), or check it against the one already there.

        Raises:
            InputError: the ledger has another entry at this place, or a gap would arise.
        """
        wanted = json.loads(json.dumps(entry))
        if number < len(self.entries):
            if self.entries[number] != wanted:
                old = self.entries[number]
                differing = [key for key in dict.fromkeys([*old, *wanted]) if old.get(key) != wanted.get(key)]
                if differing == ["generator"] and "generator" in old and "generator" in wanted:
                    raise InputError(
                        f"{self.path} line {number + 1}: this step was taken with noise by {old['generator']}, and "
                        f"would be taken again with other noise, by {wanted['generator']}: who saw both would see "
                        "less noise than is claimed; resume on the kind of device that it ran on"
                    )
                raise InputError(
                    f"{self.path} line {number + 1} records another step than this run would take (differs in "
                    f"{', '.join(differing)}): the run folder does not belong to this config and its files, or another "
                    "version of confide began it"
                )
            return
        if number > len(self.entries):
            raise InputError(
                f"{self.path} ends at line {len(self.entries)}, before step {number}: lines are missing"
            )
        self._stream.write(json.dumps(wanted).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.entries.append(wanted)

    def close(self) -> None:
        self._stream.close()
