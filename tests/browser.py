"""A page as a reader sees it: in Debian's chromium, without a window and without a network."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    *"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking".split(),
    *"--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars".split(),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
)


def _run(page: Path, *options: str) -> tuple[str, list[str]]:
    """What chromium prints for a page, and what stood on its console."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: no page is opened (scripts/browser.sh installs it)")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [found, *_FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def dom(page: Path) -> tuple[str, list[str]]:
    """The document after it was loaded, as HTML; and the lines of its console."""
    return _run(page, "--dump-dom")


def screenshot(page: Path, picture: Path, width: int = 1000, height: int = 1600) -> None:
    _run(page, f"--screenshot={picture}", f"--window-size={width},{height}")


_FRAME = """<!doctype html><body style="margin:0">
<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe><pre></pre>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument;
  const found = (() => {{ {script} }})();
  document.querySelector("pre").textContent = JSON.stringify(found);
}});
</script>"""


def look(page: Path, script: str, width: int = 1000) -> Any:
    """What `script` returns of the loaded document `page`, laid out `width` pixels wide."""
    frame = page.with_suffix(".frame.html")
    content = html.escape(page.read_text("utf-8"))
    frame.write_text(_FRAME.format(width=width, page=content, script=script), "utf-8")
    shown, _ = _run(frame, "--dump-dom", "--virtual-time-budget=2000")
    return json.loads(html.unescape(shown.rpartition("<pre>")[2].partition("</pre>")[0]))


@dataclass(frozen=True)
class Visit:
    """What a visit to a page showed.

    Attributes:
        requests: addresses that were asked for, beside the page itself.
        console: what stood on the console, and errors of scripts.
        serious: rules of accessibility that are broken, serious and critical ones (axe-core).
    """

    requests: list[str]
    console: list[str]
    serious: list[str]
    scrolls_sideways: bool


@contextmanager
def _chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: no page is opened (scripts/browser.sh installs it)")
    with sync_playwright() as player:
        running = player.chromium.launch(executable_path=found, args=list(_FLAGS[1:]))
        yield running
        running.close()


def visits(page: Path, looks: Sequence[tuple[int, str]]) -> list[Visit]:
    """Open a page at each (width, colour scheme), and look for what a reader would stumble over."""
    with _chromium() as running:
        return [_visit(running, page, width, scheme) for width, scheme in looks]


def _visit(running: Any, page: Path, width: int, scheme: str) -> Visit:
    from axe_playwright_python.sync_playwright import Axe

    tab = running.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    told: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: told.append(message.text))
    tab.on("pageerror", lambda error: told.append(str(error)))
    tab.goto(page.as_uri())
    requests = [url for url in asked if url != page.as_uri() and not url.startswith("data:")]
    seen = list(told)
    sideways = tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    rules = Axe().run(tab).response["violations"]
    tab.close()
    serious = [
        f"{rule['id']}: {rule['nodes'][0]['html'][:200]}"
        for rule in rules
        if rule["impact"] in ("serious", "critical")
    ]
    return Visit(requests, seen, serious, sideways)


def run(page: Path, script: str) -> Any:
    """Return what a function of the loaded page returns."""
    with _chromium() as running:
        tab = running.new_page()
        tab.goto(page.as_uri())
        return tab.evaluate(script)
