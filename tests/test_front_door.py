"""Every command that README.md and the tutorial show is run, in the order in which they stand there.

Each page has a folder of its own with made-up mails in it. A command is run in a shell as it stands. Only what
`smaller` says is changed: sizes, steps, and where a model lies. What is not run stands in NOT_RUN with the reason. No
table may hold what its page does not.
"""

import json
import mailbox
import os
import random
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from email.message import EmailMessage
from functools import cached_property
from pathlib import Path

import pytest

from tests.command import WORDS, environment
from tests.pages import DOCS, README, Page

NOT_RUN = {
    "bash scripts/quickstart.sh": "it asks a package index: tests/test_wheel.py installs, and runs quickstart",
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt . && source .venv/bin/activate": (
        "it asks a package index: tests/test_wheel.py installs the wheel into an environment of its own"
    ),
}

FEW = "train.steps=2 train.batch=4 data.max_length=16 canaries.count=20 canaries.digits=3"
FEW_ATTACKS = "--users 4 --secrets 1 --ranks sampled --draws 100 --prefix 4 --suffix 4 --samples 1"

# 2 s on two idle cores; with torch it would be 6.
QUICK = {"confide report": 5.0}
"""Seconds of processor time that a command may take, in the better of two tries."""

CROWDED = 2.0
"""Above so many waiting processes a processor no time is judged: caches are then shared by too many."""


@dataclass(frozen=True)
class Door:
    """A page whose commands are run.

    Attributes:
        writes: the config that its YAML block is, written where it stands; "" if the block only shows one.
        smaller: (part of a command, what stands in its place); the longest part that a command has is taken.
        makes: by the beginning of a command, the files that it makes, each with the words by which the page says so.
    """

    page: Page
    writes: str
    smaller: Mapping[str, str]
    makes: Mapping[str, Mapping[str, str]]

    @cached_property
    def commands(self) -> list[tuple[str, str]]:
        """Return (kind, code): a line of a shell, a program or a config, in the order of the page."""
        found = []
        for kind, code in self.page.kinds_and_blocks("sh", "python", "yaml"):
            if kind == "sh":
                lines = code.replace("\\\n", " ").splitlines()
                bare = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines]
                found += [(kind, line) for line in bare if line]
            elif kind == "python" or self.writes:
                found.append((kind, code))
        return found

    def made_smaller(self, code: str) -> str:
        parts = sorted((part for part in self.smaller if part in code), key=len)
        return code.replace(parts[-1], self.smaller[parts[-1]]) if parts else code

    def files(self, code: str) -> list[str]:
        """Return the files that a command makes, by the table and by its own --out."""
        listed = [name for part, files in self.makes.items() if code.startswith(part) for name in files]
        return [*listed, *re.findall(r"--out (\S+)", code)]


DOORS = {
    "README": Door(
        README,
        writes="",
        smaller={
            "confide plan mail.yaml": f"confide plan mail.yaml {FEW}",
            "confide train mail.yaml": f"confide train mail.yaml {FEW}",
            "confide audit runs/mail": f"confide audit runs/mail {FEW_ATTACKS}",
            '"mail.yaml", [': f'"mail.yaml", [*"{FEW}".split(), ',
        },
        makes={
            "confide init": {"mail.yaml": "writes a first config"},
            "confide train": {
                "runs/mail/release/model.safetensors": "`runs/mail/release/` then holds the model",
                "runs/mail/release/guarantee.json": "its guarantee and a model card",
                "runs/mail/release/README.md": "its guarantee and a model card",
            },
            "confide report": {"runs/mail/report.html": "`runs/mail/report.html`"},
            "import confide": {"runs/mail-3/release/guarantee.json": '"run=runs/mail-3"'},
        },
    ),
    "tutorial": Door(
        Page(DOCS / "tutorial.md"),
        writes="mail.yaml",
        smaller={
            "confide prepare mail.yaml": f"confide prepare mail.yaml {FEW}",
            "confide plan mail.yaml": f"confide plan mail.yaml {FEW}",
            "confide plan mail.yaml --suggest --rows 12800": f"confide plan mail.yaml --suggest --rows 8 {FEW}",
            "confide verify mail.yaml": f"confide verify mail.yaml {FEW}",
            "confide train mail.yaml": f"confide train mail.yaml {FEW}",
            "confide audit runs/mail": f"confide audit runs/mail {FEW_ATTACKS}",
            "confide train mail.yaml model=gpt2": f"confide train mail.yaml {FEW} model=./model",
        },
        makes={
            "confide init": {
                "mail.yaml": "it writes a first config",
                "confide.schema.json": "Beside it lies `confide.schema.json`",
            },
            "confide prepare": {"runs/mail/data/rows_per_unit.svg": "`runs/mail/data/rows_per_unit.svg`"},
            "confide plan mail.yaml --suggest": {"best.yaml": "writes them into a copy of your config"},
            "confide train mail.yaml --twin": {"runs/mail/twin/metrics.jsonl": "The twin takes as long"},
            "confide report": {"runs/mail/report.html": "`report` writes `runs/mail/report.html`"},
            "confide train mail.yaml model=gpt2": {
                "runs/mail-gpt2/release/adapter_config.json": "`runs/mail/release/`: weights or adapter",
            },
        },
    ),
}


def senders() -> Iterator[tuple[str, str, str, str]]:
    """Yield (from, to, subject, body) of 120 mails of 24 made-up people."""
    generator = random.Random(5)
    for number in range(120):
        subject, body = (" ".join(generator.choices(WORDS, k=count)) for count in (3, 30))
        yield f"p{number % 24}@example.org", f"p{(number + 7) % 24}@example.org", subject, f"{number} {body}"


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    """A folder with the mails that the pages speak of, and a small model in the place of one of the hub."""
    with open(tmp_path / "mail.jsonl", "w") as lines:
        box = mailbox.mbox(tmp_path / "export.mbox")
        for sender, to, subject, body in senders():
            lines.write(json.dumps({"from": sender, "to": to, "subject": subject, "body": body}) + "\n")
            mail = EmailMessage()
            mail["From"], mail["To"], mail["Subject"] = sender, to, subject
            mail.set_content(body)
            box.add(mail)
        box.close()
    (tmp_path / "model").symlink_to(model)
    return tmp_path


def run(door: Door, kind: str, code: str, folder: Path) -> None:
    """Run one command of a page, and require that it works and makes its files."""
    if kind == "yaml":
        (folder / door.writes).write_text(code)
        return
    before = {name: stamp(folder / name) for name in door.files(code)}
    shown = door.made_smaller(code)
    seconds = processor_seconds(kind, shown, folder)
    for name, old in before.items():
        assert stamp(folder / name) not in (None, old), f"{shown}: it makes no {name}"
    limit = next((limit for start, limit in QUICK.items() if code.startswith(start)), None)
    if limit is not None and seconds >= limit and os.getloadavg()[0] <= CROWDED * (os.cpu_count() or 1):
        assert processor_seconds(kind, shown, folder) < limit, f"{shown}: it takes too long, twice"


def processor_seconds(kind: str, shown: str, folder: Path) -> float:
    """Run a command, require that it works, and return what it took of all processors."""
    program = ["bash", "-euo", "pipefail", "-c", shown] if kind == "sh" else [sys.executable, "-c", shown]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        program,
        cwd=folder,
        env=environment() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{shown}\n{done.stdout}\n{done.stderr}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


@pytest.mark.parametrize("name", DOORS)
def test_every_command_of_the_page_works(name: str, folder: Path) -> None:
    door = DOORS[name]
    for kind, code in door.commands:
        if code not in NOT_RUN:
            run(door, kind, code, folder)


def test_no_table_holds_what_its_page_does_not() -> None:
    shown = [code for door in DOORS.values() for _, code in door.commands]
    assert set(NOT_RUN) <= set(shown)
    for door in DOORS.values():
        codes = [code for _, code in door.commands]
        for part in door.smaller:
            assert any(
                door.made_smaller(code) == code.replace(part, door.smaller[part]) != code for code in codes
            ), part
        for start, files in door.makes.items():
            assert any(code.startswith(start) for code in codes), start
            for words in files.values():
                assert words in " ".join(door.page.text.split()), words


def test_a_command_that_fails_or_makes_no_file_or_is_slow_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = replace(DOORS["README"], smaller={}, makes={"touch": {"made": ""}})
    run(door, "sh", "touch made", tmp_path)
    with pytest.raises(AssertionError, match="makes no made"):
        run(door, "sh", "touch other", tmp_path)
    with pytest.raises(AssertionError, match="makes no there"):
        run(door, "sh", "true --out there", tmp_path)
    with pytest.raises(AssertionError, match="false"):
        run(door, "sh", "false | cat", tmp_path)
    run(door, "sh", "python -c 'import confide' && confide --help", tmp_path)
    monkeypatch.setitem(QUICK, "python", 1e-3)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    with pytest.raises(AssertionError, match="takes too long, twice"):
        run(door, "sh", "python -c 'sum(range(10**6))'", tmp_path)
