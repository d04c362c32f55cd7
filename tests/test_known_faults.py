"""The list of `scripts/faults.py` follows the sources: each fault can still be put in, and its tests are there."""

import pytest

from known_faults import FAULTS
from tests.command import ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_each_fault_can_be_put_in(fault):
    text = (ROOT / "src" / "confide" / fault.file).read_text()
    assert fault.old in text
    assert fault.new != fault.old
    files = [ROOT / test.partition("::")[0] for test in fault.tests.split() if test.startswith("tests/")]
    assert files
    assert all(file.exists() for file in files)
