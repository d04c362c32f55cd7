"""The study of records a unit: what is counted of a made-up play, and what is said of it."""

import numpy as np
import pytest
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.study import Scale, Work

from studies import user_statistics as study


def test_records_and_rows_of_each_unit_are_counted(tmp_path):
    play = tmp_path / "data/tinyshakespeare/input.txt"
    play.parent.mkdir(parents=True)
    long = " ".join(["of"] * 100)
    play.write_text(f"First:\nOne.\n\nSecond:\n{long}\n\nFirst:\nTwo:\nthree.\n\nThird:\n\n")
    found = study.counted(
        study.SOURCES["speeches"], "speeches", Work(tmp_path / "data", tmp_path, Scale.TINY)
    )
    records, rows = found[study.RECORDS], found[study.ROWS]
    assert (records.values.tolist(), records.counts.tolist()) == ([1, 2], [1, 1])  # the third says nothing
    assert (rows.values.tolist(), rows.counts.tolist()) == ([2], [2])  # 100 tokens are two rows


def rows(**sizes):
    return [
        {"what": what, "text": text, "size": size, "units": units}
        for what in (study.RECORDS, study.ROWS)
        for text, own in sizes.items()
        for size, units in zip(*np.unique(own, return_counts=True), strict=True)
    ]


def verdicts(found):
    return [each.verdict for each in judged(study.findings(found))]


def test_the_share_of_the_largest_tenth_is_counted():
    tally = study.tallies(rows(newsgroups=[1] * 18 + [2, 80]), study.RECORDS)["newsgroups"]
    assert study.of_largest(tally, 0.1) == 82 / 100  # two units of twenty
    assert study.of_largest(tally, 0.11) == 83 / 100  # two units and a part of one: three


def test_a_mean_above_the_median_does_not_make_few_units_have_most():
    uneven = [1] * 6 + [3] * 4  # the mean is nearly twice the median, and the largest unit has a seventh
    found = {
        each.finding.claim: each.verdict
        for each in judged(study.findings(rows(newsgroups=uneven, enron=uneven, articles=uneven)))
    }
    few = [verdict for claim, verdict in found.items() if claim.startswith("Few units")]
    assert few == [NOT_REPRODUCED] * 3


def test_no_claim_counts_as_the_papers_since_the_texts_are_others():
    found = study.findings(rows(newsgroups=[1, 2, 3], enron=[1, 2, 3], articles=[1, 2, 3]))
    assert all(each.is_beyond for each in found)
    assert [each.claim for each in found if each.is_check] == [
        each.claim for each in found if "single" in each.claim
    ]


def test_claims_follow_the_outcome():
    skewed = [1, 1, 2, 2, 2, 500]
    as_in_the_papers = rows(newsgroups=skewed, enron=skewed, articles=[1, 10, 15, 20, 190])
    assert verdicts(as_in_the_papers) == [REPRODUCED] * 10
    even = [3, 9, 9]
    assert verdicts(rows(newsgroups=even, enron=even, articles=even)) == [NOT_REPRODUCED] * 10


def test_tables_have_what_was_counted():
    records, cut = study.tables(rows(newsgroups=[1, 1, 4], articles=[2, 3]))
    assert records.cells[0] == ["20 Newsgroups, posts of a sender", "6", "3", "1", "1", "2.0", "4", "67%"]
    assert cut.cells[1] == ["WikiText-2, paragraphs of an article", "5", "2", "2", "2.5", "2.5", "3", "60%"]
    assert records.cells[2:] == [[*each, ""] for each in study.PAPERS]


def test_the_picture_has_a_bar_for_each_doubling():
    (picture,) = study.plots(rows(newsgroups=[1, 1, 4], articles=[2, 3]))
    assert picture.svg.count("<svg") == 1
    assert "20 Newsgroups" in picture.svg
    assert "WikiText-2" in picture.svg


def test_means_of_the_second_paper_follow_from_its_counts():
    assert float(study.PAPERS[2][5]) == pytest.approx(135.8e6 / 342.5e3, rel=0.002)
    assert float(study.PAPERS[3][5]) == pytest.approx(661.6 / 7.4, rel=0.01)
