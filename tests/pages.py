"""The pages of the documentation, taken apart: prose, code blocks, links, headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.places import ROOT

DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)(```|~~~)(\w*).*?\n(.*?)^\1\2\s*$", re.DOTALL | re.MULTILINE)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_END = re.compile(r"(?<=[.:?!]) ")


@dataclass(frozen=True)
class Page:
    """A page of Markdown."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def without_code(self) -> str:
        return _FENCE.sub("", self.text)

    def blocks(self, *kinds: str) -> list[str]:
        """Return the code blocks of these kinds."""
        return [code for _, code in self.kinds_and_blocks(*kinds)]

    def kinds_and_blocks(self, *kinds: str) -> list[tuple[str, str]]:
        """Return (kind, code) of the code blocks of these kinds, in the order of the page."""
        return [(match[3], match[4]) for match in _FENCE.finditer(self.text) if match[3] in kinds]

    def inline(self) -> list[str]:
        """Return what stands in backticks."""
        return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", self.without_code)]

    def links(self) -> list[str]:
        """Return where its links and pictures lead."""
        text = re.sub(r"`[^`]*`", "", self.without_code)
        return [match[2] for match in _LINK.finditer(text.replace("![", "["))]

    def headings(self) -> list[str]:
        return re.findall(r"^#+ (.+)$", self.without_code, re.MULTILINE)

    def anchors(self) -> set[str]:
        """Return the anchors that GitHub gives to its headings."""
        found: dict[str, int] = {}
        for heading in self.headings():
            plain = _LINK.sub(r"\1", heading).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
        return {f"{slug}-{n}" if n else slug for slug, last in found.items() for n in range(last + 1)}

    def paragraphs(self) -> Iterator[str]:
        """Yield paragraphs and points of lists, with their links; no code block, heading, table or picture."""
        text = _IMAGE.sub("", self.without_code)
        lines = [
            "" if line.startswith(("|", "#", "[")) and not _LINK.match(line) else line
            for line in text.splitlines()
        ]
        for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines)):
            words = " ".join(re.sub(r"^\s*([-*]|\d+\.) ", "", block).split())
            if words:
                yield words

    def sentences(self) -> list[str]:
        """Return the sentences as a reader sees them. A colon ends one, as a list may follow it."""
        found = []
        for words in self.paragraphs():
            plain = re.sub(r"[`*]", "", _LINK.sub(r"\1", words))
            found += [sentence for sentence in _END.split(plain) if sentence.strip()]
        return found


README = Page(ROOT / "README.md")
PAGES = [README, *(Page(ROOT / f"{name}.md") for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG"))]
PAGES += [Page(path) for path in sorted(DOCS.glob("*.md"))]
