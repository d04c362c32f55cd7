"""Where the secrets of a code base are, by what the repository already knows: paths, owners, authors, imports."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from confide.config.schema import Repository
from confide.data.readers.code import content_of, decoded, git, language_of, source_files
from confide.data.readers.documents import Counts, Document
from confide.data.spans import Mention
from confide.sensitive.secrets.imports import ImportGraph
from confide.sensitive.secrets.python_imports import PythonModules
from confide.utils.errors import InputError

KEY = "secrets.repository"

UNCOMMITTED = "files with changes that are not committed, whose author git does not know"
CODEOWNERS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # GitHub takes the first that is there


class RepositorySecrets:
    """Each entry of `secrets.repository` is one secret, `packages:acme.billing`; whole files are its mentions.

    A file carries a secret

    - `paths`: if the glob matches its path, as in .gitignore: without a slash but at the end it holds at any
      depth, else from the root; `dir/` and `dir` take all below; ** crosses folders; * and ? do not. Brackets
      stand for themselves (`[id].tsx`), and `!` is refused;
    - `owners`: if the last line of CODEOWNERS that matches it names the owner (GitHub's rules, see `codeowners`);
    - `authors`: if the author of any commit that changed it, under this or an earlier name, has this mail
      address, before or after .mailmap, or stands in a Co-authored-by line (see `authors_of`);
    - `packages`: if it is the module, or lies in the package's folder, data files too, below whatever folder
      (`src`, the top, a namespace);
    - and, with `imports`, if it imports a file that carries it, directly or through others (see `ImportGraph`).

    All tracked files take part, also those that `code_records` leaves out: what is imported through a vendored
    module is found. The repository is read once, when this is made.

    Attributes:
        own: secret -> files by path, owner, author or package, below the root.
        carried: secret -> these and the files that import them.
        counts: files seen; imports that could not be read; changes that are not committed.
    """

    def __init__(self, section: Repository, folder: str | Path) -> None:
        """`folder` is what `data.train` names; documents have a field `path` below it.

        Raises:
            InputError: an entry matches nothing (the nearest is named); no CODEOWNERS, no history, or a part of
                it only; a file or git cannot be read.
        """
        folder = Path(folder).expanduser()
        root = folder if section.root is None else Path(section.root).expanduser()
        if not root.is_dir():
            key = "data.train" if section.root is None else f"{KEY}.root"
            raise InputError(f"{key}: {root} is not a folder, and {KEY} needs that of a code base.")
        self._root = root
        resolved, top = folder.resolve(), root.resolve()
        self._below = resolved.relative_to(top) if resolved.is_relative_to(top) else PurePosixPath()
        files = source_files(root)
        self.counts = Counts({"files in the code base": len(files)})
        self.own = dict(_own(section, root, files, self.counts))
        self.carried: Mapping[str, frozenset[str]] = self.own
        if section.imports and self.own:
            graph = ImportGraph.of(root, files)
            self.counts.update(graph.counts)
            self.carried = {secret: graph.importers(own) for secret, own in self.own.items()}
        self._secrets: dict[str, list[str]] = {path: [] for path in files}
        for secret, carriers in self.carried.items():
            for path in carriers:
                self._secrets[path].append(secret)

    def find(self, documents: Sequence[Document]) -> list[list[Mention]]:
        """One list a document, in the order of the config.

        Raises InputError for a document without a `path`, and for one that is no file of the code base: what it
        carries is not known.
        """
        return [self._find_in(document) for document in documents]

    def _find_in(self, document: Document) -> list[Mention]:
        path = document.fields.get("path")
        if not isinstance(path, str):
            raise InputError(f"{document.where}: has no field 'path'; {KEY} needs data.format code.")
        place = (self._below / path).as_posix()
        if place not in self._secrets:
            raise InputError(f"{document.where}: {place} is no file of the code base {self._root}.")
        return [Mention(secret, 0, len(document.text)) for secret in self._secrets[place]]


def _own(
    section: Repository, root: Path, files: list[str], counts: Counts
) -> Iterator[tuple[str, frozenset[str]]]:
    for pattern in section.paths:
        yield f"paths:{pattern}", _matching(pattern, files)
    if section.owners:
        names, owned = _owned(root, files)
        yield from _of_people("owners", section.owners, names, owned, "in CODEOWNERS")
    if section.authors:
        written = _files_by_author(root, files)
        changed = git(root, "diff", "--name-only", "--no-ext-diff", "--relative", "-z", "HEAD", "--")
        counts[UNCOMMITTED] += changed.count("\0")
        yield from _of_people(
            "authors", section.authors, {name: name for name in written}, written, "in git log"
        )
    if section.packages:
        modules = PythonModules(path for path in files if language_of(path) == "python")
        for name in section.packages:
            yield f"packages:{name}", _package(name, modules, files)


def _matching(pattern: str, files: list[str]) -> frozenset[str]:
    if pattern.startswith("!") or ":" in pattern or not pattern.strip("/ "):
        raise InputError(f"{KEY}.paths: {pattern!r} cannot be used: it is blank, negates, or has a colon.")
    matches = glob(pattern).fullmatch
    found = frozenset(path for path in files if matches(path))
    if not found:
        known = {place for path in files for place in _places(path)}
        bare = pattern if pattern in known else pattern.lstrip("/")
        raise _nothing("paths", pattern, "matches no file", bare, known)
    return found


def _places(path: str) -> Iterator[str]:
    """What a glob for a file may say: the file, its name, its kind, the folders above it."""
    place = PurePosixPath(path)
    yield from (path, place.name, f"*{place.suffix}")
    for folder in list(place.parents)[:-1]:
        yield f"{folder}/"


def _of_people(
    kind: str,
    asked: Sequence[str] | str,
    names: Mapping[str, str],
    files: Mapping[str, frozenset[str]],
    where: str,
) -> Iterator[tuple[str, frozenset[str]]]:
    """`names`: what stands there, by its lower-case form; `files`: theirs, by the same."""
    if asked == "all":
        yield from ((f"{kind}:{name}", files[key]) for key, name in names.items() if files.get(key))
        return
    for name in asked:
        key = name.strip().lower()
        if key not in names:
            raise _nothing(kind, name, f"is nowhere {where}", name, names.values())
        if not files.get(key):
            raise InputError(f"{KEY}.{kind}: {name!r} has no file that is still there.")
        yield f"{kind}:{name}", files[key]


def _package(name: str, modules: PythonModules, files: list[str]) -> frozenset[str]:
    places = modules.named(name)
    folders = tuple(place for place in places if place.endswith("/"))
    found = frozenset(path for path in files if path in places or path.startswith(folders or ("\0",)))
    if not found:
        raise _nothing("packages", name, "matches no module", name, modules.names(name.count(".") + 1))
    return found


def _nothing(kind: str, entry: str, what: str, like: str, known: Iterable[str]) -> InputError:
    close = difflib.get_close_matches(like, sorted(set(known)), n=1, cutoff=0.5)
    return InputError(f"{KEY}.{kind}: {entry!r} {what}{f', did you mean {close[0]}?' if close else '.'}")


def glob(pattern: str, nested: bool = True) -> re.Pattern[str]:
    """What a pattern of .gitignore, or with `nested` false of CODEOWNERS, matches of whole paths with /.

    They differ in `dir/*`: in .gitignore it takes the folders in `dir` with all that is in them, in CODEOWNERS
    only files.
    """
    body = pattern.strip()
    only_folder = body.endswith("/")
    anchored = "/" in body.rstrip("/")
    parts = body.strip("/").split("/")
    expression = "" if anchored else "(?:.*/)?"
    for part in parts[:-1]:
        expression += "(?:.*/)?" if part == "**" else _component(part) + "/"
    last = parts[-1]
    expression += ".+" if last == "**" else _component(last)
    if only_folder:
        expression += "/.+"
    elif last != "**" and (nested or last != "*" or not anchored):
        expression += "(?:/.*)?"
    return re.compile(expression, re.DOTALL)


def _component(part: str) -> str:
    pieces = re.findall(r"\\.|\*+|\?|[^\\*?]+|\\", part, re.DOTALL)
    return "".join(
        "[^/]*" if piece[0] == "*" else "[^/]" if piece == "?" else re.escape(re.sub(r"\\(.)", r"\1", piece))
        for piece in pieces
    )


@dataclass(frozen=True, slots=True)
class OwnerLine:
    """A line of CODEOWNERS: a pattern and who owns what it matches, as it is written there; perhaps nobody."""

    matches: Callable[[str], re.Match[str] | None]
    owners: tuple[str, ...]


def codeowners(text: str) -> list[OwnerLine]:
    """The lines of a CODEOWNERS file, by GitHub's rules: of those that match a file the last one holds.

    A line has a pattern (spaces escaped) and any number of owners; # begins a comment; a line without owners
    unowns. Lines that GitHub takes for invalid, which begin with ! or \\#, are passed over.
    """
    lines = []
    for line in text.splitlines():
        words = [word for word in re.split(r"(?<!\\)\s+", line) if word]
        comments = (number for number, word in enumerate(words) if word.startswith("#"))
        words = words[: next(comments, len(words))]
        if words and not words[0].startswith(("!", "\\#")):
            lines.append(OwnerLine(glob(words[0], nested=False).fullmatch, tuple(words[1:])))
    return lines


def _owned(root: Path, files: list[str]) -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Owners as they are written, and their files; both by the name in lower case."""
    found = [path for path in CODEOWNERS if (root / path).is_file()]
    if not found:
        raise InputError(
            f"{KEY}.owners: {root} holds no {', '.join(CODEOWNERS)}; "
            f"set {KEY}.root to the top of the repository."
        )
    lines = codeowners(decoded(content_of(root / found[0])) or "")
    names: dict[str, str] = {}
    for line in lines:
        for name in line.owners:
            names.setdefault(name.lower(), name)
    owned: dict[str, set[str]] = defaultdict(set)
    for path in files:
        last = next((line for line in reversed(lines) if line.matches(path)), None)
        for name in last.owners if last else ():
            owned[name.lower()].add(path)
    return names, {name: frozenset(paths) for name, paths in owned.items()}


_BEGIN, _FIELD, _END = "\x01", "\x02", "\x03"
_LOG = (
    "log",
    "-z",
    "-M",
    "-C",
    "-c",  # of a merge what differs from all its parents: its author put that together
    "-l2000",
    "--root",
    "--name-status",
    "--no-ext-diff",
    "--no-textconv",
    "--format=%x01%ae%x02%aE%x02%(trailers:key=Co-authored-by,valueonly,unfold,separator=%x02)%x03",
)
_MAIL = re.compile(r"<([^<>]*)>\s*$")


def authors_of(root: Path) -> dict[str, set[str]]:
    """File -> mail addresses, in lower case, of all who wrote it in the history of HEAD; deleted files as well.

    One call of git. A file that git takes for the new name of another, or for a copy of one that changed in the
    same commit (half of the content the same), has its authors too, whenever they wrote. Lines that moved by
    less than half a file, and changes that are not committed, go by who committed the move, or nobody.

    Raises InputError for a folder that is no git work tree, and for a shallow clone, which names no author of
    what is older.
    """
    if git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise InputError(
            f"{KEY}.authors: {root} is a shallow clone: the older authors are not in it; "
            "run `git fetch --unshallow`."
        )
    authors: dict[str, set[str]] = defaultdict(set)
    later: dict[str, set[str]] = defaultdict(set)  # name -> names that its content went to
    for commit in git(root, *_LOG).split(_BEGIN)[1:]:
        head, _, changes = commit.partition(_END)
        raw, mapped, *trailers = head.split(_FIELD)
        found = {raw.lower(), mapped.lower()}
        found |= {match[1].strip().lower() for match in map(_MAIL.search, trailers) if match}
        for earlier, path in _changes(changes):
            authors[path] |= found
            if earlier is not None:
                later[earlier].add(path)
    waiting = list(later)
    while waiting:
        earlier = waiting.pop()
        for path in later.get(earlier, ()):
            if not authors[earlier] <= authors[path]:
                authors[path] |= authors[earlier]
                waiting.append(path)
    return authors


def _changes(listed: str) -> Iterator[tuple[str | None, str]]:
    """Earlier and present name of each file in git's --name-status -z: `M`, path; or `R87`, path, path."""
    words = iter([word for word in listed.strip("\n\0").split("\0") if word])
    for status in words:
        moved = status.lstrip("\n")[1:].isdigit()
        earlier = next(words) if moved else None
        yield earlier, next(words)


def _files_by_author(root: Path, files: list[str]) -> dict[str, frozenset[str]]:
    prefix = git(root, "rev-parse", "--show-prefix").removesuffix("\n")
    authors = authors_of(root)
    found: dict[str, set[str]] = defaultdict(set)
    for name in sorted(set().union(*authors.values())):
        found[name] = set()  # who has no file that is still there is known all the same
    for path in files:
        for name in authors.get(prefix + path, ()):
            found[name].add(path)
    return {name: frozenset(paths) for name, paths in found.items()}
