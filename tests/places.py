"""Where things lie beside the tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
