"""A code base of which one package is secret: what is masked with its own files alone, and with whoever imports it.

The text is confide's own source. Each of its rooms plays the secret in turn. What is left unmasked is looked through
for imports of the room, by Python's own parser, and for names that only the room defines.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import confide
from confide.config.schema import Repository
from confide.data.readers.documents import Document
from confide.sensitive.secrets.repository import RepositorySecrets
from studies.runner.findings import Finding
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work

OFF, ON = "its own files", "with whoever imports it"
_ROOMS: Mapping[Scale, int | None] = {Scale.TINY: 2, Scale.SMALL: None, Scale.FULL: None}
_NAME = re.compile(r"\b[A-Za-z][A-Za-z0-9_]{7,}\b")


def measure(work: Work) -> list[Row]:
    package = Path(confide.__file__).parent
    texts = sources(package)
    rooms = sorted({path.split("/")[1] for path in texts if path.count("/") > 1})[: _ROOMS[work.scale]]
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    secrets = [f"confide.{room}" for room in rooms]
    found: list[Row] = []
    for imports, what in ((False, OFF), (True, ON)):
        section = Repository(packages=secrets, imports=imports)
        masked = masked_by(RepositorySecrets(section, package.parent), texts)
        for room, secret in zip(rooms, secrets, strict=True):
            found.append(
                columns | {"room": room, "masking": what} | left(texts, room, masked[f"packages:{secret}"])
            )
    return found


def sources(package: Path) -> dict[str, str]:
    """Return the text of every module below a package, by its path from the package's folder."""
    return {
        path.relative_to(package.parent).as_posix(): path.read_text("utf-8")
        for path in sorted(package.rglob("*.py"))
    }


def masked_by(finder: RepositorySecrets, texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, for each secret, the files that are masked as a whole, as confide finds them."""
    found: dict[str, set[str]] = {}
    documents = [
        Document(text, (), None, path, {"path": path}, number)
        for number, (path, text) in enumerate(texts.items())
    ]
    for document, mentions in zip(documents, finder.find(documents), strict=True):
        for mention in mentions:
            assert (mention.start, mention.end) == (0, len(document.text))
            found.setdefault(mention.secret, set()).add(document.where)
    return found


def left(texts: Mapping[str, str], room: str, masked: set[str]) -> Row:
    """Return what is masked, and what of the room is left in the files that are not."""
    own = {path for path in texts if path.startswith(f"confide/{room}/")}
    importers = {path for path in texts.keys() - own if imports_room(texts[path], room)}
    names = own_names(texts, own)
    open_files = texts.keys() - masked
    seen = {path: names & _words(texts[path]) for path in open_files}
    whole = sum(map(len, texts.values()))
    return {
        "files": len(texts),
        "own": len(own),
        "own_masked": len(own & masked),
        "masked": len(masked),
        "share": sum(len(texts[path]) for path in masked) / whole,
        "importers": len(importers),
        "importers_masked": len(importers & masked),
        "names": len(names),
        "names_left": len(set.union(set(), *seen.values())),
        "files_left": sum(bool(found) for found in seen.values()),
    }


def imports_room(text: str, room: str) -> bool:
    """Say whether a module's own statements import a room of confide or something in it."""
    return any(f"{name}.".startswith(f"confide.{room}.") for name in _imported(text))


@cache
def _imported(text: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def own_names(texts: Mapping[str, str], own: set[str]) -> set[str]:
    """Return the names that only these files define: public, of two words or more, such as `ClippedSum`."""
    here, elsewhere = (
        {name for path in paths for name in _defined(texts[path])} for paths in (own, texts.keys() - own)
    )
    return {name for name in here - elsewhere if _is_telling(name)}


@cache
def _defined(text: str) -> frozenset[str]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(_NAME.findall(text))


def _is_telling(name: str) -> bool:
    words = re.findall(r"[A-Z][a-z0-9]+", name) if name[:1].isupper() else name.split("_")
    return not name.startswith("_") and len(words) > 1 and bool(_NAME.fullmatch(name))


# what was found ------------------------------------------------------------------------------------------------
def _of(rows: Sequence[Row], masking: str) -> list[Row]:
    return [row for row in rows if row["masking"] == masking]


def _share(rows: Sequence[Row], part: str, whole: str) -> list[float]:
    """Return the share over all rooms, as one value; none if there is nothing to be a share of."""
    total = sum(row[whole] for row in rows)
    return [sum(row[part] for row in rows) / total] if total else []


def findings(rows: Sequence[Row]) -> list[Finding]:
    found: list[Finding] = []

    def add(
        claim: str, statistic: str, values: Sequence[float], low: float = -math.inf, high: float = math.inf
    ) -> None:
        place = "beyond the papers"
        if values:
            found.append(
                Finding(claim, place, statistic, tuple(values), low, high, is_exact=True, unit="share")
            )

    add(
        "All files of the secret package are masked, with imports and without.",
        "share of its files that is masked, each room once the secret",
        _share(rows, "own_masked", "own"),
        low=1.0,
    )
    add(
        "With imports followed, every file that imports the package is masked.",
        "share of the files whose own statements import it that is masked, each room once the secret",
        _share(_of(rows, ON), "importers_masked", "importers"),
        low=1.0,
    )
    add(
        "Without imports followed, names of the package stand in files that are not masked.",
        "share of the package's own names that stand there, each room once the secret",
        _share(_of(rows, OFF), "names_left", "names"),
        low=1e-9,
    )
    add(
        "With imports followed, no name of the package stands in a file that is not masked.",
        "share of the package's own names that stand there, each room once the secret",
        _share(_of(rows, ON), "names_left", "names"),
        high=0.0,
    )
    on = sorted(row["share"] for row in _of(rows, ON))
    add(
        "To follow imports masks at most half of the text, for half of the rooms or more.",
        "share of the text that is masked, of the middle room",
        on[(len(on) - 1) // 2 :][:1],
        high=0.5,
    )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = []
    for off, on in zip(_of(rows, OFF), _of(rows, ON), strict=True):
        cells.append(
            [
                off["room"],
                *(f"{row['masked']} ({row['share']:.0%})" for row in (off, on)),
                *(f"{row['importers_masked']} of {row['importers']}" for row in (off, on)),
                *(f"{row['names_left']} of {row['names']}, in {row['files_left']}" for row in (off, on)),
            ]
        )
    heads = ["secret room", "files masked (of the text): own", "with importers"]
    heads += ["direct importers masked: own", "with importers"]
    heads += ["own names left, in so many files: own", "with importers"]
    note = (
        f"confide's {rows[0]['files']} own modules. A name is left if it stands anywhere in a file that is not masked, "
        "be it in a comment. Names are those of classes and functions of two words or more that no other room defines. "
        "Direct importers are those that Python's parser finds."
    )
    return [Table("One room as the secret", heads, cells, note)]


STUDY = Study(
    name="code-base",
    paper="",
    shows=(),
    question="If a package of a code base is secret, is it enough to mask its files and those that import it?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=1,
    deviations="The code base is confide's own at the version that is named. Its figures move with the code.",
    follows_code=True,
)
