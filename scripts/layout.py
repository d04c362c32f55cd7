"""Move the modules of confide into the folders of their floors, with every import, test and text that names them.

It was run once, on 2026-11-25, and is kept as the record of what was called how before.
"""

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES, TESTS = ROOT / "src" / "confide", ROOT / "tests"

# folder: {new name: old module}
FOLDERS: dict[str, dict[str, str]] = {
    "cli": {
        "show": "show",
        "show_plans": "show_plans",
        "show_look": "show_look",
        "starter": "starter",
        "look": "looking",
        "quickstart": "quickstart",
        "secret_report": "secrecy",
    },
    "tuning": {"sweep": "tuning", "search": "search", "space": "space", "ray_executor": "cluster"},
    "planning": {
        "plan": "planning",
        "suggest": "suggesting",
        "user_sampling": "configuring",
        "nearness": "nearness",
        "verdict": "verdict",
    },
    "runs": {
        "folder": "runs",
        "job": "job",
        "loop": "finetuning",
        "preparation": "preparation",
        "records": "records",
        "planting": "planting",
        "checkpoints": "checkpoints",
        "provenance": "provenance",
        "verify": "verify",
        "personalise": "personalisation",
        "canaries": "audit.canaries",
        "generated_canaries": "audit.generated",
        "evidence": "audit.evidence",
    },
    "training": {
        "step": "training",
        "phases": "course",
        "tasks": "tasks",
        "packing": "packing",
        "microbatch": "microbatch",
        "metrics": "metrics",
        "evaluation": "evaluation",
        "averaging": "averaging",
        "line_packing": "lines",
        "memory_fit": "physical",
        "row_isolation": "isolation",
        "perplexity": "scoring",
        "concentration_step": "filtered",
        "white_box": "audit.readings",
    },
    "privacy": {
        "mechanisms": "mechanisms",
        "accounting": "accounting",
        "sampling": "sampling",
        "selection": "selection",
        "ledger": "ledger",
        "guarantee": "claims",
        "correlated_noise": "correlation",
        "row_weights": "secrets.program",
        "secret_targets": "secrets.values",
    },
    "sensitive": {"detectors": "detectors", "redaction": "redaction", "secrets": "secrets"},
    "models": {"loading": "models", "files": "model_files"},
    "models/fast": {
        "activations": "kernels",
        "onednn": "products",
        "logits": "head",
        "cross_entropy": "cross_entropy",
    },
    "data": {
        "unit_graph": "units",
        "shape": "shape",
        "cutting": "rows",
        "spans": "spans",
        "pieces": "long_texts",
        "documents": "reading",
        "helpdesk": "helpdesk",
        "readers": "text",
    },
    "randomness": {"streams": "noise", "chacha_gpu": "chacha", "seal": "seal"},
    "config": {
        "schema": "settings",
        "loading": "config",
        "registry": "registry",
        "yaml_text": "yaml_text",
        "rewriting": "rewriting",
    },
    "distributed": {"ranks": "ranks", "sharding": "sharding"},
    "utils": {
        "errors": "errors",
        "console": "console",
        "files": "disk",
        "memory": "memory",
        "allocator": "allocator",
        "rounding": "rounding",
        "svg": "svg",
        "chart": "chart",
        "histogram": "histogram",
    },
}
ROOMS = {
    "tuning": "A sweep over hyperparameters, and what may be tried in it.",
    "planning": "What a run will cost and guarantee, before a gradient is computed.",
    "runs": "The run folder: prepare, train, resume, release, verify.",
    "training": "One training step, and the model passes around it.",
    "privacy": "What is protected, how a step draws, and what that guarantees.",
    "sensitive": "What in a text is sensitive, in characters.",
    "models": "Models and tokenizers: from a folder or a hub, as they are trained.",
    "models/fast": "Layers exchanged for the same function, computed faster.",
    "data": "Text in, unit graph on disk out.",
    "randomness": "All randomness of a run, and the seals of its files: functions of the run key.",
    "config": "The config: its schema, and how a file is read and checked.",
    "distributed": "Processes that train together, and a model split over them.",
    "utils": "What knows nothing of the rest: errors, files, memory, pictures.",
}
WHERE = {
    f"confide.{old}": f"confide.{folder.replace('/', '.')}.{new}"
    for folder, names in FOLDERS.items()
    for new, old in names.items()
}


def main() -> None:
    moved = {**_move_sources(), **_move_tests()}
    for folder, words in ROOMS.items():
        SOURCES.joinpath(folder, "__init__.py").write_text(f'"""{words}"""\n', "utf-8")
    for folder in TESTS.rglob("*/"):
        if any(folder.glob("*.py")) or any(folder.glob("*/*.py")):
            (folder / "__init__.py").touch()
    _git("add", SOURCES, TESTS)
    for path in _texts():
        text = path.read_text("utf-8")
        changed = rewritten(text, moved, path)
        if changed != text:
            path.write_text(changed, "utf-8")


def _move_sources() -> dict[str, str]:
    moved = {}
    order = sorted(
        WHERE.items(), key=lambda item: -item[0].count(".")
    )  # out of a folder before the folder moves
    for old, new in order:
        source, target = (SOURCES.joinpath(*name.split(".")[1:]) for name in (old, new))
        if source.with_suffix(".py").exists():
            source, target = source.with_suffix(".py"), target.with_suffix(".py")
        elif not source.is_dir():
            continue
        moved[old] = new
        parking = SOURCES / f"moving-{new}"
        _git("mv", source, parking)
    for _, new in order:
        parking, target = SOURCES / f"moving-{new}", SOURCES.joinpath(*new.split(".")[1:])
        if not parking.exists():
            continue
        target = target if parking.is_dir() else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        _git("mv", parking, target)
    return moved


def _move_tests() -> dict[str, str]:
    """Tests lie as the sources do; those of the whole stay on top."""
    moved = {}
    for old, new in sorted(WHERE.items(), key=lambda item: -item[0].count(".")):
        *folders, name = new.split(".")[1:]
        *before, last = old.split(".")[1:]
        there = TESTS.joinpath(*folders)
        file, folder = TESTS.joinpath(*before, f"test_{last}.py"), TESTS.joinpath(*before, last)
        if file.exists():
            there.mkdir(parents=True, exist_ok=True)
            _git("mv", file, there / f"test_{name}.py")
            moved[".".join(("tests", *before, f"test_{last}"))] = ".".join(
                ("tests", *folders, f"test_{name}")
            )
        if folder.is_dir() and SOURCES.joinpath(*folders, name).is_dir():
            there.mkdir(parents=True, exist_ok=True)
            _git("mv", folder, there / name)
            moved[".".join(("tests", *before, last))] = ".".join(("tests", *folders, name))
    return moved


def rewritten(text: str, moved: dict[str, str], path: Path) -> str:
    """A file's text with the new names. What is written is not read again, so a name may be old in one place and new in
    another: `confide.models` was a module, and is a folder."""
    if path.suffix == ".py":
        text = _imports(text, moved)
    text = re.sub(rf"(?<![\w./-])({_any(moved)})(?!\w)", lambda match: moved[match[1]], text)
    files = {name.replace(".", "/"): new.replace(".", "/") for name, new in moved.items()}
    text = re.sub(
        rf"(?<!\w)(src/)?({_any(files)})(?=\.py\b|/)", lambda match: (match[1] or "") + files[match[2]], text
    )
    if path.parent.name == "scripts" or path.name == "test_rounding.py":  # these name files below the sources
        below = {old.removeprefix("confide/"): new.removeprefix("confide/") for old, new in files.items()}
        text = re.sub(rf"(?<=\")({_any(below)})(?=\.py\b|/\w+\.py)", lambda match: below[match[1]], text)
    return text.replace(MARK, "")


MARK = "\0"  # in a name that is new already


def _any(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def _imports(text: str, moved: dict[str, str]) -> str:
    """`from confide import a, b` and `from confide.x import y` where a, b, x or x.y has moved."""
    lines = text.splitlines(keepends=True)
    for node in sorted(ast.walk(ast.parse(text)), key=lambda n: -getattr(n, "lineno", 0)):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        top = node.module.split(".")[0]
        if top not in ("confide", "tests"):
            continue
        plain, apart = [], []
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            (apart if full in moved else plain).append(alias)
        if not apart:
            continue
        indent = " " * node.col_offset
        made = []
        if plain:
            made.append(f"{indent}from {node.module} import {', '.join(map(_written, plain))}\n")
        for alias in apart:
            parent, _, leaf = moved[f"{node.module}.{alias.name}"].rpartition(".")
            name = alias.asname or alias.name
            # Marked, so that the parent, which may be called as an old module was, is not taken for it.
            made.append(
                f"{indent}from {_marked(parent)} import {leaf}{'' if leaf == name else f' as {name}'}\n"
            )
        comment = re.search(r"#.*", lines[node.end_lineno - 1])
        if comment:
            made[-1] = made[-1].rstrip("\n") + f"  {comment[0]}\n"
        lines[node.lineno - 1 : node.end_lineno] = made
    return "".join(lines)


def _marked(name: str) -> str:
    return name.replace(".", f".{MARK}")


def _written(alias: ast.alias) -> str:
    return alias.name + (f" as {alias.asname}" if alias.asname else "")


def _texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kinds = (".py", ".md", ".toml", ".sh", ".yaml", ".yml", ".cfg", ".txt", ".svg")
    own = Path(__file__).resolve()
    found = [ROOT / line for line in listed.splitlines() if line.endswith(kinds)]
    return [path for path in found if path.exists() and path.resolve() != own and "bundled" not in path.parts]


def _git(*arguments: object) -> None:
    subprocess.run(["git", *map(str, arguments)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
