"""Build the import graph of a code base; files inherit the secrets of the files that they import."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.data.readers.code import content_of, decoded, is_program, language_of
from confide.data.readers.documents import Counts
from confide.sensitive.secrets.python_imports import PythonModules, references

BY_PATTERN = "Python files that do not parse, searched by pattern"
COMPUTED = "Python files that import by a name they compute"
UNREAD = "files in languages whose imports are not read"

_SCRIPT = frozenset({"javascript", "typescript"})
_C = frozenset({"c", "c++"})
_PACKAGED = frozenset({"java", "kotlin", "scala", "groovy"})

Targets = Callable[[str, str], set[str]]  # maps path and text of a file to the files that it imports


@dataclass(frozen=True)
class ImportGraph:
    """The files of a code base and the files that they import.

    The graph has too many imports rather than too few: if a name may mean several files, it means all of them. These
    languages are covered:

    - Python, with stubs, Cython and notebooks: see `python_imports`;
    - JavaScript and TypeScript, also in Vue, Svelte and Astro files: every string that starts with ./ or ../ and
      names a file; and import, export, require and import() of packages of the same code base (found by their
      package.json), of aliases in tsconfig.json, and of paths that start at a folder further up;
    - C and C++: #include and #import, by the end of the path, from any folder;
    - Java, Kotlin, Scala and Groovy: files of the same package import each other, since they need no statement to do
      so; and any dotted name that begins with the name of a package imports this package;
    - Go: the same rules, where a package is a folder, and its name is the module in go.mod plus the folder.

    Files in other programming languages have no imports here, and they are counted. If a program computes the name of
    a module, only the constant start of the name is known. Python files with a name that has no such start are counted.

    Attributes:
        imports: file -> the files that it imports directly; files without imports are left out.
        counts: the numbers of files that are counted as described above, and of Python files that do not parse.
    """

    imports: Mapping[str, frozenset[str]]
    counts: Counts

    @classmethod
    def of(cls, root: Path, paths: Sequence[str]) -> ImportGraph:
        """Build the graph of the files `paths`, which are relative to `root` and use /.

        This reads every program among them, one at a time.

        Raises:
            InputError: a file cannot be read.
        """
        counts = Counts().declare(BY_PATTERN, COMPUTED, UNREAD)
        files = _Files(root, paths)
        resolvers: dict[str, Targets] = dict.fromkeys(_SCRIPT, _Scripts(files).targets)
        resolvers |= dict.fromkeys(_C, _Includes(files).targets)
        resolvers |= dict.fromkeys(_PACKAGED, _Packages(files).targets) | {"go": _GoPackages(files).targets}
        python = _Python(files, counts)
        imports = {}
        for path, language in files.languages.items():
            if language == "python":
                found = python.targets(path)
            elif language in resolvers:
                found = resolvers[language](path, files.text(path))
            else:
                counts[UNREAD] += is_program(language)
                continue
            found.discard(path)
            if found:
                imports[path] = frozenset(found)
        return cls(imports, counts)

    def importers(self, files: Iterable[str]) -> frozenset[str]:
        """Return `files` and all files that import one of them, directly or through others."""
        backwards = self._imported_by
        reached = set(files)
        waiting = list(reached)
        while waiting:
            for importer in backwards.get(waiting.pop(), ()):
                if importer not in reached:
                    reached.add(importer)
                    waiting.append(importer)
        return frozenset(reached)

    @property
    def _imported_by(self) -> dict[str, list[str]]:
        backwards: dict[str, list[str]] = defaultdict(list)
        for path, imported in self.imports.items():
            for target in imported:
                backwards[target].append(path)
        return backwards


class _Files:
    """The files of a code base that exist, with their languages."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self.root = root
        self.paths = [path for path in paths if (root / path).is_file() and not (root / path).is_symlink()]
        self.languages = {path: self._language(path) for path in self.paths}

    def _language(self, path: str) -> str:
        if "." in path.rpartition("/")[2]:
            return language_of(path)
        with (self.root / path).open("rb") as file:
            return language_of(path, file.read(256))

    def of(self, languages: Collection[str]) -> list[str]:
        return [path for path, language in self.languages.items() if language in languages]

    def named(self, pattern: str) -> list[str]:
        return [path for path in self.paths if re.fullmatch(pattern, path.rpartition("/")[2])]

    def text(self, path: str) -> str:
        """Return the text of a file, even if a stray NUL makes it look like a binary file."""
        content = content_of(self.root / path)
        return decoded(content) or decoded(content.replace(b"\x00", b"")) or ""


class _Python:
    def __init__(self, files: _Files, counts: Counts) -> None:
        self._files, self._counts = files, counts
        paths = files.of({"python"})
        self._known = frozenset(paths)
        self._modules = PythonModules(paths, files.paths)
        moving = [path for path in paths if "sys.path" in files.text(path)]
        self._moving = {folder_of(path) for path in moving}
        self._moving_below = {folder_of(path) for path in moving if path.endswith("conftest.py")}

    def targets(self, path: str) -> set[str]:
        content = content_of(self._files.root / path)
        found = references(content, self._files.text(path), path.endswith(".ipynb"))
        self._counts[BY_PATTERN] += not found.parsed
        self._counts[COMPUTED] += found.computed
        own = folder_of(path)
        anywhere = found.moves_path or own in self._moving
        anywhere = anywhere or any(is_below(own, folder) for folder in self._moving_below)
        targets: set[str] = set()
        for reference in found.modules:
            targets |= self._modules.resolve(path, reference, anywhere)
        for name in found.files:
            name = posixpath.normpath(name).lstrip("./")
            targets |= {joined for joined in (name, posixpath.join(own, name)) if joined in self._known}
            if "/" in name:
                targets |= {known for known in self._known if known.endswith("/" + name)}
        return targets


_RELATIVE = re.compile(r"[\"'`](\.{1,2}(?:/[^\"'`\n]*)?)[\"'`]")
_SPECIFIER = re.compile(
    r"(?:\bfrom|\bimport|\brequire|\bresolve|\bmock|\bpath\s*=)\s*\(?\s*(?:/\*.*?\*/\s*)*"
    r"[\"'`]([^\"'`\n]+)[\"'`]",
    re.DOTALL,
)
_ALIAS = re.compile(r"\"([^\"*\s]+)/?\*?\"\s*:\s*\[?\s*\"([^\"]+)\"")
_PACKAGE_NAME = re.compile(r"\"name\"\s*:\s*\"([^\"]+)\"")
_SCRIPT_ENDING = re.compile(r"(\.d)?\.(m|c)?[jt]sx?$|\.(vue|svelte|astro)$")
_ALIAS_SIGNS = re.compile(r"^(?:[@~#]?/|~)")


class _Scripts:
    """The imports of JavaScript and TypeScript."""

    def __init__(self, files: _Files) -> None:
        self._paths = frozenset(files.of(_SCRIPT)) | frozenset(
            files.named(r".*\.(json|css|scss|graphql|wasm)")
        )
        self._stems: dict[str, list[str]] = defaultdict(list)
        self._ends: dict[str, list[str]] = defaultdict(list)  # the last component of a stem -> the stems
        self._folders: dict[str, list[str]] = defaultdict(list)
        for path in self._paths:
            self._stems[_SCRIPT_ENDING.sub("", path)].append(path)
            folder = folder_of(path)
            while folder:
                self._folders[folder].append(path)
                folder = folder_of(folder)
        for stem in self._stems:
            self._ends[stem.rpartition("/")[2]].append(stem)
            if stem.endswith("/index"):
                self._ends[stem.split("/")[-2]].append(stem.removesuffix("/index"))
        self._packages = {}
        for path in files.named(r"package\.json"):
            if (name := _PACKAGE_NAME.search(files.text(path))) is not None:
                self._packages[name[1]] = folder_of(path)
        self._aliases: list[tuple[str, str]] = []
        for path in files.named(r"[tj]sconfig.*\.json"):
            self._aliases += _ALIAS.findall(files.text(path))

    def targets(self, path: str, text: str) -> set[str]:
        own = folder_of(path)
        found: set[str] = set()
        for name in {*_RELATIVE.findall(text), *_SPECIFIER.findall(text)}:
            place = posixpath.normpath(posixpath.join(own, _constant(name)))
            found |= self._at("" if place == "." else place, name)
            if not name.startswith("."):
                found |= self._elsewhere(name)
        return found

    def _at(self, place: str, name: str) -> set[str]:
        """Return the files that a path may mean, with any ending; if its end is computed, all that begin with it."""
        stem = _SCRIPT_ENDING.sub("", place)
        if _constant(name) != name:
            place += "/" if _constant(name).endswith("/") else ""
            return {known for known in self._paths if known.startswith(place)}
        found = {place} & self._paths
        for candidate in (place, stem, f"{place}/index" if place else "index"):
            found.update(self._stems.get(candidate, ()))
        if not found or f"{place}/package.json" in self._paths:
            found.update(self._folders.get(place, ()))
        return found

    def _elsewhere(self, name: str) -> set[str]:
        name = name.partition("?")[0].removeprefix("node:")
        found: set[str] = set()
        for package, folder in self._packages.items():
            if name == package or name.startswith(package + "/"):
                found.update(self._folders.get(folder, ()) if folder else self._paths)
        for alias, target in self._aliases:
            if name == alias or name.startswith(alias.rstrip("/") + "/"):
                rest = name[len(alias) :].strip("/")
                found |= self._ending(posixpath.join(target.rstrip("*/").lstrip("./"), rest).rstrip("/"))
        bare = _ALIAS_SIGNS.sub("", name)
        if bare != name or ("/" in bare and not bare.startswith("@")):
            found |= self._ending(bare)
        return found

    def _ending(self, name: str) -> set[str]:
        """Return the files in any folder whose path, without its file ending, ends with `name`."""
        name = _constant(name)
        stem = _SCRIPT_ENDING.sub("", name)
        found: set[str] = set()
        for known in self._ends.get(stem.rpartition("/")[2], ()):
            if known == stem or known.endswith("/" + stem):
                found.update(self._stems.get(known, ()))
                found.update(self._stems.get(f"{known}/index", ()))
        return found


def _constant(name: str) -> str:
    """Return the part of a name before anything that is computed or is a pattern."""
    return re.split(r"\$\{|[*?!]", name)[0]


_INCLUDE = re.compile(r"#\s*(?:include(?:_next)?|import)\s*[<\"]([^>\"\n]+)[>\"]")


class _Includes:
    """The imports of C and C++: by the end of the path, since the search path of the compiler is not known."""

    def __init__(self, files: _Files) -> None:
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in files.paths:
            self._by_name[path.rpartition("/")[2]].append(path)

    def targets(self, path: str, text: str) -> set[str]:
        found: set[str] = set()
        for name in _INCLUDE.findall(text.replace("\\\n", "")):
            parts = [part for part in name.replace("\\", "/").split("/") if part not in (".", "..")]
            end = "/" + "/".join(parts)
            found.update(known for known in self._by_name.get(parts[-1], ()) if f"/{known}".endswith(end))
        return found


_PACKAGE = re.compile(r"^\s*package\s+(?:object\s+)?([\w.`]+)", re.MULTILINE)
_DOTTED = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)+")


class _Packages:
    """The imports of Java, Kotlin, Scala and Groovy: the files of the own package and of packages that are named."""

    def __init__(self, files: _Files) -> None:
        self._members: dict[str, set[str]] = defaultdict(set)
        for path in files.of(_PACKAGED):
            self._members[self._package(path, files.text(path))].add(path)

    @staticmethod
    def _package(path: str, text: str) -> str:
        declared = _PACKAGE.findall(text)
        return ".".join(declared).replace("`", "") if declared else f"/{folder_of(path)}"

    def targets(self, path: str, text: str) -> set[str]:
        found = set(self._members[self._package(path, text)])
        for match in _DOTTED.finditer(text.replace("`", "")):
            parts = re.sub(r"\s", "", match[0]).split(".")
            for length in range(len(parts), 0, -1):
                if members := self._members.get(".".join(parts[:length])):
                    found |= members
                    break
        return found


_GO_MODULE = re.compile(r"^\s*module\s+\"?([^\s\"]+)", re.MULTILINE)
_GO_STRING = re.compile(r"[\"`]([\w.~/-]+)[\"`]")


class _GoPackages:
    """The imports of Go: a package is a folder, named by the module in go.mod and the path below it."""

    def __init__(self, files: _Files) -> None:
        self._members: dict[str, set[str]] = defaultdict(set)
        for path in files.of({"go"}):
            self._members[folder_of(path)].add(path)
        self._names: dict[str, set[str]] = defaultdict(set)  # import path -> folders
        modules = {folder_of(path): _GO_MODULE.search(files.text(path)) for path in files.named(r"go\.mod")}
        for folder in self._members:
            for base, module in modules.items():
                if module is not None and is_below(folder, base):
                    self._names[posixpath.join(module[1], posixpath.relpath(folder or ".", base or "."))].add(
                        folder
                    )
            parts = folder.split("/")  # for a GOPATH, and for packages vendored under their name
            for start in range(len(parts) - 1):
                self._names["/".join(parts[start:])].add(folder)
        self._names = {posixpath.normpath(name): folders for name, folders in self._names.items()}

    def targets(self, path: str, text: str) -> set[str]:
        found = set(self._members[folder_of(path)])
        for name in _GO_STRING.findall(text):
            for folder in self._names.get(name, ()):
                found |= self._members[folder]
        return found


def folder_of(path: str) -> str:
    """Return the folder of a path that uses /; it is "" at the top."""
    return path.rpartition("/")[0]


def is_below(folder: str, top: str) -> bool:
    """Tell whether a folder is `top` or below it."""
    return not top or folder == top or folder.startswith(top + "/")
