"""Write the page of a run where people look for it."""

from pathlib import Path

from confide.reporting.facts import Facts
from confide.reporting.page import page
from confide.runs.folder import Run
from confide.utils.files import private_files, write_text

REPORT, PRIVATE_REPORT = "report.html", "report-private.html"


def write_report(facts: Facts, folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run.

    Args:
        folder: where it goes if `out` is None: `report.html`, or `report-private.html` if it shows what was measured.

    Returns:
        The path of the page.
    """
    path = out or folder / (REPORT if facts.measured is None else PRIVATE_REPORT)
    with private_files():  # who hands it on gives it away by hand
        write_text(path, page(facts))
    return path


def report_of(run: Run) -> Path:
    """Write the page of a finished run into its folder."""
    return write_report(Facts.of(run.root), run.root)
