"""The exposure study: which numbers are planted how often, how they are paired, and its findings."""

import json
import re

import pytest
from studies.exposure import BARE, NOMINAL, PLAIN, Numbers, arm_of, exposures, findings, learnt, means, plots
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.planted import planted

NUMBERS = Numbers((10, 1000), 4, 6)


def test_every_run_of_a_key_plants_the_same_numbers():
    first = NUMBERS.of("key 1")
    assert {times: len(own) for times, own in first.items()} == {0: 4, 10: 4, 1000: 4}
    assert len({number for own in first.values() for number in own}) == 12
    assert first == NUMBERS.of("key 1") != NUMBERS.of("key 2")
    texts = dict(NUMBERS.texts("key 1"))
    assert sorted(texts.values()) == [10] * 4 + [1000] * 4
    assert not any(number in text for number in first[0] for text in texts)


def test_texts_are_planted_behind_the_documents(tmp_path):
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(5)))
    path = planted(source, [("mine", 2), ("yours", 1)], most=3)
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    assert texts == ["document 0", "document 1", "document 2", "mine", "mine", "yours"]
    assert planted(source, [("mine", 2), ("yours", 1)]) != path
    assert planted(source, [("mine", 1), ("yours", 1)], most=3) != path


def rows(bare, plain, nominal):
    """Runs of two keys, the second first, in which the numbers of one count have such exposures."""
    return [
        {
            "arm": arm,
            "key": key,
            "part": "test",
            "loss": 2.0,
            "epsilon": 1.0,
            "chance": 1.44,
            "exposures": json.dumps(
                {"0": [1.0, 2.0], "10": [value + key + number / 10 for number in range(2)]}
            ),
        }
        for key in (2, 1)
        for arm, value in ((BARE, bare), (arm_of(PLAIN, 1.0), plain), (arm_of(NOMINAL, 1.0), nominal))
    ]


def test_numbers_of_a_run_key_are_one_value():
    found = rows(9.0, 3.0, 5.0)
    assert exposures(found, BARE)[10] == {1: [10.0, 10.1], 2: [11.0, 11.1]}
    assert means(found, BARE, 10) == pytest.approx({1: 10.05, 2: 11.05})
    assert all(len(each.values) == 2 for each in findings(found))


def test_claims_follow_the_outcome():
    """Differences are of private training less the other. That DP-SGD exposes less is no sentence of the paper."""
    good, bad = (judged(findings(rows(*bits))) for bits in ((9.0, 3.0, 3.5), (5.5, 6.0, 5.0)))
    assert [each.finding.is_beyond for each in good] == [True, False, False, False]
    assert [each.verdict for each in good] == [REPRODUCED] * 4
    assert [each.verdict for each in bad] == [NOT_REPRODUCED] * 3 + [REPRODUCED]
    assert [each.finding.values[0] for each in good] == pytest.approx([-6.0, -5.5, 0.5, 0.5])
    *_, much_more = judged(findings(rows(9.0, 3.0, 5.0)))
    assert much_more.verdict == NOT_REPRODUCED


def test_the_picture_has_one_scale_and_names_that_fit():
    made = rows(9.0, 3.0, 5.0)
    for row in [*made]:
        if row["arm"] != BARE:
            made.append(
                row | {"arm": row["arm"].replace("noise 1", "noise 5"), "exposures": '{"0": [1], "10": [19]}'}
            )
    (plot,) = plots(made)
    assert plot.svg.count(">nominal<") == 2
    assert plot.svg.count(">no DP: 10, 10.55<") == 2
    heights = re.findall(r'cy="([\d.]+)"[^>]*><title>no DP:', plot.svg)
    assert heights[0] == heights[1]


def test_nothing_is_claimed_where_nothing_is_learnt():
    """At 10 copies training without DP is at chance, so that no other way could expose less by a bit."""
    found = rows(9.0, 3.0, 5.0)
    for row in found:
        own = json.loads(row["exposures"])
        row["exposures"] = json.dumps(own | {"10": [1.4, 1.5], "1000": own["10"]})
    assert learnt(found) == [1000]
    for row in found:
        row["exposures"] = json.dumps({"0": [1.0, 2.0], "10": [1.4, 1.5]})
    assert learnt(found) == [10]  # the most copies, whatever they expose
