"""Let mkdocs read pages that are written for GitHub: pages of the root folder join, links to code become plain text."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
JOINING = {name: name.lower() for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)\s*$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root folder."""
    for name, page in JOINING.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links, code apart."""
    of_root = page.file.src_uri in JOINING.values()
    parts = _FENCE.split(markdown)
    return "".join(part if _FENCE.fullmatch(part) else rewritten(part, of_root) for part in parts)


def rewritten(markdown: str, of_root: bool) -> str:
    """Return a text whose links lead to pages of the site.

    Args:
        markdown: the text, as it lies in the repository.
        of_root: it lies in the root folder, and not in docs.
    """
    return _LINK.sub(lambda match: _link(match[1], match[2], of_root), markdown)


def _link(words: str, target: str, of_root: bool) -> str:
    if "://" in target or target.startswith(("#", "mailto:")):
        return f"{words}({target})"
    path, _, anchor = target.partition("#")
    from_root = path if of_root else path.removeprefix("../") if path.startswith("../") else f"docs/{path}"
    page = _page(from_root)
    if page is None:  # a file of the repository, which is no page
        return words.removeprefix("!")[1:-1]
    return f"{words}({page}{'#' + anchor if anchor and page != 'index.md' else ''})"


def _page(path: str) -> str | None:
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return "index.md" if path == "README.md" else JOINING.get(path)
