"""The page that says which models train is made by trying them, and README says no more than the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import families
from scripts.families import PAGE, Found, page, try_one

from confide.clipping import ClippedSum


@pytest.mark.parametrize(("kind", "adapter"), [("llama", "full"), ("qwen3_moe", "lora"), ("mamba", "lora")])
def test_what_trains_is_seen_to(kind: str, adapter: str) -> None:
    assert try_one(kind, adapter) == Found(trains=True)


def test_what_is_refused_says_why() -> None:
    found = try_one("qwen3_moe", "full")
    assert not found.trains
    assert found.tried
    assert "is of no kind whose gradients can be clipped" in found.why


def test_a_wrong_sum_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ClippedSum._scale
    monkeypatch.setattr(ClippedSum, "_scale", lambda self, *args: right(self, *args) * 1.01)
    assert try_one("gpt2", "full").wrong


def test_what_cannot_be_made_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "SIZES", {"hidden_size": 7})
    monkeypatch.setattr(families, "LEFT", [()])
    found = try_one("llama", "full")
    assert not found.tried
    assert found.why.startswith("runs in no size that was tried")


def test_each_type_stands_under_what_was_found() -> None:
    yes, refused = Found(trains=True), Found(why="a | b\nc")
    text = page({"one": (yes, yes), "two": (refused, yes), "three": (refused, refused)})
    full, lora, no = (text.split("\n\n**")[i] for i in (1, 2, 3))
    assert "(1): `one`." in full
    assert "(1)" in lora
    assert "| `two` | a / b |" in lora
    assert "| `three` | a / b |" in no


def test_no_page_is_written_of_wrong_sums(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(families, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(families, "in_a_process", lambda kind, adapter: Found(wrong=kind == "gpt2"))
    monkeypatch.setattr("sys.argv", ["families", "gpt2", "llama", "--write"])
    assert families.main() == 1
    assert not families.PAGE.exists()
    monkeypatch.setattr("sys.argv", ["families", "llama", "--write"])
    assert families.main() == 0
    assert "`llama`" in families.PAGE.read_text()


def test_readme_names_what_the_page_has() -> None:
    text = PAGE.read_text()
    full, lora = (re.findall(r"`([a-z0-9_-]+)`", text.split("\n\n**")[i]) for i in (1, 2))
    assert {"gpt2", "llama", "gemma2", "gemma3_text", "qwen2", "qwen3", "mistral", "phi3", "opt"} <= set(full)
    assert {"mixtral", "qwen3_moe", "gpt_oss", "mamba", "mamba2"} <= set(lora)
