"""`confide study NAME`: what is refused."""

from tests.command import confide


def test_input_at_fault_is_one_sentence(tmp_path):
    done = confide("study", "user-level", "--data", tmp_path, "--folder", tmp_path / "work")
    assert done.code == 2
    question, sentence = done.err.splitlines()
    assert question.startswith("user-level: ")
    assert sentence.startswith("confide: ")


def test_what_was_added_is_refused_where_nothing_is_kept_or_all_is_made_anew(tmp_path):
    common = ("study", "recipe", "--added", "--folder", tmp_path / "work")
    for options, words in (
        (("--scale", "tiny"), "keeps nothing of recipe at the scale tiny"),
        (("--scale", "full", "--fresh"), "give one of them"),
    ):
        done = confide(*common, *options)
        assert done.code == 2
        assert words in done.err.splitlines()[-1]


def test_a_name_that_no_study_has():
    assert confide("study", "recipes").err == "confide: there is no study 'recipes', did you mean recipe?\n"
    assert "`--list` shows them (user-statistics, " in confide("study", "zzz").err
