"""Count rooms, arrows between them, and lines of a source folder: python scripts/house.py [SRC]

SRC is `src` by default. For an older commit: git worktree add ../old COMMIT; python scripts/house.py ../old/src
"""

import argparse
import ast
import sys
from pathlib import Path

import grimp  # comes with import-linter

# One reads these to know the training loop; the names in the second line are those of before the rooms.
LOOP = ("training/step.py", "training/gradient_sum.py", "training/phases.py", "runs/loop.py")
LOOP += ("training.py", "course.py", "finetuning.py")


def rooms_and_arrows(source: Path) -> tuple[int, int]:
    """Return how many rooms there are, and how many pairs of them of which one imports the other."""
    sys.path.insert(0, str(source.resolve()))
    graph = grimp.build_graph("confide", cache_dir=None)
    rooms = graph.find_children("confide") - {"confide.__main__"}
    arrows = {
        (room, ".".join(imported.split(".")[:2]))
        for room in rooms
        for module in graph.find_descendants(room) | {room}
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return len(rooms), sum(a != b and b in rooms for a, b in arrows)


def docstring_lines(text: str) -> int:
    """Return the number of lines of docstrings, those under attributes included."""
    texts = (
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in texts if isinstance(node.value, str)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", type=Path, default=Path("src"))
    source = parser.parse_args().source
    package = source / "confide"
    texts = {path: path.read_text("utf-8") for path in package.rglob("*.py")}
    lines = [line.strip() for text in texts.values() for line in text.splitlines()]
    docstrings = sum(map(docstring_lines, texts.values()))
    rooms, arrows = rooms_and_arrows(source)
    longest = max(texts, key=lambda path: texts[path].count("\n"))
    figures: dict[str, object] = {
        "loose modules": sum(path.name[:2] != "__" for path in package.glob("*.py")),
        "rooms": rooms,
        "arrows": arrows,
        "lines": len(lines),
        "of which docstrings": docstrings,
        "of which comments": sum(line.startswith("#") for line in lines),
        "empty, in docstrings too": sum(not line for line in lines),
        "lines of the longest file": f"{texts[longest].count(chr(10))} ({longest.relative_to(package)})",
        "lines of the training loop": sum(texts.get(package / name, "").count("\n") for name in LOOP),
    }
    for room in sorted(path for path in package.iterdir() if path.is_dir()):
        inside = sum(len(text.splitlines()) for path, text in texts.items() if room in path.parents)
        figures |= {f"lines of {room.name}": inside} if inside else {}
    for name, figure in figures.items():
        print(f"{name:28} {figure}")


if __name__ == "__main__":
    main()
