"""Find the names that a Python file imports, and the files of a code base that they may mean: rather too many."""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_DOTTED_STRING = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)+)(?::[\w.]*)?")
_RUN = re.compile(r"-m\s+([^\W\d][\w.]*)")
_IMPORTER = re.compile(
    r"import|load_module|run_module|find_spec|find_loader|resolve_name|patch", re.IGNORECASE
)
_IMPORT = re.compile(r"(?<![\w.])c?import\s+([^\W\d][^\n;#()]*)")
_FROM = re.compile(
    r"(?<![\w.])from[ \t]*([\w. \t]{0,300}?)(?<=[ \t.])c?import\s*(\((?:[^)#]|#[^\n]*)*\)|[^\n;]*)"
)
_COMPUTED = frozenset("__import__ import_module importorskip import_string import_from_string".split())
_SOURCE = (".py", ".pyw", ".pyx", ".pxi", ".ipynb")
_FILE = re.compile(r"[\"']([^\"'\n]+\.(?:pyw?|pyx|pxi|ipynb))[\"']")
_ROOT_FILES = frozenset({"pyproject.toml", "setup.py", "setup.cfg"})


@dataclass(frozen=True, slots=True)
class Reference:
    """A dotted name of a module, or of something in a module.

    Attributes:
        name: "" for the package itself (`from . import x` refers to "" and to "x").
        level: leading dots; 0 is absolute.
        least: the number of components that must exist as modules for the name to count.
        below: the modules that are meant besides the name itself. "" is none; "children" the modules in the package
            (a star); "below" all modules below it; "namespace" its children if it has no code of its own.
    """

    name: str
    level: int = 0
    least: int = 1
    below: str = ""


@dataclass(slots=True)
class References:
    """All references in a file.

    Attributes:
        modules: the dotted names.
        files: the paths of source files in string literals.
        parsed: whether this Python version can parse the file. If not, the names were found by pattern.
        computed: whether the file imports something by a computed name.
        moves_path: whether the file mentions `sys.path` or `addsitedir`. If so, it may import from any folder.
    """

    modules: set[Reference] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    parsed: bool = True
    computed: bool = False
    moves_path: bool = False


def references(content: bytes, text: str, notebook: bool = False) -> References:
    """Find the references to modules in a Python source file.

    These count: import statements anywhere (in functions, conditions, `if TYPE_CHECKING`); attributes of imported
    names (`import acme` and then `acme.billing.charge`); string literals that are dotted names; string arguments of
    `import_module`, `__import__`, `patch` and similar functions, also with computed endings; and import statements
    within string literals. If a file does not parse (another version, a template, Cython), it is searched by pattern
    for import statements and for all dotted names.
    """
    if notebook:
        content, text = _cells(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = References(set(_by_pattern(text)), parsed=False)
        names = (match[0] for match in _DOTTED.finditer(text))
        found.modules.update(Reference(name, least=2, below="namespace") for name in names)
        found.files.update(_FILE.findall(text))
    else:
        found = _Reading(nodes).found
    found.moves_path = "sys.path" in text or "addsitedir" in text
    return found


def _cells(text: str) -> tuple[bytes, str]:
    """Return the code of a notebook without its command lines (% and !); text that is no notebook stays unchanged."""
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        code = "\n".join("".join(cell["source"]) for cell in cells)
    except (ValueError, KeyError, TypeError):
        return text.encode("utf-8", "replace"), text
    lines = (line for line in code.split("\n") if not line.lstrip().startswith(("%", "!")))
    code = "\n".join(lines)
    return code.encode("utf-8", "replace"), code


def _by_pattern(text: str) -> Iterator[Reference]:
    """Yield the import statements in a text that need not be Python."""
    text = re.sub(r"\\\r?\n", " ", text)
    for match in _FROM.finditer(text):
        base = re.sub(r"\s", "", match[1])
        level = len(base) - len(base.lstrip("."))
        yield from _from(base.lstrip("."), level, _names(match[2]))
    for match in _IMPORT.finditer(text):
        for name in _names(match[1]):
            yield Reference(name, below="namespace")


def _names(listed: str) -> list[str]:
    r"""Return the names in a list after `import`: `(a, b as c, # why\n d)` -> a, b, d."""
    listed = re.sub(r"#[^\n]*", "", listed).strip("()\\ \t\r\n")
    names = (re.sub(r"\s*\.\s*", ".", part.strip()).split() for part in listed.split(","))
    # quotes alone are no name: `import ''` in the text of a program that writes programs
    return [bare for name in names if name and (bare := name[0].strip("()'\""))]


def _from(base: str, level: int, names: Iterable[str]) -> Iterator[Reference]:
    if base or level:
        yield Reference(base, level)
    else:  # text that only looks like a statement, such as the words "taken from import lists"
        names = [name for name in names if name != "*"]
    for name in names:
        if name == "*":
            yield Reference(base, level, below="children")
        else:
            yield Reference(_join(base, name), level, below="namespace")


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


class _Reading:
    """Collects the references in the nodes of a syntax tree."""

    def __init__(self, nodes: list[ast.AST]):
        self.found = References()
        self._bound: dict[str, set[tuple[str, int]]] = defaultdict(
            set
        )  # name -> the modules imported under it
        for node in nodes:
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._string(node.value)
            elif isinstance(node, ast.Call):
                self._call(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.modules.add(Reference(alias.name, below="namespace"))
            top = alias.name.partition(".")[0]
            self._bound[alias.asname or top].add((alias.name if alias.asname else top, 0))

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        self.found.modules.update(_from(base, node.level, (alias.name for alias in node.names)))
        for alias in node.names:
            self._bound[alias.asname or alias.name].add((_join(base, alias.name), node.level))

    def _attribute(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            for name, level in self._bound.get(value.id, ()):
                self.found.modules.add(Reference(_join(name, *reversed(parts)), level))

    def _string(self, value: str) -> None:
        if (match := _DOTTED_STRING.fullmatch(value)) is not None:
            self.found.modules.add(Reference(match[1], least=2, below="namespace"))
        if value.endswith(_SOURCE) and "\n" not in value:
            self.found.files.add(value)
        self.found.modules.update(Reference(match[1], below="namespace") for match in _RUN.finditer(value))
        if "import" in value:
            self.found.modules.update(_by_pattern(value))

    def _call(self, node: ast.Call) -> None:
        callee = node.func
        names = [callee.attr] if isinstance(callee, ast.Attribute) else []
        if isinstance(callee, ast.Name):
            names = [callee.id, *(name for name, _ in self._bound.get(callee.id, ()))]
        if not any(_IMPORTER.search(name) for name in names):
            return
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        starts = [_start_of(argument) for argument in arguments]
        packages = [start for start in starts[1:] if start and _is_whole(start)]
        for start in filter(None, starts):
            for reference in _named(start, packages):
                self.found.modules.add(reference)
        if arguments and not _COMPUTED.isdisjoint(_last(name) for name in names):
            first = starts[0] or "\0"
            relative_to = arguments[1:] if first.startswith(".") else []
            self.found.computed |= first == "\0" or not all(map(_is_known, relative_to))


def _named(start: str, packages: list[str]) -> Iterator[Reference]:
    """Yield the references that a string to an importing function may mean.

    `start` is the name of a module, or the constant start of a name and a NUL. A relative name is relative to one of
    `packages`, or to the package of the file.
    """
    name = start.rstrip("\0").partition(":")[0]
    level = len(name) - len(name.lstrip("."))
    name = name.strip(".")
    if _is_whole(start):
        meant = [(name, "namespace")]
    else:
        # The last component of "acme." is complete; that of "acme.bil" may be cut off.
        meant = [(name, "below")]
        if not start.endswith(".\0"):
            meant.append((name.rpartition(".")[0], "below"))
    for part, below in meant:
        if part or level:
            yield Reference(part, level, below=below)
        for package in packages if level else []:
            base = package.split(".")
            yield Reference(_join(*base[: len(base) - level + 1], part), below=below)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_known(package: ast.expr) -> bool:
    """Tell whether the base of a relative name is a constant or the file's own package."""
    own = isinstance(package, ast.Name) and package.id in ("__package__", "__name__")
    return own or isinstance(package, ast.Constant)


def _is_whole(start: str) -> bool:
    return not start.endswith("\0")


def _start_of(node: ast.expr) -> str | None:
    """Return the string that an expression evaluates to, or its constant start and a NUL; None if it has none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    first: ast.expr | None = None
    if isinstance(node, ast.JoinedStr) and node.values:
        first = node.values[0]
    elif isinstance(node, ast.BinOp):
        first, rest = node.left, _start_of(node.right) if isinstance(node.op, ast.Add) else None
        start = _start_of(first)
        if start is not None and rest is not None and _is_whole(start):
            return start + rest
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        first = node.func.value
    start = None if first is None else _start_of(first)
    return None if start is None else re.split("[%{\0]", start)[0] + "\0"


class PythonModules:
    """The modules of a code base; finds those that a name may mean.

    The search path of Python is not known. So every folder counts that may plausibly be on it:

    - for a name of several components that exist as folders and a file: any folder;
    - for a single module: folders that are not packages; the folder of the importing file and the folders above it;
      and any folder if the file changes `sys.path`, or if a file in the same folder or a `conftest.py` above it does;
    - for a name of the standard library with several components: folders that are not packages. With a single
      component: of these folders only the top, `src`, `lib` or `python`, a folder with a `pyproject.toml`, `setup.py`
      or `setup.cfg`, and the folder of the importing file.

    Importing a module also imports the packages above it, as in Python.
    """

    def __init__(self, paths: Iterable[str], others: Iterable[str] = ()) -> None:
        self._modules: dict[tuple[str, str], list[str]] = defaultdict(list)  # folder, name -> files
        self._within: dict[str, list[str]] = defaultdict(list)  # folder -> names of modules and folders in it
        self._homes: dict[str, set[str]] = defaultdict(set)  # name -> folders with such a module or folder
        self._folders: set[str] = {""}
        for path in paths:
            folder, _, name = path.rpartition("/")
            stem = name.partition(".")[0]
            self._modules[folder, stem].append(path)
            self._homes[stem].add(folder)
            self._within[folder].append(stem)
            self._add_folder(folder)
        self._roots = {""} | {
            path.rpartition("/")[0] for path in others if path.split("/")[-1] in _ROOT_FILES
        }
        self._roots |= {f for f in self._folders if PurePosixPath(f).name in ("src", "lib", "python")}

    def _add_folder(self, folder: str) -> None:
        while folder not in self._folders:
            self._folders.add(folder)
            above, _, name = folder.rpartition("/")
            self._homes[name].add(above)
            self._within[above].append(name)
            folder = above

    def resolve(self, path: str, reference: Reference, anywhere: bool = False) -> set[str]:
        """Return the files that a reference in the file `path` may mean.

        With `anywhere`, the file may import from any folder, since `sys.path` changes.
        """
        own = path.rpartition("/")[0]
        parts = reference.name.split(".") if reference.name else []
        if reference.level:
            base = own.split("/") if own else []
            if reference.level - 1 > len(base):
                return set()
            start = "/".join(base[: len(base) - reference.level + 1])
            files, _ = self._follow(start, parts, reference.below)
            return files | set(self._modules.get((start, "__init__"), ()))
        found: set[str] = set()
        for home in self._homes.get(parts[0], ()):
            files, depth = self._follow(home, parts, reference.below)
            if files and depth >= reference.least and self._plausible(home, own, parts[0], depth, anywhere):
                found |= files
        return found

    def _follow(self, folder: str, parts: list[str], below: str) -> tuple[set[str], int]:
        """Return the files on the way along a dotted name, and the number of its components that exist."""
        files: set[str] = set()
        depth = 0
        for depth, part in enumerate(parts, 1):
            modules = self._modules.get((folder, part), ())
            files.update(modules)
            folder = f"{folder}/{part}" if folder else part
            if folder not in self._folders:
                return files, depth if modules else depth - 1
            files.update(self._modules.get((folder, "__init__"), ()))
        if below and not (below == "namespace" and (folder, "__init__") in self._modules):
            files.update(self._inside(folder, deep=below == "below"))
        return files, depth

    def _inside(self, folder: str, deep: bool) -> Iterator[str]:
        for name in self._within.get(folder, ()):
            yield from self._modules.get((folder, name), ())
            child = f"{folder}/{name}" if folder else name
            if child in self._folders:
                yield from self._modules.get((child, "__init__"), ())
                if deep:
                    yield from self._inside(child, deep)

    def _plausible(self, home: str, own: str, top: str, depth: int, anywhere: bool) -> bool:
        outside = (home, "__init__") not in self._modules
        if top in sys.stdlib_module_names:
            return outside and (depth > 1 or home == own or home in self._roots)
        return depth > 1 or anywhere or outside or f"{own}/".startswith(f"{home}/" if home else "")

    def named(self, dotted: str) -> list[str]:
        """Return the places of a package or module below any folder: `folder/` for a package, or a file."""
        parts = dotted.split(".")
        found = []
        for home in self._homes.get(parts[0], ()):
            folder = "/".join((home, *parts) if home else parts)
            if folder in self._folders:
                found.append(folder + "/")
            above, _, name = folder.rpartition("/")
            found += self._modules.get((above, name), [])
        return found

    def names(self, length: int) -> set[str]:
        """Return all names of modules and packages with `length` components, for suggestions."""
        stems = ((folder, name) for folder, names in self._within.items() for name in names)
        parts = [(f"{folder}/{name}" if folder else name).split("/") for folder, name in stems]
        return {".".join(part[-length:]) for part in parts if len(part) >= length}
