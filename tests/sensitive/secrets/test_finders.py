"""Finders other than the list of words: what they find, how secrets are named, and what they refuse."""

import pytest

from confide.config.schema import Secrets
from confide.data.readers.documents import Document
from confide.data.spans import Mention
from confide.sensitive.detectors import RECOGNISERS, Span
from confide.sensitive.secrets.finders import Column, Detected, Patterns, RowList, find_all, finders
from confide.utils.errors import InputError


def documents(*texts, fields=()):
    fields = list(fields) or [{}] * len(texts)
    return [
        Document(text, ("u",), None, f"a.jsonl line {number + 1}", fields[number], number)
        for number, text in enumerate(texts)
    ]


def plain(found):
    return [[(m.secret, m.start, m.end) for m in own] for own in found]


class Capitals:
    """A detector for tests: words in capitals are of kind CAP."""

    def find(self, texts):
        return [
            [
                Span(text.index(word), text.index(word) + len(word), "CAP")
                for word in text.split()
                if word.isupper()
            ]
            for text in texts
        ]


def test_patterns_number_distinct_matches_by_first_appearance():
    finder = Patterns({"account": r"\s*\bA-\d+", "any": r"\d\d"})
    assert plain(finder.find(documents("A-12 and  A-7", "A-12", "none"))) == [
        [("account:1", 0, 4), ("any:1", 2, 4), ("account:2", 10, 13)],
        [("account:1", 0, 4), ("any:1", 2, 4)],
        [],
    ]
    # Numbers go on in the next call.
    assert plain(finder.find(documents("A-7 A-99"))) == [
        [("account:2", 0, 3), ("account:3", 4, 8), ("any:2", 6, 8)]
    ]


def test_spellings_that_differ_in_case_or_space_are_one_secret():
    """As two, each would be protected for its own rows alone."""
    finder = Patterns({"mail": r"\w+@[xX]\.com", "account": r"ACC\s+\d+"})
    found = finder.find(documents("bob@x.com ACC 12", "Bob@X.com ACC\n12", "eve@x.com ACC 13"))
    assert [[m.secret for m in own] for own in found] == [
        ["mail:1", "account:1"],
        ["mail:1", "account:1"],
        ["mail:2", "account:2"],
    ]


@pytest.mark.parametrize(
    ("kind", "one", "other", "same"),
    [
        ("IBAN_CODE", "DE89 3704 0044", "de8937040044", True),
        ("PHONE_NUMBER", "555-0100", "(555) 0100", True),
        ("PERSON", "Ann Lee", "ANN  lee", True),
        ("PERSON", "Ann Lee", "Annlee", False),
    ],
)
def test_separators_tell_no_two_numbers_apart(kind, one, other, same):
    class Whole:
        def find(self, texts):
            return [[Span(0, len(text), kind)] for text in texts]

    (first,), (second,) = Detected(Whole(), RECOGNISERS).find(documents(one, other))
    assert (first.secret == second.secret) is same


@pytest.mark.parametrize(
    ("name", "content", "pattern", "message"),
    [
        (
            "rows.txt",
            "1,account:1\n",
            "account",
            r"secrets\.rows: an id begins with 'account', as secrets\.patterns",
        ),
        ("rows.txt", "1,words:1\n", "other", r"secrets\.rows: an id begins with 'words', as secrets\.words"),
        (
            "words.csv",
            "word,id\nfalcon,account:9\n",
            "account",
            r"secrets\.words: an id begins with 'account'",
        ),
    ],
)
def test_no_two_sources_name_one_secret(tmp_path, name, content, pattern, message):
    (tmp_path / name).write_text(content)
    (tmp_path / "list.txt").write_text("falcon\n")
    keys = {"words": str(tmp_path / "list.txt")} | {name.split(".")[0]: str(tmp_path / name)}
    with pytest.raises(InputError, match=message):
        finders(Secrets.model_validate(keys | {"patterns": {pattern: "x"}}))


@pytest.mark.parametrize("expression", ["a*", "(?=b)|c", "", r"\b"])
def test_a_pattern_that_matches_nothing_is_refused(expression):
    with pytest.raises(InputError, match=r"secrets\.patterns\.key: matches the empty string"):
        Patterns({"key": expression}).find(documents("abc"))


def test_a_bad_pattern_is_named_and_not_shown():
    with pytest.raises(
        InputError, match=r"secrets\.patterns\.key: not a regular expression: .* at character"
    ) as e:
        Patterns({"good": "a", "key": "(falcon"})
    assert "falcon" not in str(e.value)


def test_detected_texts_are_numbered_by_kind():
    found = Detected(Capitals()).find(documents("ANN met BOB", "BOB", "CLEO ANN"))
    assert plain(found) == [
        [("CAP:1", 0, 3), ("CAP:2", 8, 11)],
        [("CAP:2", 0, 3)],
        [("CAP:3", 0, 4), ("CAP:1", 5, 8)],
    ]


def test_columns_name_the_secrets_of_whole_documents():
    fields = [
        {"deal": "Delta", "team": ["x", "y", "x"]},
        {"deal": None, "team": []},
        {"deal": 17.0, "team": float("nan")},
    ]
    assert plain(Column(["deal", "team"]).find(documents("abc", "de", "f", fields=fields))) == [
        [("deal:Delta", 0, 3), ("team:x", 0, 3), ("team:y", 0, 3)],
        [],
        [("deal:17", 0, 1)],
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dael": "x"}, r"line 1: secrets\.column names 'deal', which is not there \(did you mean 'dael'"),
        ({"deal": {"falcon": 1}}, r"line 1: secrets\.column field 'deal' holds an object"),
        ({"deal": 1.5}, "holds a number with a fraction"),
    ],
)
def test_bad_columns(fields, message):
    with pytest.raises(InputError, match=message) as caught:
        Column(["deal"]).find(documents("abc", fields=[fields]))
    assert "falcon" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0\n2\n", {0: ["rows"], 2: ["rows"]}),
        ("number,secret\n2,merger\n2,audit\n1,merger\n", {1: ["merger"], 2: ["merger", "audit"]}),
        ("# note\n\n1 , merger\n1,merger\n", {1: ["merger"]}),
        ('0,"deal one"\n1\n', {0: ["deal one"], 1: ["rows"]}),
    ],
)
def test_row_lists(tmp_path, content, expected):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    found = RowList(path).find(documents("abc", "de", "f"))
    assert plain(found) == [
        [(secret, 0, length) for secret in expected.get(number, [])]
        for number, length in enumerate((3, 2, 1))
    ]
    # By the document's own number, not by its place in the call.
    assert plain(RowList(path).find(documents("abc", "de", "f")[1:])) == plain(found)[1:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lists no document"),
        ("number\n", "lists no document"),
        ("0\nfalcon,1\n", "line 2 does not start with a number"),
        ("-1\n0\n", "line 1 does not start"),
        ("0\n1.5\n", "line 2 does not start"),
        ("number\n\nnumber\n", "line 3 does not start"),
    ],
)
def test_bad_row_lists(tmp_path, content, message):
    path = tmp_path / "rows.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"secrets\.rows: .*{message}") as caught:
        RowList(path)
    assert "falcon" not in str(caught.value).replace(str(tmp_path), "")


def test_a_row_that_was_never_read_is_an_error(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("0\n7\n3\n")
    RowList(path).check(8)
    with pytest.raises(InputError, match=r"line 2 lists document 7, but 7 were read"):
        RowList(path).check(7)


def test_the_section_names_its_finders_and_they_merge(tmp_path):
    (tmp_path / "words.txt").write_text("falcon\n")
    (tmp_path / "rows.txt").write_text("1\n")
    secrets = Secrets(
        words=str(tmp_path / "words.txt"),
        patterns={"code": r"\d+"},
        column="deal",
        rows=str(tmp_path / "rows.txt"),
    )
    made = finders(secrets)
    fields = [{"deal": "x"}, {"deal": ""}]
    assert plain(find_all(made, documents("12 falcon", "Falcon 12", fields=fields))) == [
        [("code:1", 0, 2), ("deal:x", 0, 9), ("words:1", 3, 9)],
        [("words:1", 0, 6), ("rows", 0, 9), ("code:1", 7, 9)],
    ]
    assert finders(Secrets()) == []
    assert "falcon" not in repr(made)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"words": "absent.txt"}, r"secrets\.words: absent\.txt: No such file"),
        ({"rows": "absent.txt"}, r"secrets\.rows: absent\.txt: No such file"),
        ({"patterns": {"words": "a"}, "words": "w"}, r"secrets\.patterns: the name 'words' is taken"),
        ({"patterns": {"deal": "a"}, "column": "deal"}, r"secrets\.column: the name 'deal' is taken"),
        ({"column": ["deal", "deal"]}, r"secrets\.column: the name 'deal' is taken"),
        ({"patterns": {" ": "a"}}, r"secrets\.patterns: a name is blank"),
        (
            {"patterns": {"URL": "a"}, "detector": {"patterns": ["URL"]}},
            r"the name 'URL' is taken, secrets\.detector names its secrets so",
        ),
        (
            {"column": "owners", "repository": {"owners": "all"}},
            r"the name 'owners' is taken, secrets\.repository names",
        ),
    ],
)
def test_errors_name_the_key(section, message):
    with pytest.raises(InputError, match=message):
        finders(Secrets.model_validate(section))


def test_mentions_are_small_and_say_nothing_of_the_text():
    mention = Mention("words:1", 0, 6)
    assert repr(mention) == "Mention(secret='words:1', start=0, end=6)"
    assert not hasattr(mention, "__dict__")


def test_a_contextual_level_makes_no_secrets():
    with pytest.raises(InputError, match=r"secrets\.detector\.level: low-contextual marks nearly every word"):
        finders(Secrets.model_validate({"detector": {"level": "low-contextual"}}))
