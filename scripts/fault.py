"""A fault that somebody might put into the sources, and how it goes in: by what the code is, not by its layout."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "src" / "confide"


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` at `place`; `tests` must then fail.

    Attributes:
        row: of the pitfalls, by its number, or else the part of confide that it is in.
        what: the fault, in words.
        place: `clipping/slot.py::Slot.norms`: the end of a file's path below src/confide, and the qualified name of a
            class or function in it; without a name, the whole file. Folders may be left out.
        old: an expression, or statements that follow one another. Layout, comments and quotes do not matter. `...`
            stands for anything: one expression, or any number of statements or arguments; `**...` for named ones.
        new: what stands there instead, "" for nothing; the first `...` is what the first one of `old` stood for, and so
            on.
        tests: arguments of pytest, as narrow as they can be.
    """

    row: str
    what: str
    place: str
    old: str
    new: str
    tests: str

    def files(self) -> list[str]:
        """The files and folders of its tests, by their paths in the project."""
        return [test.partition("::")[0] for test in self.tests.split() if test.startswith("tests/")]


class CannotBePutIn(Exception):
    """The sources have no such place, or several."""


def put_in(fault: Fault, sources: Path = SOURCES) -> tuple[Path, str]:
    """The file that the fault changes, and its text with the fault.

    Raises:
        CannotBePutIn: there is no such place, or more than one.
    """
    found = [(path, spot) for path, scope in _scopes(fault, sources) for spot in _spots(fault, scope)]
    if len(found) != 1:
        where = ", ".join(str(path.relative_to(sources)) for path, _ in found)
        raise CannotBePutIn(
            f"{fault.what}: {fault.place} has {len(found) or 'no'} place{'s' * (len(found) != 1)} that read"
            f"{'s' * (len(found) == 1)}\n{fault.old}\n{where}".rstrip()
        )
    path, spot = found[0]
    source = path.read_text("utf-8")
    tree, before = ast.parse(source), _unparsed(source)  # to parse again is faster than to copy
    spot.change(tree, fault.new)
    after = ast.unparse(ast.fix_missing_locations(tree))
    if after == before:
        raise CannotBePutIn(f"{fault.what}: it changes nothing")
    compile(after, str(path), "exec")
    return path, after + "\n"


@dataclass(frozen=True)
class _Spot:
    """Where code stands in a tree: the way there, and what each `...` stands for.

    Attributes:
        way: fields and numbers from the root to a node, or to the list that holds the statements.
        among: which statements of that list; None: the node itself.
        stands_for: a node, or a list of nodes, for each `...`.
    """

    way: tuple[str | int, ...]
    among: slice | None
    stands_for: list[Any]

    def change(self, tree: ast.AST, new: str) -> None:
        left = [copy.deepcopy(each) for each in self.stands_for]
        if self.among is not None:
            statements = _at(tree, self.way)
            statements[self.among] = _filled(_body(new), left)
            if not statements:
                statements.append(ast.Pass())
            return
        *way, last = self.way
        above = _at(tree, way)
        value = _filled(_body(new)[0].value, left)  # type: ignore[attr-defined]  # an expression
        if isinstance(last, int):
            above[last] = value
        else:
            setattr(above, last, value)


def _scopes(fault: Fault, sources: Path) -> Iterator[tuple[Path, tuple[ast.AST, tuple[str | int, ...]]]]:
    """Every class or function that the fault's place may mean, and the way to it."""
    file, _, name = fault.place.partition("::")
    paths = [
        path for path in sorted(sources.rglob("*.py")) if f"/{path.relative_to(sources)}".endswith(f"/{file}")
    ]
    if not paths:
        raise CannotBePutIn(f"{fault.what}: no file below {sources} ends with {file}")
    named = [
        (path, scope)
        for path in paths
        for qualified, *scope in _names(_parsed(path.read_text("utf-8")))
        if qualified == name
    ]
    if not named:
        raise CannotBePutIn(f"{fault.what}: {file} has nothing that is called {name}")
    yield from named


def _names(
    node: ast.AST, prefix: str = "", way: tuple[str | int, ...] = ()
) -> Iterator[tuple[str, ast.AST, tuple[str | int, ...]]]:
    """(qualified name, node, way to it) of a module, "", and of all classes and functions in it."""
    if not way:
        yield "", node, way
    for step, child in _children(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            yield name, child, (*way, *step)
            yield from _names(child, f"{name}.", (*way, *step))
        else:
            yield from _names(child, prefix, (*way, *step))


def _children(node: ast.AST) -> Iterator[tuple[tuple[str | int, ...], ast.AST]]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield (name,), value
        elif isinstance(value, list):
            yield from (((name, i), one) for i, one in enumerate(value) if isinstance(one, ast.AST))


def _spots(fault: Fault, scope: tuple[ast.AST, tuple[str | int, ...]]) -> Iterator[_Spot]:
    """Where `old` stands in a class or function."""
    old, new = _body(fault.old), _body(fault.new)
    if not old:
        raise CannotBePutIn(f"{fault.what}: it says of nothing that it changes")
    expressions = [len(body) == 1 and isinstance(body[0], ast.Expr) for body in (old, new)]
    if all(expressions):
        yield from _expressions(old[0].value, *scope)
    else:
        yield from _statements(old, *scope)


def _expressions(pattern: ast.expr, node: ast.AST, way: tuple[str | int, ...]) -> Iterator[_Spot]:
    if (found := _matched(pattern, node)) is not None:
        yield _Spot(way, None, found)
    for step, child in _children(node):
        yield from _expressions(pattern, child, (*way, *step))


def _statements(pattern: list[ast.stmt], node: ast.AST, way: tuple[str | int, ...]) -> Iterator[_Spot]:
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if not isinstance(statements, list):
            continue
        for start in range(len(statements)):
            for stop in range(start + 1, len(statements) + 1):
                if (found := _matched(pattern, statements[start:stop])) is not None:
                    yield _Spot((*way, name), slice(start, stop), found)
                    break
    for step, child in _children(node):
        yield from _statements(pattern, child, (*way, *step))


def _matched(pattern: Any, value: Any) -> list[Any] | None:
    """What each `...` of a pattern stands for where it fits a value; None where it does not."""
    if isinstance(pattern, ast.expr) and _is_anything(pattern):
        return [value] if isinstance(value, ast.expr) else None
    if isinstance(pattern, list):
        return _in_turn(pattern, value) if isinstance(value, list) else None
    if type(pattern) is not type(value):
        return None
    if not isinstance(pattern, ast.AST):
        return [] if pattern == value else None
    fields = [name for name in pattern._fields if name not in ("kind", "type_comment")]
    return _joined([(getattr(pattern, name), getattr(value, name)) for name in fields])


def _in_turn(patterns: list[Any], values: list[Any]) -> list[Any] | None:
    """As `_matched`, of lists, in which one `...` may stand for any number."""
    if not patterns:
        return None if values else []
    first, rest = patterns[0], patterns[1:]
    if _is_anything(first):
        for n in range(len(values) + 1):
            if (found := _in_turn(rest, values[n:])) is not None:
                return [values[:n], *found]
        return None
    if not values or (found := _matched(first, values[0])) is None:
        return None
    after = _in_turn(rest, values[1:])
    return None if after is None else found + after


def _joined(pairs: list[tuple[Any, Any]]) -> list[Any] | None:
    found = [_matched(pattern, value) for pattern, value in pairs]
    return None if None in found else [each for some in found for each in some or []]


def _is_anything(pattern: ast.AST) -> bool:
    """Whether it is `...`, as an expression or as a statement, or `**...` among arguments."""
    if isinstance(pattern, ast.Expr) or (isinstance(pattern, ast.keyword) and pattern.arg is None):
        pattern = pattern.value
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def _filled(value: Any, left: list[Any]) -> Any:
    """Code with what each `...` stands for in its place."""
    if isinstance(value, list):
        made: list[Any] = []
        for one in value:
            if isinstance(one, ast.AST) and _is_anything(one) and left:
                some = left.pop(0)
                made += some if isinstance(some, list) else [some]
            else:
                made.append(_filled(one, left))
        return made
    if isinstance(value, ast.expr) and _is_anything(value) and left:
        some = left.pop(0)
        if isinstance(some, list):  # what one of several values stood for
            (some,) = some
        return some
    if isinstance(value, ast.AST):
        for name, inner in ast.iter_fields(value):
            setattr(value, name, _filled(inner, left))
    return value


def _at(node: Any, way: Any) -> Any:
    for step in way:
        node = node[step] if isinstance(step, int) else getattr(node, step)
    return node


def _body(code: str) -> list[ast.stmt]:
    return ast.parse(code).body


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _unparsed(text: str) -> str:
    """Return the text as it is written from its tree."""
    return ast.unparse(_parsed(text))
