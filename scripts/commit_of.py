"""Find the commit whose code a version names, such as the one beside each table of results.

    python scripts/commit_of.py 0.1.0+05d05198

It asks git for the files of one commit after the other, the newest first: some hundred commits take half a minute.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from confide.runs.provenance import digest_of

ROOT = Path(__file__).parents[1]
PACKAGE = "src/confide"


def commits(root: Path = ROOT) -> Iterator[str]:
    """Yield the commits that changed the package, the newest first."""
    yield from _git(root, "log", "--format=%H", "--", PACKAGE).decode().split()


def digest(commit: str, root: Path = ROOT) -> str:
    """Return the digest of the package at a commit, as a version has it behind the plus."""
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", commit, PACKAGE))) as files:
        sources = {
            PurePosixPath(each.name).relative_to(PACKAGE): file.read()
            for each in files
            if each.name.endswith(".py") and (file := files.extractfile(each)) is not None
        }
    return digest_of(sources)


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True).stdout


def main(version: str, root: Path = ROOT) -> int:
    """Print the commit of a version; status 1 if there is none."""
    wanted = version.rpartition("+")[2]
    for commit in commits(root):
        if digest(commit, root) == wanted:
            print(_git(root, "log", "-1", "--format=%H %as %s", commit).decode().strip())
            return 0
    print(f"no commit has the code of {version}: it was measured with changes that were not committed")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/commit_of.py VERSION")
    sys.exit(main(sys.argv[1]))
