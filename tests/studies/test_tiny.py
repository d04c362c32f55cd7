"""Every study at the scale `tiny`: it trains or computes, is judged, and makes its tables."""

import re

import pytest
from studies.registry import names, study
from studies.runner import pages, register
from studies.runner.findings import judged
from studies.runner.study import Scale, Work

from confide.privacy.accounting import fixed_bins
from tests.places import DATA


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for all studies. Where bins are kept, the accountant draws less, which decides nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_bins, "DRAWS", 1 << 17)
        yield tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", names())
def test_a_study_runs_to_its_page(name, folder):
    chosen = study(name)
    missing = [each for each in chosen.reads if not (DATA / each).exists()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} of the public data sets")
    rows = chosen.measure(Work(DATA if chosen.reads else None, folder, Scale.TINY))
    assert rows
    assert all(row["version"] for row in rows)
    assert {row["study"] for row in rows} == {name}
    findings = chosen.findings(rows)
    assert findings
    entries = [register.entry(chosen, Scale.TINY, each, rows, "2026-01-02") for each in judged(findings)]
    section = pages.section(chosen, rows, entries)
    for title in (table.title for table in chosen.tables(rows)):
        assert title in section
    pages.draw(chosen, rows, folder / "pictures")
    for picture in re.findall(r"!\[.+\]\((.+)\)", section):
        assert "<svg" in (folder / "pictures" / picture).read_text()
    assert "nan" not in section.lower().replace("finance", "")
