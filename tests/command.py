"""The command line as a test runs it, and a small world to run it in: texts, a tiny model, a config."""

import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import yaml

from confide import cli
from tests import small
from tests.places import ROOT

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the first is ten times as fast, where there is one
SOURCES = Path(cli.__file__).resolve().parents[2]  # those under test, wherever they lie
MARKER = "xylograph"  # stands in every text; nothing outside data/ may show it
SECRET = "zugzwang"  # stands in the faulty rows; no message may show it
WORDS = "the printer on floor three is out of paper again and nobody has a key to the store room".split()


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def confide(*arguments: object) -> Result:
    """`confide ARGUMENTS`, in this process, through the entry point of the command."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["confide", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        # As a user sees them, and not as pytest collects them.
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", FutureWarning)
        warnings.showwarning = lambda message, kind, *_: print(f"{kind.__name__}: {message}", file=err)
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Result(code, out.getvalue(), err.getvalue())


def command(*arguments: object) -> list[str]:
    """The same as a command of its own, for `subprocess`."""
    return [sys.executable, "-m", "confide", *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{SOURCES}:{ROOT}", "OMP_NUM_THREADS": "1"}


def confide_apart(*arguments: object, **settings) -> Result:
    """`confide ARGUMENTS` in a process of its own."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=500, **settings
    )
    return Result(done.returncode, done.stdout, done.stderr)


class World:
    """A folder with `text.jsonl`, a tiny model and `config.yaml`; tests change one thing and run."""

    def __init__(self, folder: Path, model: Path):
        self.folder, self.run = folder, folder / "run"
        self.text = self.rows(folder / "text.jsonl")
        self.path = folder / "config.yaml"
        self.raw = {
            "model": str(model),
            "tokenizer": "bundled",
            "data": {"train": str(self.text), "unit": "user", "eval": 0.3, "max_length": 16},
            "privacy": {"noise_multiplier": 0.8, "rows_per_unit": 2, "delta": 1e-3},
            "train": {"steps": 4, "batch": 4.0, "checkpoint_every": 2, "learning_rate": 0.01},
            "run": str(self.run),
        }
        self.save()

    def rows(self, path: Path, users: int = 16, seed: int = 1, **fields) -> Path:
        generator = random.Random(seed)
        with open(path, "w") as stream:
            for user in range(users):
                for number in range(generator.randint(1, 4)):
                    text = " ".join([MARKER, *(generator.choice(WORDS) for _ in range(12))])
                    row = {
                        "user": f"person{user}",
                        "text": text,
                        "kind": ("good", "bad")[number % 2],
                        **fields,
                    }
                    stream.write(json.dumps(row) + "\n")
        return path

    def set(self, **changes) -> "World":
        """Change the config: `data__unit="from"` sets `data.unit`; None of a whole section's key stays None."""
        for name, value in changes.items():
            section, _, key = name.rpartition("__")
            (self.raw.setdefault(section, {}) if section else self.raw)[key] = value
        return self.save()

    def drop(self, section: str, key: str) -> "World":
        del self.raw[section][key]
        return self.save()

    def save(self) -> "World":
        self.path.write_text(yaml.dump(self.raw, Dumper=DUMPER))
        return self

    def write(self, content: str | bytes, name: str = "text.jsonl") -> "World":
        """Other content for the text file, or another file to train on."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.set(data__train=str(path))


def refused(result: Result, pattern: str, lines: int = 1) -> None:
    """Exit code 2 and one sentence, after at most the resolved config and progress messages."""
    assert result.code == 2, result
    assert "Traceback" not in result.err
    assert not [word for word in (MARKER, SECRET) if word in result.err + result.out]
    said = [line for line in result.err.splitlines() if line.startswith("confide: ")]
    assert len(said) == 1, result.err
    assert result.err.splitlines()[-lines].startswith("confide: ")
    assert re.search(pattern, " ".join(result.err.splitlines()[-lines:])), said
    assert len(said[0]) < 400, said
    says_nothing_else(result)


def says_nothing_else(result: Result) -> None:
    """Nothing is on standard output but, with --json, what went wrong."""
    if result.out:
        told = json.loads(result.out)
        assert told == {"error": {"exit_code": result.code, "message": told["error"]["message"]}}
        assert result.err.endswith(f"confide: {told['error']['message']}\n")


def nothing_half_written(folder: Path) -> None:
    names = [path.name for path in folder.rglob("*") if path.name != ".lock"]
    assert not [name for name in names if name.startswith(".") or name.endswith((".new", ".part", ".tmp"))]


def recorded(run: Path) -> list[int]:
    """The steps that a run's ledger knows of."""
    return [json.loads(line)["step"] for line in (run / "ledger.jsonl").read_text().splitlines()[1:]]


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file of a tree by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tiny_model(folder: Path) -> Path:
    """A folder with weights and config of the tiny GPT-2, and the bundled tokenizer beside them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

    from confide.models.names import location

    settings = GPT2Config.from_pretrained(small.config_file(folder).parent)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(settings).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(location("bundled")).save_pretrained(folder / "model")
    return folder / "model"
