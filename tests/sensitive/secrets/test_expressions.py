"""A user's expression finds what Python's own search finds, and ends."""

# ruff: noqa: E501 - one case a line

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.sensitive.secrets import expressions
from confide.sensitive.secrets.expressions import Expression
from confide.utils.errors import InputError
from tests.command import World, confide, refused, tiny_model

FOREVER = {r"(a|aa)+$": "a" * 60 + "b", r"\s+$": " " * 300_000 + "x"}  # fmt: skip


@pytest.mark.parametrize("expression", FOREVER)
def test_an_expression_that_goes_back_and_forth_is_stopped(monkeypatch, expression):
    monkeypatch.setattr(expressions, "SECONDS", 0.2)
    monkeypatch.setattr(expressions, "_RATE", 1e9)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"^key: takes more than 0 s for one text \(mail\.csv row 3\): "):
        list(Expression(expression, "key").spans(FOREVER[expression], "mail.csv row 3"))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("((a{1000}){1000}){1000}", "is too large"),
        ("((((a{99}){99}){99}){99}){99}", "is too large"),
        ("(?:a{,50}b{30,}){9000}", "is too large"),
        ("a" * 200_000, "is too large"),
        ("a{" + "9" * 5000 + "}", "not a regular expression: a number in it is too large"),
        ("a{99999999999}", "not a regular expression: a number in it is too large"),
        ("(" * 5000 + "a" + ")" * 5000, "has too many groups"),
        ("(ann){e<=1}", "put a backslash before {"),
        ("{id}", "put a backslash before {"),
        ("[[:alpha:]]+", "name no class"),
        ("a*", "matches the empty string"),
        ("(secret", "not a regular expression: "),
    ],
)
def test_what_cannot_be_searched_for_is_refused_at_once(expression, said):
    began = time.process_time()
    with pytest.raises(InputError, match=f"^key: {re.escape(said)}") as caught:
        Expression(expression, "key")
    assert time.process_time() - began < 10  # not seconds for each million characters of the repeats
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).removesuffix("nobody's secret")


PIECES = ["a", "b", "ab", ".", "[ab]", "[^a]", "[]a]", r"\w", r"\d", r"\s", r"\b", "(?:a|b)", "(a)", "a+", "b*", "(?:ab)+?",
          "a{2}", "b{1,2}", "a{,2}", "{", "{x}", r"\{e}", "|", "^", "$", "(?=b)", "(?<!a)b", "ß", "s", "-"]  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5),
    st.sampled_from(["", "(?i)", "(?s)", "(?m)", "(?x)", "(?a)"]),
    st.text("abAB 1\n{}xekkßSsẞ-", max_size=30),
)
def test_it_finds_what_python_finds(pieces, flags, text):
    expression = flags + "".join(pieces)
    try:
        found = list(Expression(expression, "key").spans(text, "here"))
    except InputError:
        return
    assert found == [match.span() for match in re.finditer(expression, text)]


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("secrets.patterns", {"privacy": {"mechanism": "secret"}, "secrets": {"patterns": {"place": "(x|xx)+$"}, "prior": 0.1, "posterior": 0.5}}),
        ("detector.expressions", {"privacy": {"mechanism": "selective", "epsilon": 8}, "detector": {"expressions": {"place": "(x|xx)+$"}}}),
    ],
)  # fmt: skip
def test_a_verb_ends_with_one_sentence(tmp_path, monkeypatch, key, settings):
    monkeypatch.setattr(expressions, "SECONDS", 0.2)
    world = World(tmp_path, tiny_model(tmp_path))
    world.raw |= settings
    world.write('{"user": "a", "text": "%sb"}\n' % ("x" * 60))
    refused(
        confide("prepare", world.path), rf"{key}\.place: takes more than 0 s for one text \(.*text\.jsonl"
    )
