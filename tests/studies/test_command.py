"""`confide study NAME`: what is refused."""

import subprocess
import sys

from tests.command import environment
from tests.places import ROOT


def test_input_at_fault_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "studies", "user-level", "--data", tmp_path]
    command += ["--folder", tmp_path / "work"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 2
    question, sentence = done.stderr.splitlines()
    assert question.startswith("user-level: ")
    assert sentence.startswith("confide: ")
