"""Put each known fault into a copy of the sources and see that a test fails: python scripts/faults.py [NUMBER ...]

A check that cannot fail checks nothing. Every row of `known_faults` names the pitfall, where the fault goes in, and the
tests that must notice it. Exit code 1 if a fault goes unnoticed, or can no longer be put in; 2 if none is so named.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fault import Fault
from known_faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]


def noticed(fault: Fault, folder: Path) -> str:
    """What happened: "noticed", "NOT NOTICED", or why the fault could not be put in."""
    sources = folder / "src"
    shutil.copytree(ROOT / "src", sources)
    path = sources / "confide" / fault.file
    text = path.read_text()
    if fault.old not in text:
        return "CANNOT BE PUT IN: the sources have changed"
    path.write_text(text.replace(fault.old, fault.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests.split()]
    environment = os.environ | {"PYTHONPATH": str(sources)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return "noticed" if result.returncode == 1 else f"NOT NOTICED (pytest ended with {result.returncode})"


def main() -> int:
    wanted = set(sys.argv[1:])
    if unknown := wanted - {fault.number for fault in FAULTS}:
        print(f"no fault is named {min(unknown)}", file=sys.stderr)
        return 2
    unnoticed = 0
    for fault in FAULTS:
        if wanted and fault.number not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = noticed(fault, Path(folder))
        unnoticed += outcome != "noticed"
        print(f"{fault.number:>6}  {fault.what}: {outcome}", flush=True)
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
