"""A page as a reader sees it: in Debian's chromium, without a window and without a network."""

import html
import json
import re
import shutil
import subprocess
import tempfile
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
