"""Files that match a pattern, found in bounded time, and checks for paths that no file can have."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from confide.utils.errors import InputError

_MOST = 1_000_000  # files and folders that are visited
_UNREAL = ("/proc", "/sys", "/dev")  # folders of the system, whose files may never end


def check_path(name: str, key: str = "data") -> None:
    """Raise InputError for a path that no file system takes."""
    if "\0" in name or re.search("[\ud800-\udfff]", name):
        raise InputError(f"{key}: the path {name!r} holds a character that no path may have.")


def matching(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, sorted; `**` stands for any folders, and follows no link to one.

    Raises InputError if it would visit more than a million files and folders.
    """
    path = Path(pattern)
    start = Path(path.anchor)
    parts = path.parts[1:] if path.anchor else path.parts
    found = {Path(each) for each in _Search(pattern).expand(str(start), parts)}
    return sorted(found, key=str)


class _Search:
    """One search, which counts the files and folders that it visits."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._looked_at = pattern, 0

    def expand(self, base: str, parts: tuple[str, ...]) -> Iterator[str]:
        """Yield the paths below a folder that the parts of a pattern match."""
        if not parts:
            yield base
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self.expand(base, rest or ("*",))
            for entry in self._entries(base):
                path = os.path.join(base, entry.name)
                real = os.path.abspath(path) not in _UNREAL
                if real and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield from self.expand(path, parts)
        elif glob.has_magic(part):
            for entry in self._entries(base):
                if fnmatch(entry.name, part) and (part[0] == "." or not entry.name.startswith(".")):
                    yield from self.expand(os.path.join(base, entry.name), rest)
        else:
            path = os.path.join(base, part)
            if os.path.lexists(path):
                yield from self.expand(path, rest)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._looked_at += 1
                    if self._looked_at > _MOST:
                        raise InputError(
                            f"{self._pattern}: to find what matches, more than {_MOST:,} files and folders would be "
                            "looked at; give a narrower pattern."
                        )
                    found.append(entry)
        except OSError:  # no folder, or one that may not be listed: nothing in it matches
            return []
        return found
