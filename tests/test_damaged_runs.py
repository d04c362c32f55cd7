"""Whatever happens to the files of a run: it is refused in one sentence, or it comes to the same release. Pitfall 33.

`python -m tests.test_damaged_runs 300` tries so many run folders of each kind, where the tests try a few.
"""

import collections
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command import MARKER, Result, World, confide, files_below, tiny_model

# What each kind of run adds to the config of the small world, and what is done to it once it is trained.
SELECTIVE = {"detector__expressions": {"place": "store room"}, "detector__recall": 1.0, "redacted__steps": 3}
KINDS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "steps that are audited": (
        {"canaries__count": 6, "canaries__digits": 3, "train__average": {"kind": "ema"}},
        ("--attacks", "claim"),
    ),
    "adaptive": ({"privacy__mechanism": "adaptive", "data__unit": None}, ()),
    "two phases": ({"privacy__mechanism": "selective", "data__unit": None} | SELECTIVE, ()),
}
TRIED = 14  # of each kind in the tests
VERBS = ("train", "release", "eval", "audit")  # `release`: train, after the release is removed


@dataclass(frozen=True)
class Sealed:
    """A finished run, and another one of the same config, whose files would fit in their places."""

    world: World
    finished: Path
    other: Path
    audit: tuple[str, ...]

    def restore(self) -> Path:
        shutil.rmtree(self.world.run, ignore_errors=True)
        shutil.copytree(self.finished, self.world.run, symlinks=True)
        return self.world.run


def made(folder: Path, model: Path, kind: str) -> Sealed:
    settings, audit = KINDS[kind]
    world = World(folder, model).set(**settings)
    for name in ("other", "finished"):
        for arguments in ((), ("--twin",)):
            result = confide("train", world.path, *arguments)
            assert result.code == 0, result.err
        if audit:
            assert confide("audit", world.run, *audit).code == 0
        shutil.move(world.run, folder / name)
    return Sealed(world, folder / "finished", folder / "other", audit)


def damage(generator: random.Random, run: Path, other: Path) -> str:
    """Do one thing to one file of the run, as a disk, a script or a tired person might; what was done, in words."""
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    name = generator.choice(files)
    path, data = run / name, bytearray((run / name).read_bytes())
    ways = ["flip", "cut", "remove", "zeros", "insert", "empty", "braces", "double"]
    ways += ["other's"] * 2 * (other / name).is_file() + ["twin's"] * 2 * (run / "twin" / name).is_file()
    ways += ["renumber"] * 2 * (name.parts[0] == "checkpoints")
    way = generator.choice(ways)
    place = generator.randrange(len(data))
    match way:
        case "flip":
            data[place] ^= 1 << generator.randrange(8)
        case "cut":
            del data[place:]
        case "zeros":
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        case "insert":
            data[place:place] = generator.randbytes(3)
        case "empty":
            data.clear()
        case "braces":
            data[:] = generator.choice([b"{}", b"[]", b"3\n", b"null", b'{"done": null}\n', b"\xff\xfe\x00"])
        case "double":
            data *= 2
        case "other's":
            data[:] = (other / name).read_bytes()
        case "twin's":
            data[:] = (run / "twin" / name).read_bytes()
    if way == "remove":
        path.unlink()
    elif way == "renumber":
        path.parent.rename(path.parent.with_name(f"step-{generator.randrange(1, 7):08}"))
    else:
        path.write_bytes(data)
    return f"{way} at {place} of {name}"


def after(sealed: Sealed, verb: str, run: Path) -> Result:
    match verb:
        case "release":
            shutil.rmtree(run / "release", ignore_errors=True)
            return confide("train", sealed.world.path)
        case "audit":
            return confide("audit", run, *(sealed.audit or ("--attacks", "extraction")))
        case _:
            return confide(verb, sealed.world.path if verb == "train" else run)


def released(run: Path) -> dict[str, bytes]:
    """What may leave the house: the weights and the claim."""
    return {
        name: data
        for name, data in files_below(run / "release").items()
        if name.endswith(("model.safetensors", "guarantee.json"))
    }


def try_one(sealed: Sealed, kind: str, seed: int) -> int:
    """Damage the run and go on; its exit code, if that is right."""
    generator, run = random.Random(f"{kind} {seed}"), sealed.restore()
    verb, what = generator.choice(VERBS), damage(generator, run, sealed.other)
    result = after(sealed, verb, run)
    told = (
        f"{kind}, number {seed}: {verb} after {what}: {result.code} {result.out[-500:]} {result.err[-2000:]}"
    )
    assert result.code in (0, 2), told
    assert "Traceback" not in result.err, told
    assert MARKER not in result.err + result.out, told
    if result.code == 2:
        assert len([line for line in result.err.splitlines() if line.startswith("confide: ")]) == 1, told
    elif verb in ("train", "release"):
        assert released(run) == released(sealed.finished), told
    return result.code


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_run_is_refused_or_comes_to_the_same(tmp_path, model, kind):
    sealed = made(tmp_path, model, kind)
    codes = collections.Counter(try_one(sealed, kind, seed) for seed in range(TRIED))
    assert set(codes) == {0, 2}, codes  # some damage is mended, some is refused


def main(count: int) -> None:
    """Try so many of each kind, tell of those that go wrong, and go on."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        for number, kind in enumerate(KINDS):
            place = Path(folder) / str(number)
            place.mkdir()
            sealed, codes = made(place, model, kind), collections.Counter()
            for seed in range(count):
                try:
                    codes[try_one(sealed, kind, seed)] += 1
                except AssertionError as error:
                    codes["wrong"] += 1
                    print(error, flush=True)
            print(f"{kind}: {dict(codes)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
