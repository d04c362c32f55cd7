"""The extraction study: which passages are planted, what counts as learnt, and its findings."""

import json

import pytest
from studies.extraction import (
    BARE,
    LEAST,
    MOST,
    NOISE,
    NOISED,
    Passages,
    beginnings,
    findings,
    learnt,
    share_of,
)
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged


@pytest.fixture
def passages(tmp_path):
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(json.dumps({"text": f"passage {i}"}) + "\n" for i in range(30)))
    return Passages(str(path), (1, 10), 5, (8, 16))


def test_coins_decide_which_passages_are_read(passages):
    first = passages.of("key 1")
    assert {times: len(own) for times, own in first.items()} == {0: 5, 1: 5, 10: 5}
    assert len({text for own in first.values() for text in own}) == 15
    assert first == passages.of("key 1") != passages.of("key 2")
    assert set(passages.texts("key 1")) == {(text, times) for times in (1, 10) for text in first[times]}


class Words:
    """A tokenizer of one token a word."""

    def __call__(self, text):
        return type("Encoded", (), {"input_ids": text.split(" ")})


def test_a_passage_fills_one_row():
    texts = [" ".join("w" * count) for count in (10, LEAST, MOST, MOST + 1, 1000)]
    found = [len(text.split(" ")) for text in beginnings(texts, Words())]
    assert found == [LEAST, MOST, MOST, MOST]


def rows(at_noise, unread=0.1):
    """Runs by noise multiplier: the loss, and the share that is given back of ten copies."""
    return [
        {
            "arm": BARE if noise is None else NOISED,
            NOISE: noise,
            "key": key,
            "part": "test",
            "loss": loss + key / 1e4,
            "epsilon": 1.0,
            share_of(0, 16): unread,
            share_of(10, 16): share + key / 1e4,
        }
        for noise, (loss, share) in at_noise.items()
        for key in (1, 2, 3)
    ]


def test_what_was_not_read_is_no_proof_of_learning():
    found = learnt(rows({0.0: (3.0, 0.6)}), 0.0, 10, 16)
    assert found == pytest.approx({1: 0.5001, 2: 0.5002, 3: 0.5003})


def test_claims_follow_the_outcome():
    as_claimed = rows({None: (2.9, 0.9), 0.0: (3.0, 0.9), 1e-3: (3.0, 0.3), 1.0: (4.0, 0.1)})
    assert [each.verdict for each in judged(findings(as_claimed))] == [REPRODUCED] * 5
    otherwise = rows({None: (2.9, 0.9), 0.0: (3.0, 0.9), 1e-3: (3.1, 0.8), 1.0: (4.0, 0.3)})
    verdicts = [each.verdict for each in judged(findings(otherwise))]
    assert verdicts == [REPRODUCED] + [NOT_REPRODUCED] * 3 + [REPRODUCED]
    gone = rows({None: (2.9, 0.9), 0.0: (3.0, 0.9), 1.0: (4.0, 0.0)}, unread=0.0)
    assert not any(
        "mostly" in each.claim for each in findings(gone)
    )  # nothing is given back that could be learnt
    nothing = rows({None: (2.9, 0.1), 0.0: (3.0, 0.1), 1e-3: (3.0, 0.1), 1.0: (4.0, 0.1)})
    assert [each.verdict for each in judged(findings(nothing))] == [NOT_REPRODUCED]  # no noise can help then
