"""The documentation builds, leads somewhere, says what the commands and configs are, and can be read."""

import ast
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import textstat
import typer
import yaml
from scripts import command_reference, pictures, pitfalls_page
from typer.main import get_command

import confide
from confide.cli.base import app
from confide.config.loading import check, keys
from confide.reporting.glossary import GLOSSARY
from tests.pages import DOCS, PAGES, README, Page
from tests.places import ROOT

INDEX, TUTORIAL, CONCEPTS, MECHANISMS, SETTINGS = (
    Page(DOCS / f"{name}.md") for name in ("index", "tutorial", "concepts", "mechanisms", "configuring")
)
SOURCES = ROOT / "src" / "confide"
UsageError = typer.BadParameter.__mro__[1]  # typer brings click's classes under names of its own


def named(page: Page) -> str:
    return page.path.stem


# the site ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = [sys.executable, "-m", "mkdocs"] if importlib.util.find_spec("mkdocs") else None
    if program is None and (found := shutil.which("mkdocs")):
        program = [found]
    if program is None:
        pytest.skip("mkdocs is not installed: pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [*program, "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site_builds_without_a_warning(site: Path) -> None:
    for page in PAGES[1:]:
        assert (site / f"{named(page).lower()}.html").is_file()


def test_no_page_of_the_site_asks_for_anything_elsewhere(site: Path) -> None:
    for path in site.glob("*.html"):
        tags = re.findall(
            r"<(?:script|img|iframe|source)\b[^>]*|<link\b[^>]*stylesheet[^>]*", path.read_text()
        )
        assert tags
        assert not [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)], path.name


def test_the_site_explains_every_public_name(site: Path) -> None:
    shown = (site / "api.html").read_text()
    for name in confide.__all__:
        assert re.search(rf'id="confide\.[\w.]*\b{name}"', shown), name


# links ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), link
        if anchor:
            assert anchor in Page(target).anchors(), link


# README --------------------------------------------------------------------------------------------
def test_readme_is_one_page_and_its_first_command_is_on_the_first_screen() -> None:
    lines = README.text.splitlines()
    assert len(lines) <= 120
    assert lines.index("```sh") < 20


# commands ------------------------------------------------------------------------------------------
def commands(page: Page) -> list[list[str]]:
    found = []
    for block in page.blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            parts: list[list[str]] = [[]]
            for word in words:
                if word in ("|", "&&", ">", ";"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            for part in parts:
                places = [at for at, word in enumerate(part) if re.fullmatch(r"(?:\S*/)?confide", word)]
                if places and "python" not in part[: places[0]] and "pip" not in " ".join(part[: places[0]]):
                    found.append(part[places[0] + 1 :])
    for code in page.inline():
        if re.match(r"confide [a-z]", code):
            found.append(shlex.split(code.partition(" > ")[0])[1:])
    return [words for words in found if words]


def fault(words: list[str]) -> str:
    """Return what the command line has against these words, "" if nothing."""
    command: Any = get_command(app)
    context = command.context_class(command, info_name="confide")
    try:
        while hasattr(command, "commands"):
            name, command, words = command.resolve_command(context, words)
            context = command.context_class(command, info_name=name, parent=context)
        command.make_context(context.info_name, list(words), parent=context.parent)
    except typer.Exit:  # --help
        return ""
    except UsageError as error:
        return str(error.format_message())
    return ""


OF_OLD = ("CHANGELOG", "decisions")  # they name commands that are gone
WITH_COMMANDS = [page for page in PAGES if commands(page) and named(page) not in OF_OLD]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=named)
def test_commands_are_such_as_the_command_line_takes(page: Page) -> None:
    for words in commands(page):
        if len(words) == 1:  # the name of a command, in a sentence
            words = [*words, "--help"]
        # Prose may leave out what every such command needs, but not name what none has.
        assert re.fullmatch("|Missing .*|.* requires an argument.", fault(words)), words
        for word in words:
            if (key := re.match(r"([a-z_]+(?:\.[a-z_]+)*)=", word)) and "KEY" not in word:
                assert key[1] in keys() or any(known.startswith(f"{key[1]}.") for known in keys()), word


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert fault(["trian", "mail.yaml"]).startswith("No such command")
    assert fault(["train", "mail.yaml", "--epsilon", "3"]).startswith("No such option")
    assert fault(["train", "mail.yaml", "--twin"]) == ""


def test_the_pages_with_commands_are_found() -> None:
    assert {README.path, TUTORIAL.path} <= {page.path for page in WITH_COMMANDS}
    assert ["audit", "runs/mail"] in commands(TUTORIAL)
    assert ["train", "mail.yaml", "train.distributed=fsdp"] in commands(Page(DOCS / "distributed.md"))


# configs -------------------------------------------------------------------------------------------
CONFIGS = [
    pytest.param(block, id=f"{named(page)}-{number}")
    for page in PAGES
    for number, block in enumerate(page.blocks("yaml"))
]


def merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    inner = {
        key: merged(base[key], value) for key, value in own.items() if isinstance(value, dict) and key in base
    }
    return base | own | inner


@pytest.mark.parametrize("block", CONFIGS)
def test_configs_load(block: str) -> None:
    """A part of a config is put into one that needs nothing else."""
    own = yaml.safe_load(block)
    base: dict[str, Any] = {"data": {"train": "mail.jsonl"}}
    privacy = own.get("privacy", {})
    if privacy.get("mechanism") not in ("none", "redacted", "secret") and "noise_multiplier" not in privacy:
        base["privacy"] = {"epsilon": 8.0}
    if "data" not in own or "mechanism" not in privacy:
        base["data"]["unit"] = "from"
    check(merged(base, own))


def test_every_mechanism_has_a_section_with_a_whole_config() -> None:
    from confide.config import registry

    shown = [yaml.safe_load(block)["privacy"]["mechanism"] for block in MECHANISMS.blocks("yaml")]
    assert sorted(shown) == sorted(registry.MECHANISMS)
    assert set(registry.MECHANISMS) <= MECHANISMS.anchors()
    for block in MECHANISMS.blocks("yaml"):
        check(yaml.safe_load(block))


# words ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", [README, INDEX, TUTORIAL, CONCEPTS, SETTINGS], ids=named)
def test_what_newcomers_read_is_easy_to_read(page: Page) -> None:
    sentences = page.sentences()
    lengths = sorted(len(sentence.split()) for sentence in sentences)
    assert lengths[len(lengths) // 2] <= 18
    assert textstat.flesch_reading_ease(". ".join(s.rstrip(".:;?!") for s in sentences) + ".") >= 50


def test_concepts_explain_every_term_of_the_glossary() -> None:
    assert {slug(term) for term in GLOSSARY} <= CONCEPTS.anchors()


def slug(term: str) -> str:
    return term.lower().replace(" ", "-")


@pytest.mark.parametrize("page", [README, INDEX, TUTORIAL, SETTINGS], ids=named)
def test_a_term_is_linked_to_its_concept_where_it_first_stands(page: Page) -> None:
    prose = re.sub(r"`[^`]*`", "", " ".join(page.paragraphs()))
    for term in GLOSSARY:
        first = re.search(rf"\b{term}s?\b(?![^\[\]]*\]\()(?![^(\s]*\))", prose, re.IGNORECASE)
        linked = re.search(
            rf"\[[^\]]*\b{term}s?\b[^\]]*\]\([\w./]*concepts\.md#{slug(term)}\)", prose, re.IGNORECASE
        )
        if first is not None:
            assert linked, (term, prose[max(0, first.start() - 60) : first.end() + 20])
            assert linked.start() < first.start(), (
                term,
                prose[max(0, first.start() - 60) : first.end() + 20],
            )


# what is made by scripts ---------------------------------------------------------------------------
def test_the_page_of_commands_is_what_the_script_writes() -> None:
    written = (DOCS / "cli.md").read_text()
    assert written == command_reference.reference(), "python -m scripts.command_reference > docs/cli.md"


def test_the_page_of_pitfalls_is_what_the_script_writes() -> None:
    command = "PYTHONPATH=scripts python scripts/pitfalls_page.py > docs/pitfalls.md"
    assert (DOCS / "pitfalls.md").read_text() == pitfalls_page.written(), command


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_what_the_script_draws(name: str) -> None:
    drawn = pictures.drawn(name)
    assert (pictures.OUT / f"{name}.svg").read_text() == drawn, "python scripts/pictures.py"
    root = ET.fromstring(drawn)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert "prefers-color-scheme: dark" in drawn
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", drawn)


def test_every_picture_is_shown_with_a_text_in_its_place() -> None:
    shown = {path: words for words, path in re.findall(r"!\[([^\]]*)\]\((pictures/[^)]+)\)", CONCEPTS.text)}
    assert set(shown) == {f"pictures/{name}.svg" for name in pictures.PICTURES}
    assert all(len(words) > 20 for words in shown.values())


# error messages ------------------------------------------------------------------------------------
def spoken() -> list[str]:
    """The texts of the sources, those that are put together as one, with a mark where a value goes."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_that_are_explained_are_those_that_confide_gives() -> None:
    texts = spoken()
    headings = [
        heading[1:-1] for heading in Page(DOCS / "troubleshooting.md").headings() if heading[0] == "`"
    ]
    assert len(headings) > 30
    for heading in headings:
        parts = heading.split("...")
        assert any(in_turn(parts, text) for text in texts), heading


def in_turn(parts: list[str], text: str) -> bool:
    """Whether the parts stand in a text one after another, with a value after each but the last."""
    end = 0
    for part in parts:
        at = text.find(part, end)
        if at < 0 or (end and "\0" not in text[end:at]):
            return False
        end = at + len(part)
    return True
