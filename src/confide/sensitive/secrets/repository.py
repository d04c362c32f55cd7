"""Find the secrets of a code base by facts that its repository knows: paths, owners, authors and imports."""

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
CODEOWNERS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # GitHub uses the first one that exists


class RepositorySecrets:
    """Finds secrets in a code base: each entry of `secrets.repository` is a secret, such as `packages:acme.billing`.

    The mentions are whole files. A file carries a secret

    - of `paths`: if the glob matches the path of the file, as in .gitignore. A glob without a slash, except at its
      end, matches at any depth; any other glob matches from the root. `dir/` and `dir` match everything below. **
      crosses folders; * and ? do not. Brackets stand for themselves (`[id].tsx`), and `!` is refused;
    - of `owners`: if the last line of CODEOWNERS that matches the file names the owner (by GitHub's rules, see
      `codeowners`);
    - of `authors`: if a commit changed the file, under this or an earlier name, and the mail address is that of the
      commit's author, before or after .mailmap, or stands in a Co-authored-by line (see `authors_of`);
    - of `packages`: if the file is the module or lies in the folder of the package, which may be below any folder
      (`src`, the top, a namespace). Data files count, too;
    - with `imports`, also if it imports a file that carries the secret, directly or through others (see
      `ImportGraph`).

    All tracked files take part, even those that `code_records` leaves out. So imports through a vendored module are
    found. The constructor reads the repository once.

    Attributes:
        own: secret -> its files by path, owner, author or package, relative to the root.
        carried: secret -> these files and the files that import them.
        counts: the numbers of all files, of files whose imports are not fully known, and of files with uncommitted
            changes.
    """

    def __init__(self, section: Repository, folder: str | Path) -> None:
        """Read the repository; `folder` is the value of `data.train`.

        Documents have a field `path`, which is relative to `folder`.

        Raises:
            InputError: an entry matches nothing (the message suggests the nearest name); CODEOWNERS or the history is
                missing, or the history is incomplete; a file cannot be read, or git fails.
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
        """Return one list of mentions for each document, in the order of the config.

        Raises:
            InputError: a document has no `path` or is not a file of the code base, so its secrets are not known.
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
    """Yield the globs that may be meant for a file: its path, its name, its file ending, the folders above it."""
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
    """Yield the secrets of owners or authors, each with its files.

    `names` has the names as they are written, and `files` has the files of each. The keys of both are lower case.
    """
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
    """Compile a pattern of .gitignore to an expression that matches whole paths with /.

    With `nested` false, it is a pattern of CODEOWNERS. The two differ in `dir/*`: in .gitignore this also matches the
    folders in `dir` with everything in them, in CODEOWNERS only files.
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
    """A line of CODEOWNERS: a pattern and the owners of matching files, as they are written; there may be none."""

    matches: Callable[[str], re.Match[str] | None]
    owners: tuple[str, ...]


def codeowners(text: str) -> list[OwnerLine]:
    r"""Read the lines of a CODEOWNERS file by GitHub's rules: the last line that matches a file decides.

    A line has a pattern (with escaped spaces) and any number of owners. # begins a comment. Files that match a line
    without owners have no owner. Lines that begin with ! or \# are skipped, since GitHub considers them invalid.
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
    """Return the owners as they are written, and the files of each; the keys of both are in lower case."""
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
    "-c",  # of a merge, the changes against all its parents: the merge's author wrote them
    "-l2000",
    "--root",
    "--name-status",
    "--no-ext-diff",
    "--no-textconv",
    "--format=%x01%ae%x02%aE%x02%(trailers:key=Co-authored-by,valueonly,unfold,separator=%x02)%x03",
)
_MAIL = re.compile(r"<([^<>]*)>\s*$")


def authors_of(root: Path) -> dict[str, set[str]]:
    """Return the mail addresses of all authors of each file, in lower case.

    The history of HEAD counts, with deleted files. It takes one call of `git log`. Git may take a file for a renamed
    one, or for a copy of a file that changed in the same commit (half of the content is the same). Then the file also
    has the authors of the other file, whenever they wrote. If less than half a file moves, the author of the moving
    commit counts as the author of these lines. Changes that are not committed have no author.

    Raises:
        InputError: the folder is not a git work tree, or it is a shallow clone, which lacks the older authors.
    """
    if git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        raise InputError(
            f"{KEY}.authors: {root} is a shallow clone: the older authors are not in it; "
            "run `git fetch --unshallow`."
        )
    authors: dict[str, set[str]] = defaultdict(set)
    later: dict[str, set[str]] = defaultdict(set)  # name -> the names of files that its content went to
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
    """Yield the earlier name (or None) and the present name of each file from the output of git --name-status -z.

    An entry is `M`, path; or `R87`, path, path.
    """
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
        found[name] = set()  # so that authors whose files are all gone are known, too
    for path in files:
        for name in authors.get(prefix + path, ()):
            found[name].add(path)
    return {name: frozenset(paths) for name, paths in found.items()}
