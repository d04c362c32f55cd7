"""Identify the code that takes a step: the version of confide, and a digest of its sources."""

import hashlib
from functools import cache
from pathlib import Path

import confide

_SHORT = 8  # hex digits: enough to tell versions apart, no protection against forgery


@cache
def code_version() -> str:
    """Return for example `0.1.0+3f9c2b1a`: it differs between two installations that differ in any source file."""
    package = Path(confide.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(source)}\n".encode() + source)
    return f"{confide.__version__}+{digest.hexdigest()[:_SHORT]}"
