"""Kill it anywhere, start it again: the same weights bit for bit, the same ledger, the same claim. Pitfall 15.

`python -m tests.test_kills 50` kills each kind of command so many times, two ranks with split weights among them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from confide.randomness.streams import RunKey
from tests.command import World, confide, environment, files_below, tiny_model

SOME, MANY = 4, 12  # kills of a kind in the tests
SELECTIVE = {"detector__expressions": {"place": "store room"}, "detector__recall": 1.0, "redacted__steps": 6}
KINDS: dict[str, dict[str, object]] = {
    "train": {},
    "two phases": {"privacy__mechanism": "selective", "data__unit": None} | SELECTIVE,
    "audit": {"canaries__count": 20, "canaries__digits": 3},
    "fsdp": {"train__distributed": "fsdp"},
}


@dataclass(frozen=True)
class Killed:
    """A command on a folder, which is made anew from `start` before it begins.

    Attributes:
        start: the run folder that the command finds: a key, or a finished run.
    """

    world: World
    arguments: tuple[object, ...]
    start: Path
    ranks: int = 1

    def begin(self) -> None:
        shutil.rmtree(self.world.run, ignore_errors=True)
        shutil.copytree(self.start, self.world.run)

    def whole(self) -> None:
        """The command, to its end."""
        if self.ranks == 1:
            result = confide(*self.arguments)
            assert result.code == 0, result
        else:
            assert self._launched().wait(timeout=300) == 0

    def killed(self, delay: float) -> bool:
        """The command, killed after `delay` seconds; whether it was still at work then."""
        if self.ranks > 1:
            process = self._launched()
            time.sleep(delay)
            working = process.poll() is None
            if working:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return working
        child = os.fork()
        if child == 0:
            try:
                os._exit(confide(*self.arguments).code)
            finally:
                os._exit(99)
        time.sleep(delay)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return False
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True

    def _launched(self) -> subprocess.Popen[bytes]:
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.ranks),
        ]
        command = [*launch, "-m", "confide", *map(str, self.arguments)]
        return subprocess.Popen(
            command,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def made(folder: Path, model: Path, kind: str) -> Killed:
    world = World(folder, model).set(train__steps=12, train__checkpoint_every=3, **KINDS[kind])
    if kind == "audit":
        assert confide("train", world.path).code == 0
        shutil.move(world.run, folder / "start")
        return Killed(world, ("audit", world.run, "--attacks", "claim"), folder / "start")
    (folder / "start").mkdir(mode=0o700)
    RunKey.create(folder / "start" / "key")  # a secret one, and the same for every run
    return Killed(world, ("train", world.path), folder / "start", 2 if kind == "fsdp" else 1)


def outcome(run: Path) -> dict[str, bytes | object]:
    """All that a run ends with, without times."""
    found: dict[str, bytes | object] = {
        name: data
        for name, data in files_below(run).items()
        if name.startswith("release/") or name in ("ledger.jsonl", "evidence.json")
    }
    if (run / "audit.json").exists():
        found["audit.json"] = json.loads((run / "audit.json").read_bytes())
    return found


def kill(job: Killed, kills: int) -> int:
    """Kill the command so many times and see what it comes to; returns how often it came to its end."""
    job.begin()
    job.whole()
    expected = outcome(job.world.run)
    job.begin()
    began = time.monotonic()
    job.whole()  # again, with caches filled
    length = time.monotonic() - began
    assert outcome(job.world.run) == expected
    generator, done, finished, attempt = random.Random(time.time_ns()), 0, 0, 0
    job.begin()
    while done < kills or not finished:
        attempt += 1
        assert attempt < 40 * kills, "the run makes no progress between kills"
        if job.killed(generator.uniform(0, 1.5 * length)):
            done += 1
            continue
        job.whole()
        found = outcome(job.world.run)
        assert found.keys() == expected.keys()
        assert not [name for name in expected if found[name] != expected[name]]
        finished += 1
        job.begin()
    return finished


@pytest.mark.parametrize(
    ("kind", "kills"), [("train", SOME), ("train", MANY), ("two phases", SOME), ("audit", SOME)]
)
def test_killed_at_random_moments(tmp_path, model, kind, kills):
    assert kill(made(tmp_path, model, kind), kills) >= 1


def main(kills: int) -> None:
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "world"
            place.mkdir()
            finished = kill(made(place, tiny_model(Path(folder)), kind), kills)
            print(
                f"{kind}: killed {kills} times, came to its end {finished} times, always the same", flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
