"""What the study of written text makes of its measurements."""

import math

import numpy as np
import pytest
from studies.synthetic import (
    CHANCE,
    DIRECT,
    EPSILON,
    FREELY,
    REAL,
    WRITES,
    by_key,
    findings,
    more_found,
    picked,
    shares,
    tables,
)


def row(arm: str, key: int, epsilon: float, **columns) -> dict:
    return {"arm": arm, "key": key, "part": "test", EPSILON: epsilon, **columns}


def rows() -> list[dict]:
    found = []
    for key in (1, 2):
        for epsilon, synthetic, hits in ((8.0, 0.5, 0), (math.inf, 0.7, 10)):
            canaries = {"planted": 20, "planted found": hits, "absent": 10, "absent found": 1}
            made = {"by synthetic": synthetic + key / 1000, "by real": 0.9 + key / 1000, **canaries}
            made |= {"by picked": synthetic - 0.05, "by as many": synthetic - 0.1, "loss": math.log(50)}
            near = {"pairs": 0.8, "topics": 0.3}
            found.append(row(WRITES, key, epsilon, **made, **near, words=0.5, **{"as asked": 0.25}))
            fewer = canaries | {"planted found": hits // 2}
            found.append(row(FREELY, key, epsilon, words=0.4, loss=4.0, **near, **fewer))
            found.append(row(DIRECT, key, epsilon, accuracy=0.6))
    found.append(row(WRITES, 0, 8.0, loss=1.0) | {"part": "validation"})
    real = {"words": 0.2, "pairs": 0.3, "topics": 0.1, "as asked": 0.75}
    found.append({"arm": REAL, "part": "yardstick", **real})
    return found


def test_measurements_without_later_columns_have_no_such_findings():
    """What was measured before there were runs without topics is judged all the same."""
    later = ("words", "pairs", "topics", "as asked")
    older = [
        {name: value for name, value in each.items() if name not in later}
        for each in rows()
        if each["arm"] in (WRITES, DIRECT)
    ]
    assert len(findings(older)) == 6
    texts = tables(older)[1]
    assert list(texts.columns) == ["epsilon", "asked for", "canaries found", "others found"]
    assert [line[1] for line in texts.cells] == ["by topic", "by topic"]


def test_rows_are_picked_by_arm_place_and_part():
    assert by_key(rows(), WRITES, "by synthetic", 8.0) == {1: 0.501, 2: 0.502}
    assert by_key(rows(), DIRECT, "accuracy", math.inf) == {1: 0.6, 2: 0.6}


def test_chance_is_taken_from_what_was_found():
    assert more_found(rows(), WRITES, 8.0) == pytest.approx({1: -0.1, 2: -0.1})
    assert more_found(rows(), WRITES, math.inf) == pytest.approx({1: 0.4, 2: 0.4})


def test_findings_stand_on_the_side_that_they_claim():
    control, worth, chosen, topics, hidden, seen, freely_hidden, freely_seen, real = findings(rows())
    assert control.is_check
    assert control.values == pytest.approx((0.25 - CHANCE,) * 2)
    assert [each.is_check for each in (hidden, seen, freely_hidden, freely_seen)] == [False, True] * 2
    assert topics.values == pytest.approx((0.1, 0.1))
    assert 0 < topics.high < 0.1
    assert freely_hidden.values == hidden.values  # none was found by either
    assert freely_seen.values == pytest.approx((0.15, 0.15))  # 5 of 20, less 1 of 10
    assert chosen.values == pytest.approx((0.05, 0.05))
    assert 0 < chosen.high < 0.05
    assert worth.values == pytest.approx((-0.099, -0.098))
    assert worth.low < 0
    assert hidden.high > 0 > hidden.values[0]
    assert seen.values[0] > seen.low > 0
    assert real.values == pytest.approx((-0.2, -0.2))


def test_nothing_is_hidden_where_nothing_is_found_without_privacy():
    found = rows()
    for each in found:
        if each["arm"] == FREELY:
            each["planted found"] = each["absent found"] = 0
    claims = {each.claim: each.is_check for each in findings(found) if "documents of a unit" in each.claim}
    assert [claim for claim in claims if "asked for freely" in claim] == [
        "Without privacy, what 10 documents of a unit hold is found in text asked for freely."
    ]
    assert sum("asked for by topic" in claim for claim in claims) == 2


@pytest.mark.parametrize("column", ["as asked", "by synthetic"])
def test_text_without_topics_says_nothing_of_classifiers(column):
    """Two classifiers that both guess would be as good as one another."""
    found = rows()
    for each in found:
        if each["arm"] == WRITES and each[EPSILON] == math.inf:
            each[column] = CHANCE + 0.005
    assert not any("teaches" in each.claim for each in findings(found))


def test_the_table_counts_canaries_over_all_keys():
    classifiers, texts = tables(rows())
    assert [line[0] for line in classifiers.cells] == ["8", "infinity"]
    assert classifiers.cells[1][1].startswith("50.0")
    assert [line[:3] for line in texts.cells[:2]] == [["8", "by topic", "0.500"], ["8", "freely", "0.400"]]
    assert texts.cells[2][3:] == ["0.800", "0.300", "25.0% (25.0% to 25.0%)", "20 of 40", "2 of 20"]
    assert texts.cells[3][5:] == ["", "10 of 40", "2 of 20"]
    assert texts.cells[4] == ["", "real mails", "0.200", "0.300", "0.100", "75.0%", "", ""]
    assert shares([0.5]) == "50.0%"
    assert shares([0.99, 1.0]).endswith("to 100.0%)")


def test_text_is_picked_as_real_text_lies():
    """Two thirds of what was written are of one kind, and nine tenths of what is real of the other."""
    kinds = ("printer broken paper jam {}", "invoice wrong amount due {}")
    written = [kinds[n % 3 == 0].format(n) for n in range(600)]
    real = [kinds[n % 10 != 0].format(n + 1000) for n in range(500)]
    chosen = picked(written, real, 200, np.random.default_rng(1))
    assert len(set(chosen)) == 200
    of_kind = sum(written[at].startswith("invoice") for at in chosen)
    assert of_kind > 150  # at random it would be 67
