"""From records to documents: templates, owners, labels, and what is refused."""

import pytest

from confide.data.readers import Counts, Record, documents
from confide.data.readers.fields import Template, addresses
from confide.utils.errors import InputError


def records(*rows):
    return [Record(row, f"mail.jsonl line {number}") for number, row in enumerate(rows, 1)]


def one(row, **how):
    (document,) = documents(records(row), **how)
    return document


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("body", {"body": "as it is "}, "as it is "),
        ("{subject}\n{body}", {"subject": "s", "body": "b"}, "s\nb"),
        ("{{{body}}}", {"body": "b"}, "{b}"),
        ("{meta.topic}: {n}", {"meta": {"topic": "t"}, "n": 3}, "t: 3"),
        ("to {to}", {"to": ["a@x.org", "b@x.org"]}, "to a@x.org, b@x.org"),
        ("a.b", {"a.b": "dotted name"}, "dotted name"),
        ("body", {"body": "a\r\nb\rc\x00d"}, "a\nb\ncd"),
        ("body", {"body": "half \ud83d pair é"}, "half \ufffd pair é"),
    ],
)
def test_text(template, row, text):
    assert one(row, text=template, unit=None).text == text


@pytest.mark.parametrize("template", ["{body", "body}", "{}", "{body!r}", "{body:>9}", "{{no field}}", ""])
def test_bad_template_is_refused_before_anything_is_read(template):
    with pytest.raises(InputError, match=r"data\.text"):
        documents(iter(()), template, None)


@pytest.mark.parametrize(
    ("unit", "row", "units"),
    [
        ("user", {"user": " Ann "}, ("Ann",)),
        ("user", {"user": 17}, ("17",)),
        ("user", {"user": 17.0}, ("17",)),
        ("from", {"from": '"Smith, Al" <Al.Smith@X.ORG>'}, ("al.smith@x.org",)),
        (
            ["from", "to"],
            {"from": "a@x.org", "to": "B@x.org, c@x.org, A@x.org"},
            ("a@x.org", "b@x.org", "c@x.org"),
        ),
        ("to", {"to": ["d@x.org", "D@X.org", "e@x.org"]}, ("d@x.org", "e@x.org")),
        (["user", "team"], {"user": "ann", "team": None}, ("ann",)),
        (None, {}, ("row:0",)),
    ],
)
def test_units(unit, row, units):
    assert one(row | {"body": "b"}, text="body", unit=unit).units == units


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("undisclosed-recipients:;", ()),
        ("Ann Lee", ()),
        ("user@localhost", ("user@localhost",)),
        ('"x@y.org" <z@w.org>', ("z@w.org",)),
        ("<a@b.org>, 'c@d.org'; E@F.org (note)", ("a@b.org", "c@d.org", "e@f.org")),
        ("O'Neil@x.org", ("o'neil@x.org",)),
    ],
)
def test_addresses(value, found):
    assert addresses(value) == found


@pytest.mark.parametrize("unit", [None, "", "  ", float("nan"), []])
def test_a_document_without_a_unit_is_an_error(unit):
    with pytest.raises(InputError, match=r"mail\.jsonl line 1: no unit, since the field 'user' is empty"):
        one({"body": "b", "user": unit}, text="body", unit="user")


def test_no_owner_among_several_fields_is_an_error_and_one_blank_field_is_counted():
    row = {"body": "b", "from": None, "to": []}
    with pytest.raises(InputError, match="fields from, to are empty"):
        one(row, text="body", unit=["from", "to"])
    counts = Counts()
    list(documents(records(row | {"from": "a@x.org"}), "body", ["from", "to"], counts=counts))
    assert counts["without to"] == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"text": "boddy", "unit": None},
            r"line 1: data\.text names 'boddy'.*did you mean 'body'.*body, user, tag",
        ),
        ({"text": "{body} {x}", "unit": None}, r"data\.text names 'x'"),
        ({"text": "body", "unit": "usr"}, r"data\.unit names 'usr'.*did you mean 'user'"),
        ({"text": "body", "unit": None, "label": "tga"}, r"data\.label names 'tga'.*did you mean 'tag'"),
        ({"text": "nest", "unit": None}, "field 'nest' holds an object, not text"),
        ({"text": "body", "unit": "nest"}, "'nest' holds an object, not a name"),
        ({"text": "body", "unit": None, "label": "nest"}, "'nest' holds no label"),
    ],
)
def test_wrong_fields(how, said):
    with pytest.raises(InputError, match=said):
        one({"body": "b", "user": "u", "tag": 1, "nest": {}}, **how)


def test_a_missing_header_does_not_print_the_text_that_stands_there():
    row = {"what my doctor told me on monday": "b", "id": "1"}
    with pytest.raises(InputError, match="header") as caught:
        one(row, text="body", unit=None)
    assert "doctor" not in str(caught.value)


@pytest.mark.parametrize(("value", "label"), [(True, 1), (2, 2), (2.0, 2), (" spam ", "spam")])
def test_label(value, label):
    assert one({"body": "b", "tag": value}, text="body", unit=None, label="tag").label == label


def test_empty_texts_are_skipped_and_counted():
    counts = Counts()
    rows = records({"s": "", "b": ""}, {"s": None, "b": " \n"}, {"s": "", "b": "x"}, {"s": "y", "b": ""})
    found = list(documents(rows, "{s}: {b}", None, counts=counts))
    assert [(d.text, d.units) for d in found] == [(": x", ("row:0",)), ("y: ", ("row:1",))]
    assert counts.sentence() == "4 records, 2 empty texts, 2 documents"


def test_no_text_at_all_is_an_error():
    with pytest.raises(InputError, match=r"all 2 texts up to mail\.jsonl line 2 are empty"):
        list(documents(records({"b": ""}, {"b": None}), "b", None))
    with pytest.raises(InputError, match="no record is left"):
        list(documents(iter(()), "b", None))


def test_text_is_not_in_repr():
    assert "secret" not in repr(one({"b": "secret"}, text="b", unit=None)) + repr(records({"b": "secret"}))


def test_template_names():
    assert Template("{subject}\n{meta.body} {{x}}").names == ["subject", "meta.body"]


def test_a_value_that_is_no_number_is_an_empty_field():
    nothing = float("nan")
    assert Template("{subject}\n{body}").fill({"subject": nothing, "body": "said"}, "here") == "\nsaid"
    assert Template("body").fill({"body": nothing}, "here") == ""


def test_a_template_names_the_key_that_it_stands_in():
    with pytest.raises(InputError, match=r"^data\.prompt: the template '\{question' has unbalanced braces"):
        Template("{question", "data.prompt")
    with pytest.raises(InputError, match=r"^here: data\.prompt names 'question'"):
        Template("{question}?", "data.prompt").fill({"body": "said"}, "here")
