"""Source code: one record for each file of a folder, and git's knowledge of that folder."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from confide.data.readers.base import Reader
from confide.data.readers.documents import Counts, Record
from confide.data.readers.files import walk
from confide.data.readers.opening import How
from confide.utils.errors import InputError

LARGEST = 1 << 20  # bytes; larger files are data or generated
LARGEST_DATA = (
    1 << 16
)  # bytes of a file in a data format: a setting is smaller, a table or a vocabulary is not
OTHER = "other"  # the language of files whose language is unknown

# The first extension of a language is its usual one.
_PROGRAMMING = {
    "python": "py pyi pyw pyx pxd pxi ipynb",
    "javascript": "js jsx mjs cjs vue svelte astro",
    "typescript": "ts tsx mts cts",
    "java": "java",
    "kotlin": "kt kts",
    "scala": "scala sc",
    "groovy": "groovy gradle",
    "go": "go",
    "c": "c h m inc",
    "c++": "cc cpp cxx c++ hh hpp hxx h++ ipp tpp inl mm cu cuh",
    "c#": "cs",
    "f#": "fs fsx",
    "rust": "rs",
    "ruby": "rb rake",
    "php": "php",
    "swift": "swift",
    "perl": "pl pm",
    "lua": "lua",
    "r": "r",
    "julia": "jl",
    "haskell": "hs",
    "ocaml": "ml mli",
    "elixir": "ex exs",
    "erlang": "erl hrl",
    "clojure": "clj cljs cljc",
    "dart": "dart",
    "shell": "sh bash zsh fish",
    "powershell": "ps1 psm1",
    "sql": "sql",
    "fortran": "f f90 f95",
    "pascal": "pas",
    "zig": "zig",
    "nim": "nim",
    "solidity": "sol",
    "protobuf": "proto",
    "thrift": "thrift",
}
_OTHER_TEXT = {
    "markdown": "md mdx",
    "restructuredtext": "rst",
    "text": "txt",
    "html": "html htm",
    "css": "css scss sass less",
    "json": "json jsonl",
    "yaml": "yaml yml",
    "toml": "toml",
    "ini": "ini cfg conf properties",
    "xml": "xml xsd xsl svg",
    "csv": "csv tsv",
    "terraform": "tf hcl",
}
_DATA = frozenset({"json", "csv", "xml"})
_BY_EXTENSION = {
    f".{extension}": language
    for language, extensions in (_PROGRAMMING | _OTHER_TEXT).items()
    for extension in extensions.split()
}
_BY_NAME = {"SConstruct": "python", "SConscript": "python", "wscript": "python"} | {
    "Makefile": "make",
    "Dockerfile": "docker",
    "Jenkinsfile": "groovy",
    "Rakefile": "ruby",
    "Gemfile": "ruby",
}
_SHEBANG = re.compile(rb"#!.*\b(python|node|deno|bash|zsh|sh|ruby|perl|php|lua|Rscript)")
_INTERPRETERS = {b"node": "javascript", b"deno": "typescript", b"Rscript": "r"} | dict.fromkeys(
    (b"bash", b"zsh", b"sh"), "shell"
)

VENDORED = frozenset(
    "node_modules bower_components jspm_packages __pycache__ site-packages venv virtualenv vendor vendored "
    "_vendor third_party third-party thirdparty Pods Carthage Godeps".split()
)
_LOCKS = frozenset(
    "package-lock.json npm-shrinkwrap.json pnpm-lock.yaml bun.lockb go.sum packages.lock.json "
    "conda-lock.yml gradle.lockfile Package.resolved".split()
)

# Counted by `code_records`, in this order.
ASIDE = "hidden or vendored files"
LOCK = "lock files"
ABSENT = "links, submodules and deleted files"
LARGE = "files larger than 1 MB"
DATA = "data files larger than 64 KB"
BINARY = "binary files"


class Code(Reader):
    """The source files of a folder. A git work tree that tracks programs is recognised."""

    name = "code"

    def recognises_folder(self, folder: Path) -> bool:
        return is_code(folder)

    def check_files(self, source: Path) -> None:
        raise InputError(f"{source}: data.format code reads a folder of source files; give the folder.")

    def read(self, path: Path, how: How) -> Iterator[Record]:
        return self.read_folder(path, how)

    def read_folder(self, folder: Path, how: How) -> Iterator[Record]:
        return code_records(folder, how.counts)


def code_records(folder: Path, counts: Counts | None = None) -> Iterator[Record]:
    """Yield one record for each source file of a folder: `path` (below the folder, with /), `text` and `language`.

    The files are those of `source_files`, without hidden ones and hidden folders, vendored folders, lock files,
    symbolic links, files larger than 1 MB, JSON, CSV and XML larger than 64 KB, and binaries; each kind is
    counted. A file that is not UTF-8 is read as UTF-16 if it starts with that mark, else as Latin-1: older sources are
    in Latin-1, and no file that others import may go missing for an accent. One file is in memory at a time.

    Raises InputError if git fails, a file cannot be read, or none is left.
    """
    counts = Counts() if counts is None else counts
    return _code_records(
        folder, source_files(folder), counts.declare(ASIDE, LOCK, ABSENT, LARGE, DATA, BINARY)
    )


def _code_records(folder: Path, paths: list[str], counts: Counts) -> Iterator[Record]:
    empty = True
    for path in paths:
        reason = _set_aside(folder, path)
        content = b"" if reason else content_of(folder / path)
        text = None if reason else decoded(content)
        if text is None:
            counts[reason or BINARY] += 1
            continue
        empty = False
        fields = {"path": path, "text": text, "language": language_of(path, content)}
        yield Record(fields, str(folder / path))
    if empty:
        raise InputError(f"{folder}: holds no source files.")


def _set_aside(folder: Path, path: str) -> str:
    """Return the reason why a file is not read, as far as it is known without reading the file."""
    *folders, name = path.split("/")
    if any(part.startswith(".") for part in (*folders, name)) or not VENDORED.isdisjoint(folders):
        return ASIDE
    if name in _LOCKS or name.endswith(".lock"):
        return LOCK
    file = folder / path
    # A folder of a tracked file may have become a link since.
    within = any((folder / parent).is_symlink() for parent in PurePosixPath(path).parents[:-1])
    if within or file.is_symlink() or not file.is_file():
        return ABSENT
    size = file.stat().st_size
    if size > LARGEST:
        return LARGE
    return DATA if size > LARGEST_DATA and language_of(path) in _DATA else ""


def content_of(file: Path) -> bytes:
    """Return the bytes of a file. Raises InputError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error}).") from None


def decoded(content: bytes) -> str | None:
    """Decode the text of a source file; None for a binary. See `code_records`."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if b"\x00" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def language_of(path: str, content: bytes = b"") -> str:
    """Return the language of a file.

    The file's extension or name decides; for a name without extension its first line, `#!...`; else it is OTHER.
    """
    name = PurePosixPath(path)
    if name.name in _BY_NAME:
        return _BY_NAME[name.name]
    if name.suffix:
        return _BY_EXTENSION.get(name.suffix.lower(), OTHER)
    found = _SHEBANG.match(content)
    return _INTERPRETERS.get(found[1], found[1].decode()) if found else OTHER


def is_program(language: str) -> bool:
    """Tell whether a language is one that programs are written in, rather than markup or data."""
    return language in _PROGRAMMING


def source_files(folder: Path) -> list[str]:
    """List the files of a code base, as paths below the folder with /, sorted, with hidden and vendored files.

    In a git work tree these are the files that git tracks below the folder (a submodule is one entry): a file that git
    ignores, such as a key or a local setting, is never read. A folder in which an enclosing work tree tracks nothing
    is no part of that work tree. Elsewhere these are all files except those in hidden and vendored folders.

    Raises InputError if git is missing or fails, or tracks nothing in a work tree of its own.
    """
    if any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)):
        tracked = sorted(set(filter(None, git(folder, "ls-files", "-z").split("\0"))))
        if tracked:
            return tracked
        if (folder / ".git").exists():
            raise InputError(f"{folder}: git tracks no files here; `git add` those that are to be read.")
    paths = (path.relative_to(folder) for path in walk(folder))
    return sorted(path.as_posix() for path in paths if VENDORED.isdisjoint(path.parts[:-1]))


def is_code(folder: Path) -> bool:
    """Tell whether a folder is a git work tree that tracks programs: data sets lie in work trees as well."""
    if not (folder / ".git").exists():
        return False
    tracked = git(folder, "ls-files", "-z").split("\0")
    return any(is_program(language_of(path)) for path in tracked)


# Disables what a repository's own settings could make git run or leave out; see `git`.
_SETTINGS = ("core.fsmonitor=false", "log.showSignature=false", "core.quotePath=false")
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


def git(folder: Path, *arguments: str) -> str:
    """Run a read-only git command in a folder; return its output, with bytes that are not UTF-8 as surrogates.

    It takes no locks, fetches nothing, and starts no monitor, pager, signature check or diff tool that the
    repository's settings name. Raises InputError if git is not installed or fails, with git's own words.
    """
    options = [word for setting in _SETTINGS for word in ("-c", setting)]
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "--no-pager", *options, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(f"{folder}: is a git work tree, and git is not installed.") from None
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = words[0] if words else f"exit code {done.returncode}"
        raise InputError(f"{folder}: git {arguments[0]} failed ({reason}).")
    return done.stdout.decode("utf-8", "surrogateescape")
