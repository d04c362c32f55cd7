"""What the preview counts is what is there, and what a reader sees holds nothing of what is masked."""

import random
import re

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from confide.config.loading import check
from confide.config.schema import Policy
from confide.data.part_work import Finished, Seen
from confide.data.readers import Document
from confide.data.text_work import Rows, Worked
from confide.randomness.streams import RunKey
from confide.sensitive.redaction.page import page, percent
from confide.sensitive.redaction.preview import Preview, survey
from confide.utils.errors import InputError
from tests import browser

EXPRESSIONS = {"vowels": r"[aeiou]{2,}", "digits": r"\d+", "ends": r"\w ?\d", "never": "§"}
KEY = RunKey.from_text("preview")


def settings(**detector):
    """Any mechanism: a preview needs the detector alone."""
    config = check({"data": {"train": "mail.jsonl", "unit": "user"}, "privacy": {"epsilon": 3.0}})
    return config.model_copy(update={"detector": Policy(**detector)})


TOKEN = re.compile(r"\w+|[^\w\s]+")


def tokenizer():
    """One whose tokens are easily told: words, and runs of what is neither word nor space."""
    made = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")


def searched(documents):
    """Return a function that reads documents, each with what a search found in it."""

    def read(search):
        for document, found in zip(documents, search.ready()(documents), strict=True):
            yield Finished(document, Worked(None, Rows(), None), len(document.text), Seen(found))

    return read


def look_at(documents, most=5, against=None, **detector) -> Preview:
    return survey(
        settings(**detector), searched(documents), KEY, lambda *_: None, most, against, None, tokenizer()
    )


def mail(text: str, gold=(), number: int = 0) -> Document:
    fields = {"text": text, "gold": list(gold)}
    return Document(text, (f"row:{number}",), None, f"mail.jsonl line {number + 1}", fields, number)


def texts(n: int = 60) -> list[Document]:
    """Random characters, with random annotated spans that may overlap."""
    generator = random.Random(3)
    made = []
    for number in range(n):
        text = "x" + "".join(generator.choices("aeiou bcd 0123 \n,", k=generator.randint(1, 120)))
        gold = []
        for _ in range(generator.randint(0, 4)):
            start = generator.randrange(len(text))
            gold.append([start, generator.randint(start + 1, len(text)), generator.choice(["ann", "bob"])])
        made.append(mail(text, gold, number))
    return made


def characters(spans) -> set[int]:
    return {place for start, end in spans for place in range(start, end)}


def words(text: str, places: set[int]) -> int:
    return sum(bool(characters([match.span()]) & places) for match in re.finditer(r"\S+", text))


def stripped(match: re.Match) -> tuple[int, int]:
    """An expression finds no white space around a match."""
    value = match.group()
    return match.start() + len(value) - len(value.lstrip()), match.end() - len(value) + len(value.rstrip())


def found_in(text: str) -> dict[str, list[tuple[int, int]]]:
    return {
        name: [stripped(match) for match in re.finditer(expression, text)]
        for name, expression in EXPRESSIONS.items()
    }


# counts -------------------------------------------------------------------------------------------------------
def test_counts_are_those_of_a_slow_count():
    documents = texts()
    facts = look_at(documents, expressions=EXPRESSIONS).facts
    assert facts["documents"] == len(documents)
    assert facts["characters"] == sum(len(document.text) for document in documents)
    assert facts["words"] == sum(len(document.text.split()) for document in documents)
    assert facts["tokens"] == sum(len(TOKEN.findall(document.text)) for document in documents)
    for name in EXPRESSIONS:
        spans = [found_in(document.text)[name] for document in documents]
        tally = facts["kinds"][name]
        assert tally["spans"] == sum(map(len, spans))
        assert tally["documents"] == sum(map(bool, spans))
        assert tally["characters"] == sum(len(characters(some)) for some in spans)
        masked = sum(words(d.text, characters(some)) for d, some in zip(documents, spans, strict=True))
        assert tally["words"] == masked
        assert tally["share_of_words"] == pytest.approx(masked / facts["words"])
        hit = sum(
            any(s < match.end() and e > match.start() for s, e in some)
            for d, some in zip(documents, spans, strict=True)
            for match in TOKEN.finditer(d.text)
        )
        assert tally["tokens"] == hit
        assert tally["share_of_tokens"] == pytest.approx(hit / facts["tokens"])
    every = [characters([s for spans in found_in(d.text).values() for s in spans]) for d in documents]
    assert facts["masked"]["characters"] == sum(map(len, every))
    masked = sum(words(d.text, places) for d, places in zip(documents, every, strict=True))
    assert facts["masked"]["words"] == masked
    assert facts["spans"] == sum(tally["spans"] for tally in facts["kinds"].values())


@pytest.mark.parametrize("own", [False, True], ids=["another field", "part of the policy"])
def test_recall_and_precision_are_those_of_a_slow_count(own):
    documents = texts()
    detector = {"expressions": EXPRESSIONS} | ({"spans": "gold"} if own else {})
    preview = look_at(documents, 99, None if own else "gold", **detector)
    against = preview.facts["against"]
    spans = overlapped = whole = true = found = both = 0
    for document in documents:
        places = characters([s for some in found_in(document.text).values() for s in some])
        for start, end in {(start, end) for start, end, _ in document.fields["gold"]}:
            spans, own_places = spans + 1, characters([(start, end)])
            overlapped += bool(own_places & places)
            whole += own_places <= places
        gold = characters([(start, end) for start, end, _ in document.fields["gold"]])
        true, found, both = true + len(gold), found + len(places), both + len(gold & places)
    assert against["spans"] == spans
    assert against["recall_of_spans"] == pytest.approx(overlapped / spans)
    assert against["recall_of_whole_spans"] == pytest.approx(whole / spans)
    assert against["recall_of_characters"] == pytest.approx(both / true)
    assert against["precision_of_characters"] == pytest.approx(both / found)
    assert set(against["kinds"]) == {"ann", "bob"}
    assert ("ann" in preview.facts["kinds"]) == own
    if own:  # a stated span may hold white space alone, and so no word
        gold = [[(s, e) for s, e, kind in d.fields["gold"] if kind == "ann"] for d in documents]
        masked = sum(words(d.text, characters(spans)) for d, spans in zip(documents, gold, strict=True))
        assert preview.facts["kinds"]["ann"]["words"] == masked


def test_nothing_annotated_and_nothing_found_have_no_share():
    against = look_at([mail("a b")], expressions={"never": "§"}, against="gold").facts["against"]
    assert against["recall_of_characters"] is None
    assert against["precision_of_places"] is None
    assert [percent(share) for share in (None, 0, 1e-9, 0.123, 1 - 1e-9, 1)] == [
        *("-", "0%", "<0.1%", "12.3%", ">99.9%", "100%")
    ]


# what is shown ------------------------------------------------------------------------------------------------
def test_shown_are_the_first_documents_and_some_of_the_others():
    preview = look_at(texts(60), 7, expressions=EXPRESSIONS)
    assert [shown.number for shown in preview.first] == list(range(7))
    drawn = [shown.number for shown in preview.drawn]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 7
    assert min(drawn) >= 7
    assert max(drawn) > 20
    few = look_at(texts(9), 7, expressions=EXPRESSIONS)
    assert [shown.number for shown in few.drawn] == [7, 8]
    none = look_at(texts(9), 0, expressions=EXPRESSIONS)
    assert (none.first, none.drawn) == ([], [])


def test_examples_and_documents_hold_no_masked_character():
    documents = [mail(f"call {'o' * 50} {n}77x and{n}", [[0, 4, "verb"]], n) for n in range(3)]
    preview = look_at(documents, 2, "gold", expressions={"digits": r"\d+", "tail": r"7x and\d"})
    assert preview.examples == {
        "digits": "o" * 39 + " █digits/tail█",
        "tail": "o" * 39 + " █digits/tail█",
    }
    for shown in (*preview.first, *preview.drawn):
        assert "".join(piece.plain for piece in shown.pieces) == f"█verb█ {'o' * 50} █digits/tail█"


@pytest.mark.parametrize(
    ("detector", "against", "message"),
    [
        ({}, None, "detector: says nothing of what is sensitive"),
        ({"recall": 1.0}, None, "detector: says nothing of what is sensitive"),
        ({}, "gold", "detector: says nothing of what is sensitive"),
        ({"spans": "gold", "expressions": EXPRESSIONS}, "gold", "--against gold: detector.spans names gold"),
        ({"expressions": EXPRESSIONS}, "glod", "glod"),
    ],
)
def test_what_cannot_be_previewed_is_refused(detector, against, message):
    with pytest.raises(InputError, match=message):
        look_at(texts(3), 5, against, **detector)


# the page in a browser ----------------------------------------------------------------------------------------
MARKED = ("zugzwang", "Quetzal & co", "xylograph")  # what must not be seen
ODD = '<i>kind</i> & "co"'


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    documents = []
    for n in range(12):
        text = (
            f"Mail {n} <script>document.title='broken'</script> of {MARKED[0]}{n} &amp; {MARKED[1]} </div>\n\n \n\n"
            f"  and {MARKED[2]}\u202e, {'long' * 60} END{n}"
        )
        start = text.index(MARKED[2])
        documents.append(mail(text, [[start, start + len(MARKED[2]), "carving"]], n))
    documents.append(mail("word " * 2000 + MARKED[0], (), 12))
    detector = {"expressions": {ODD: r"zugzwang\d*", "firm": r"Quetzal & co|g\d+ &"}}
    config = settings(**detector)
    preview = survey(config, searched(documents), KEY, lambda *_: None, 7, "gold", None, tokenizer())
    path = tmp_path_factory.mktemp("page") / "redaction.html"
    path.write_text(page(preview, config), "utf-8")
    return path


def test_the_page_loads_nothing_and_holds_nothing_masked(shown):
    content = shown.read_text("utf-8")
    assert not [word for word in (*MARKED, "Quetzal &amp; co") if word in content]
    assert "<script" not in content
    assert re.findall(r"(?:\ssrc|href|url|import)\W*", content) == ['href="']
    assert 'href="data:,"' in content


def test_a_reader_sees_counts_and_masks(shown):
    found = browser.look(
        shown,
        """return {
            text: page.body.innerText, title: page.title,
            rows: [...page.querySelectorAll(".kinds tbody tr")].map(row => row.innerText.split(/\\s*\\t\\s*|\\n/)),
            articles: [...page.querySelectorAll("article")].map(a => a.innerText),
            masks: page.querySelectorAll("article mark").length,
            missed: page.querySelectorAll("article mark.missed").length,
            scripts: page.scripts.length };""",
    )
    assert found["title"] == "What is masked"
    assert found["scripts"] == 0
    assert not [word for word in MARKED if word in found["text"]]
    assert "Detectors: expressions" in found["text"]
    counted = re.search(r"13 documents of ([\d,]+) tokens", found["text"])
    assert int(counted[1].replace(",", "")) > 2000
    assert [[row[0], row[-3]] for row in found["rows"]] == [["firm", "24"], [ODD, "13"]]
    assert len(found["articles"]) == 13
    first = found["articles"][0]
    assert "<script>document.title='broken'</script> of" in first
    assert f"of {ODD}firm" in " ".join(first.split())
    assert "</div>\n\n  and carving\u202e, longlong" in first
    assert first.endswith("END0")
    assert found["articles"][-1].endswith("6,000 more characters")
    assert found["missed"] == 12
    assert found["masks"] == 12 * 3


def test_the_console_is_silent_and_the_rendered_document_too(shown, tmp_path):
    rendered, console = browser.dom(shown)
    assert console == []
    assert not [word for word in MARKED if word in rendered]
    broken = tmp_path / "broken.html"
    content = shown.read_text("utf-8").replace("<main>", '<main><img src="https://example.org/x.png">')
    broken.write_text(content, "utf-8")
    assert browser.dom(broken)[1]  # such a page would be noticed


@pytest.mark.parametrize("width", [320, 400, 1000])
def test_no_page_scrolls_sideways(shown, width):
    script = """
        const hidden = [...page.querySelectorAll("article div")].map(e => e.scrollWidth - e.clientWidth);
        return [page.documentElement.scrollWidth, page.documentElement.clientWidth, Math.max(...hidden)];"""
    assert browser.look(shown, script, width) == [width, width, 0]


def test_a_kind_is_hidden_by_its_box(shown):
    script = """
        const seen = () => [...page.querySelectorAll("article mark b")].filter(b => b.offsetWidth)
            .map(b => b.innerText);
        const width = () => page.querySelector("article mark").offsetWidth;
        const before = [seen(), width()];
        for (const box of page.querySelectorAll(".kinds input")) box.click();
        return [before, [seen(), width()], page.body.innerText];"""
    before, after, text = browser.look(shown, script)
    assert {"firm", ODD, "carving"} == set(before[0])
    assert set(after[0]) == {"carving"}
    assert min(before[1], after[1]) > 20  # what is masked is still seen to be
    assert not [word for word in MARKED if word in text]


def test_a_picture_is_taken(shown, tmp_path):
    browser.screenshot(shown, tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
