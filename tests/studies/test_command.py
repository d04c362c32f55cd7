"""`confide study NAME`: what is refused."""

from tests.command import confide


def test_input_at_fault_is_one_sentence(tmp_path):
    done = confide("study", "user-level", "--data", tmp_path, "--folder", tmp_path / "work")
    assert done.code == 2
    question, sentence = done.err.splitlines()
    assert question.startswith("user-level: ")
    assert sentence.startswith("confide: ")
