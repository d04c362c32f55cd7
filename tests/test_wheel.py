"""The wheel in an environment of its own: it is installed as users install it, and quickstart ends with a page."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

SMALL = """
import lzma, pathlib, sys
import confide.cli
from confide.cli import quickstart

inside = pathlib.Path(sys.prefix).resolve()
assert inside in pathlib.Path(confide.__file__).resolve().parents, confide.__file__
written = quickstart.config

def config(folder):
    whole = written(folder)
    train = whole.train.model_copy(update={"steps": 2, "batch": 8.0, "learning_rate": 3e-4})
    data = whole.data.model_copy(update={"eval": 0.1})
    return whole.model_copy(update={"train": train, "data": data})

quickstart.config = config
few = lzma.decompress(quickstart.MAILS.read_bytes()).splitlines(keepends=True)[:600]
quickstart.MAILS = pathlib.Path("few.xz")
quickstart.MAILS.write_bytes(lzma.compress(b"".join(few)))
sys.argv = ["confide", "quickstart"]
confide.cli.main()
"""
"""Quickstart as its users start it, with the first 600 mails and two steps."""


def run(*command: object, folder: Path) -> str:
    """Run a program that knows of no other packages than its own environment's. Return what it prints."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment | {"PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy: what earlier builds left beside the sources is not in it."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "out", ".", folder=folder
    )
    (built,) = (folder / "out").glob("*.whl")
    return built


@pytest.fixture
def bin_folder(wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """The programs of a fresh environment in which the wheel is installed. It is large, so it is removed again."""
    run(sys.executable, "-m", "venv", "fresh", folder=tmp_path)
    programs = tmp_path / "fresh" / "bin"
    pip = (programs / "python", "-m", "pip")
    run(*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", wheel, folder=tmp_path)
    run(*pip, "check", folder=tmp_path)
    yield programs
    shutil.rmtree(tmp_path / "fresh")


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "confide"
    files = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= set(zipfile.ZipFile(wheel).namelist())


def test_quickstart_ends_with_a_page_in_an_empty_environment(bin_folder: Path, tmp_path: Path) -> None:
    assert "quickstart" in run(bin_folder / "confide", "--help", folder=tmp_path)
    said = run(bin_folder / "python", "-c", SMALL, folder=tmp_path)
    assert "held-out customers" in said
    assert "the whole claim: confide-quickstart/run/report-private.html" in said
    for name in ("report.html", "report-private.html"):
        page = tmp_path / "confide-quickstart" / "run" / name
        assert 10_000 < page.stat().st_size < 2_000_000
        assert "Weights and guarantee are those that the run sealed." in page.read_text("utf-8")
