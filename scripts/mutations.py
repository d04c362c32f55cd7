"""Put each known fault into a copy of the sources and see that a test fails: python scripts/mutations.py [-k WORDS]

A check that cannot fail checks nothing. Every fault of `known_faults` names the pitfall, where it goes in, and the
tests that must notice it. What came of each is kept in a file: a run that was cut off goes on, and a fault is tried
again where its file, its tests or itself have changed. Exit code 1 if a fault survives, or can no longer be put in; 2
if none is so named.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

from fault import CannotBePutIn, Fault, put_in
from known_faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 900  # seconds that a fault's tests may take
# Nothing of confide: what takes longest to import is imported once, and each fault is tried in a fork.
HEAVY = (
    "pytest hypothesis numpy scipy.stats scipy.optimize scipy.sparse torch torch.distributed torch.utils.tensorboard "
    "transformers transformers.models.auto.modeling_auto transformers.models.gpt2.modeling_gpt2 peft "
    "dp_accounting.pld dp_accounting.rdp safetensors.torch tokenizers pydantic yaml cryptography"
)
NOTICED, SURVIVED, STUCK = "noticed", "SURVIVED", "CANNOT BE PUT IN"


@dataclass(frozen=True)
class Outcome:
    """What came of a fault.

    Attributes:
        what: NOTICED, SURVIVED or STUCK.
        why: the first test that failed, how pytest ended, or why the fault could not be put in.
    """

    what: str
    why: str


def try_out(fault: Fault, copy: Path) -> Outcome:
    """Put the fault into a copy of the project, run its tests there, and take it out again."""
    try:
        path, text = put_in(fault, copy / "src" / "confide")
    except CannotBePutIn as error:
        return Outcome(STUCK, str(error))
    before = path.read_text("utf-8")
    path.write_text(text, "utf-8")
    try:
        return judged(*_tested(shlex.split(fault.tests), copy))
    finally:
        path.write_text(before, "utf-8")


def judged(code: int | None, said: str) -> Outcome:
    """What the exit code of pytest says of a fault: tests that fail notice it. None: they took too long."""
    if code == 1:
        failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return Outcome(NOTICED, failed[0][:200] if failed else "")
    if code == 2 and "error during collection" in said:
        return Outcome(NOTICED, "the tests cannot be imported")
    last = said.strip().splitlines()[-1:] or [""]
    return Outcome(SURVIVED, f"pytest ended with {code}: {last[0]}" if code != 0 else last[0])


def _tested(tests: list[str], copy: Path) -> tuple[int | None, str]:
    """Exit code and output of pytest in a fork of this process; None if it took too long."""
    log = copy / ".faults.log"
    child = os.fork()
    if child == 0:
        _be_pytest(["-x", "-q", "--all", "--no-header", "-p", "no:cacheprovider", *tests], copy, log)
    code, began = None, time.monotonic()
    try:
        while time.monotonic() - began < LONGEST:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.2)
    finally:
        _end(child, code is None)
    return code, log.read_text("utf-8", "replace")


def _be_pytest(arguments: list[str], copy: Path, log: Path) -> None:
    """Never returns."""
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with open(log, "wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.chdir(copy)
        sys.path[:0] = [str(copy / "src"), str(copy)]
        os.environ["PYTHONPATH"] = f"{copy / 'src'}:{copy}"
        code = int(import_module("pytest").main(arguments))
        sources = sys.modules.get("confide")
        if sources is not None and not str(sources.__file__).startswith(str(copy)):
            print(f"not the copy was tested, but {sources.__file__}", flush=True)
            code = 98
    finally:
        sys.stdout.flush()
        os._exit(code)


def _end(child: int, still_runs: bool) -> None:
    """Whatever a fault's tests have started ends with them."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if still_runs:
        os.waitpid(child, 0)


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the project, beside which lies what lies beside the project."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "copy"
        left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=left_out)
        if (ROOT.parent / "shared").is_dir():
            (copy.parent / "shared").symlink_to(ROOT.parent / "shared")
        yield copy


def name(fault: Fault, copy: Path) -> str:
    """Changes with the fault, the file that it goes into, and the files of its tests."""
    digest = hashlib.sha256(repr(fault).encode())
    try:
        path, text = put_in(fault, copy / "src" / "confide")
        digest.update(f"{path.name}\0{text}".encode())
    except CannotBePutIn:
        pass
    for file in fault.files():
        path = copy / file
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(each.read_bytes() if each.exists() else b"")
    return digest.hexdigest()[:20]


class Kept:
    """Outcomes of this run and of those before, one a line. One that was noticed is not tried again."""

    def __init__(self, path: Path, again: bool):
        self._path = path
        lines = path.read_text("utf-8").splitlines() if path.exists() and not again else []
        self._known = {entry["name"]: entry for entry in map(json.loads, lines)}
        if again:
            path.unlink(missing_ok=True)

    def get(self, named: str) -> Outcome | None:
        entry = self._known.get(named)
        return None if entry is None or entry["outcome"] != NOTICED else Outcome(NOTICED, entry["why"])

    def add(self, named: str, fault: Fault, outcome: Outcome, seconds: float) -> None:
        entry = {"name": named, "row": fault.row, "fault": fault.what}
        entry |= {"outcome": outcome.what, "why": outcome.why, "seconds": round(seconds, 1)}
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")


def chosen(words: list[str]) -> list[Fault]:
    """The faults whose row is one of the words, or whose sentence or place has one in it."""

    def fits(fault: Fault) -> bool:
        said = f"{fault.what} {fault.place}"
        return any(word == fault.row or (word in said and not word.isdecimal()) for word in words)

    found = [fault for fault in FAULTS if not words or fits(fault)]
    return sorted(found, key=lambda fault: "test_distributed" in fault.tests)  # which take longest


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "-k", action="append", default=[], metavar="WORDS", help="a row, or part of a fault's sentence"
    )
    parser.add_argument("--again", action="store_true", help="try those that were noticed before as well")
    parser.add_argument("--kept", type=Path, default=ROOT / ".faults.jsonl", help="where outcomes are kept")
    arguments = parser.parse_args()
    faults = chosen(arguments.k)
    if not faults:
        print(f"no fault is named so: {', '.join(arguments.k)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    kept, counts, bad = Kept(arguments.kept, arguments.again), Counter[str](), list[str]()
    with copied() as copy:
        for module in HEAVY.split():
            import_module(module)
        for number, fault in enumerate(faults, 1):
            began, named = time.monotonic(), name(fault, copy)
            outcome = kept.get(named)
            before = "" if outcome is None else " (before)"
            if outcome is None:
                outcome = try_out(fault, copy)
                kept.add(named, fault, outcome, time.monotonic() - began)
            counts[outcome.what] += 1
            line = f"{fault.row}: {fault.what}: {outcome.what}{before}: {outcome.why}"
            print(f"{number}/{len(faults)} {time.monotonic() - began:.0f} s  {line}", flush=True)
            if outcome.what != NOTICED:
                bad.append(line)
    print(f"{len(faults)} faults: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print("\n".join(bad))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
