"""What crosses units is found; what stays within one is not reported."""

import random

import pytest

from confide.data.readers import Document, sketching
from confide.data.readers.duplicates import find_duplicates
from confide.data.readers.sketching import Sketcher
from confide.utils.errors import InputError

WORDS = [f"w{number}" for number in range(5000)]


def text(seed, length=100):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def rows(*pairs):
    return [
        Document(body, units if isinstance(units, tuple) else (units,), None, "w") for body, units in pairs
    ]


def test_unrelated_rows_have_nothing_in_common():
    report = find_duplicates(rows(*((text(seed), f"u{seed % 7}") for seed in range(200))))
    assert (report.rows, report.units, report.rows_affected, report.near_pairs) == (200, 7, 0, ())
    assert report.share_affected == 0


def test_exact_duplicates_but_for_case_and_punctuation():
    same = text(1)
    report = find_duplicates(rows((same, "a"), (text(2), "b"), ("> " + same.upper() + "!", "c"), (same, "a")))
    assert report.exact_groups == ((0, 2, 3),)
    assert (report.rows_exact, report.rows_near, report.rows_affected) == (3, 0, 3)


def test_duplicates_within_a_unit_do_not_cross():
    report = find_duplicates(
        rows((text(1), "a"), (text(1), "a"), (text(2), ("a", "b")), (text(2), ("b", "a")))
    )
    assert report.rows_affected == 0


def test_the_same_text_with_one_more_owner_crosses():
    assert find_duplicates(rows((text(1), ("a", "b")), (text(1), ("a",)))).exact_groups == ((0, 1),)


@pytest.mark.parametrize(("changed", "near"), [(1, True), (2, True), (40, False)])
def test_near_duplicates(changed, near):
    words = text(3, 300).split()
    other = words.copy()
    for place in range(changed):
        other[7 * place + 5] = "changed"
    report = find_duplicates(
        rows((" ".join(words), "a"), (text(4), "b"), (" ".join(other), "c")), permutations=128
    )
    assert [pair[:2] for pair in report.near_pairs] == ([(0, 2)] if near else [])
    assert report.rows_exact == 0
    if near:
        shingles = [{tuple(some[i : i + 5]) for i in range(296)} for some in (words, other)]
        jaccard = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
        assert report.near_pairs[0][2] == pytest.approx(jaccard, abs=0.1)


@pytest.mark.parametrize("seed", range(10))
def test_a_quoted_passage_of_thirty_words_is_always_found(seed):
    """Winnowing guarantees it (Schleimer et al. 2003): any run of 30 words in common has a fingerprint."""
    passage = text(f"passage {seed}", 30)
    quoting = f"{text(f'before {seed}', 13 * seed)} {passage} {text(f'after {seed}', 150)}"
    report = find_duplicates(rows((f"{text(seed, 90)} {passage}", "a"), (quoting, "b"), (text("else"), "c")))
    assert (report.rows_passages, report.rows_near, report.rows_affected) == (2, 0, 2)


def test_short_rows_are_counted_and_left_out():
    report = find_duplicates(rows(("ok thanks", "a"), ("ok thanks", "b"), (text(1), "c")))
    assert (report.short, report.rows_affected) == (2, 0)


def test_a_crowd_of_near_duplicates_is_not_compared_pair_by_pair():
    words = text(5, 300).split()
    bodies = [" ".join([*words[:-1], f"signed{number}"]) for number in range(200)]
    report = find_duplicates(rows(*((body, f"u{number}") for number, body in enumerate(bodies))))
    assert report.rows_near == 200
    assert report.crowds > 0
    assert len(report.near_pairs) < 200 * 199 / 4


def test_documents_are_called_so():
    """A row is a piece that is trained on; of these a document may have many."""
    told = find_duplicates(rows((text(1), "ann"), (text(1), "bob"), ("ok thanks", "c"))).sentences()
    assert told[0] == "2 of 3 documents (66.7%) share words with documents of other owners:"
    assert "1 documents of fewer than" in told[-1]
    assert not any("row" in sentence for sentence in told)


def test_report_holds_no_text():
    report = find_duplicates(rows((text(1), "ann"), (text(1), "bob")))
    assert "w1" not in repr(report) + " ".join(report.sentences())
    assert "ann" not in repr(report)


def test_refused():
    with pytest.raises(InputError, match="no documents"):
        find_duplicates([])
    with pytest.raises(InputError, match="threshold"):
        find_duplicates(rows((text(1), "a")), threshold=1.5)


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all(
        (a is None and b is None)
        or (
            a.digest == b.digest
            and (a.signature == b.signature).all()
            and a.prints.tolist() == b.prints.tolist()
        )
        for a, b in pairs
    )


def test_a_long_text_is_looked_at_in_parts_with_the_same_words(monkeypatch):
    lines = [f"Ärger, ΟΔΟΣ\u00a0ΟΔΟΣ\u2003one{at};two\n" for at in range(400)]
    text = "".join(lines) + "unbroken" * 900 + " the end"
    whole, before = sketching._words(text), Sketcher()([text])
    monkeypatch.setattr(sketching, "_PART", 37)
    monkeypatch.setattr(sketching, "_BATCH", 2)
    monkeypatch.setattr(sketching, "_PIECE", 101)
    assert sketching._words(text).tolist() == whole.tolist()
    assert same(Sketcher()([text]), before)
    assert len(before[0].prints) > 100
    assert len(list(sketching._parts(text))) > 100


def test_a_text_has_the_same_sketch_among_others_and_alone(monkeypatch):
    chosen = random.Random(3)
    texts = [
        " ".join(f"w{chosen.randrange(30)}" for _ in range(count)) for count in (*range(60), 200, 3, 29, 31)
    ]
    together = Sketcher(shortest=3)(texts)
    assert [sketch is None for sketch in together] == [len(text.split()) < 3 for text in texts]
    monkeypatch.setattr(sketching, "_PIECE", 17)  # now each is sketched by itself, in pieces
    assert same(Sketcher(shortest=3)(texts), together)
    assert sum(len(sketch.prints) for sketch in together if sketch) > 100


def test_signatures_agree_as_often_as_sets_do():
    words = [f"w{at}" for at in range(4000)]
    one, other = Sketcher(permutations=512)([" ".join(words[:3000]), " ".join(words[1000:])])
    assert (one.signature == other.signature).mean() == pytest.approx(0.5, abs=4 * (0.25 / 512) ** 0.5)
