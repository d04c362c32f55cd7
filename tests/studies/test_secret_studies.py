"""The studies of secrets, owners, code and faults: what decides a verdict."""

import numpy as np
import pytest
import torch
from studies.audit import (
    HALF_NOISE,
    MECHANISMS,
    NO_CLIPPING,
    SAMPLING,
    SOUND,
    UNBOUNDED,
    detected,
    put_in,
)
from studies.code_base import ON, imports_room, left, own_names
from studies.owners import GREEDY, PROGRAM, SPREAD, K, kept_ratios
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.secret_protection import BLOW_UP, POSTERIORS, PRIOR, C, chosen_c, eased
from torch import nn

from confide.clipping import ClippedSum
from confide.config.loading import check
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy import mechanisms
from confide.privacy.row_weights import need
from confide.privacy.sampling import Sampling
from confide.randomness.streams import RunKey
from confide.training import step
from studies import audit, code_base


# secret protection ---------------------------------------------------------------------------------------------
def trial(c, loss, part="validation", key=0, arm=BLOW_UP):
    return {"arm": arm, "part": part, "key": key, C: c, "loss": loss}


def test_c_is_chosen_on_validation_and_below_1():
    rows = [
        trial(1.0, 1.0),
        trial(0.5, 3.0),
        trial(0.25, 2.0),
        trial(0.25, 4.0),  # another learning rate
        trial(0.125, 2.5),
        trial(0.125, 0.1, "test", 1),
        trial(0.125, 0.1, arm="another"),
    ]
    assert chosen_c(rows, BLOW_UP) == 0.25
    assert chosen_c([trial(0.5, 1.0, "test", 1), trial(0.25, 2.0, "test", 1)], BLOW_UP) == 0.25
    assert chosen_c([], BLOW_UP) is None


def test_eased_posteriors_have_as_many_times_the_divergence():
    allowed = np.array(POSTERIORS)
    prior = np.full(2, PRIOR)
    assert need("kl", prior, eased(allowed, 100.0)) == pytest.approx(
        100 * need("kl", prior, allowed), rel=1e-9
    )
    assert eased(allowed, 1.0) is allowed


# owners --------------------------------------------------------------------------------------------------------
def test_rows_kept_are_compared_at_equal_k():
    def row(arm, k, total):
        return {"part": SPREAD, "arm": arm, K: k, "total": total}

    rows = [row(PROGRAM, 4, 30.0), row(PROGRAM, 1, 10.0), row(GREEDY, 1, 8.0), row(GREEDY, 4, 20.0)]
    assert kept_ratios(rows, PROGRAM, GREEDY) == (1.25, 1.5)


# a code base ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import confide.data", True),
        ("import confide.data.rows as rows", True),
        ("from confide.data.rows import cut", True),
        ("from confide import data", True),
        ("def f():\n    from confide.data import rows", True),
        ("import confide.database", False),
        ("from confide import other", False),
        ("'confide.data'", False),
        ("from .data import rows", False),
    ],
)
def test_direct_imports_are_found_by_pythons_parser(text, expected):
    assert imports_room(text, "data") is expected


TEXTS = {
    "confide/data/rows.py": "class RowCutter: ...\ndef cut_all_rows(): ...\n"
    "def shared_name_here(): ...\ndef cut(): ...",
    "confide/runs/loop.py": "from confide.data.rows import RowCutter\ndef shared_name_here(): ...",
    "confide/cli/show.py": "# calls cut_all_rows in the end",
}


def test_what_is_left_is_names_of_the_room_alone_in_files_that_are_not_masked():
    own = {"confide/data/rows.py"}
    assert own_names(TEXTS, own) == {"RowCutter", "cut_all_rows"}
    found = left(TEXTS, "data", own)
    assert (found["own_masked"], found["importers"], found["importers_masked"]) == (1, 1, 0)
    assert (found["names"], found["names_left"], found["files_left"]) == (2, 2, 2)
    assert found["share"] == pytest.approx(len(TEXTS["confide/data/rows.py"]) / sum(map(len, TEXTS.values())))
    found = left(TEXTS, "data", own | {"confide/runs/loop.py"})
    assert (found["importers_masked"], found["names_left"], found["files_left"]) == (1, 1, 1)


def test_a_name_in_one_file_that_is_not_masked_refutes_that_none_is_left():
    def verdicts(names_left):
        rows = [
            {"room": room, "masking": ON, "share": 0.1, "own": 1, "own_masked": 1, "importers": 1}
            | {"importers_masked": 1, "names": 9, "names_left": count, "files_left": count}
            for room, count in names_left.items()
        ]
        return {each.finding.claim: each.verdict for each in judged(code_base.findings(rows))}

    claim = "With imports followed, no name of the package stands in a file that is not masked."
    assert verdicts({"data": 0, "runs": 0})[claim] == REPRODUCED
    assert verdicts({"data": 0, "runs": 1})[claim] == NOT_REPRODUCED


# faults --------------------------------------------------------------------------------------------------------
def noise():
    vector = torch.zeros(4)
    step.add_noise([(vector, RunKey.from_text("x").stream("a", "b"), 0)], 2.0, units=None)
    return vector


def test_half_the_noise_is_half_and_only_inside():
    sound = noise()
    with put_in(HALF_NOISE):
        assert noise() == pytest.approx(sound / 2)
    assert torch.equal(noise(), sound)


def clipped():
    model = nn.Linear(2, 1, bias=False)
    total = ClippedSum(model, lambda m, b: 100 * m(b["x"]).sum(1), 0.5)
    total.add({"x": torch.ones(1, 2)}, torch.zeros(1, dtype=torch.long), torch.ones(1))
    return float(total.take()["weight"].norm())


def test_without_clipping_a_gradient_keeps_its_norm():
    assert clipped() == pytest.approx(0.5, rel=0.02)
    with put_in(NO_CLIPPING):
        assert clipped() == pytest.approx(100 * 2**0.5, rel=0.02)


def test_the_same_draw_is_made_in_every_step():
    key, sampling = RunKey.from_text("x"), Sampling("poisson", 0.5)
    for fault, same in ((SOUND, False), (SAMPLING, True)):
        with put_in(fault):
            one, other = (sampling.draw(60, key, "main", number) for number in (0, 1))
            assert np.array_equal(one, other) is same


def most_groups_of_a_unit(draw):
    """Rows hold the number of their unit."""
    first = np.flatnonzero(np.diff(draw.group, prepend=-1))
    return int(np.bincount([draw.rows[place][0] for place in first]).max(initial=0))


@pytest.mark.parametrize("mechanism", ["els", "group", "owners", "uls"])
def test_an_unbounded_unit_gives_more_than_was_counted_and_all_give_as_many_rows(tmp_path, mechanism):
    with GraphWriter(tmp_path / "graph", vocabulary=20) as writer:
        for row in range(80):
            writer.add(np.array([row // 4, 1]), f"unit {row // 4}")
    graph = UnitGraph.open(tmp_path / "graph")
    settings = {"mechanism": mechanism, "epsilon": 2.0, "delta": 1e-3, **MECHANISMS[mechanism]}
    raw = {"data": {"train": "x", "unit": "u"}, "privacy": settings, "train": {"steps": 1, "batch": 10.0}}
    own, key = mechanisms.build(check(raw)), RunKey.from_text("x")
    most, rows = {}, {}
    for fault in (SOUND, UNBOUNDED):
        with put_in(fault):
            sampler = own.sampler(graph, key, "main", lambda: None)
            draws = [sampler.draw(number) for number in range(40)]
        most[fault] = max(map(most_groups_of_a_unit, draws))
        rows[fault] = sum(len(draw.rows) for draw in draws)
    assert rows[UNBOUNDED] == pytest.approx(rows[SOUND], rel=0.2)
    assert most == {SOUND: 1, UNBOUNDED: 4}


def test_rates_of_detection_have_exact_intervals():
    rows = [{"verify": found} for found in (1, 1, 1, 1, 1)]
    assert detected(rows, "verify") == "5 of 5 (47% to 100%)"
    assert detected([{"verify": 0}] * 5, "verify") == "0 of 5 (0% to 53%)"
    assert detected([], "verify") == ""


def test_a_fault_that_one_mechanism_hides_is_not_found_at_every_mechanism():
    rows = [
        {"mechanism": mechanism, "fault": fault, "key": key, "audit": 0, "verify": int(found)}
        for key in (1, 2, 3)
        for mechanism in ("els", "uls")
        for fault, found in ((SOUND, False), (HALF_NOISE, True), (NO_CLIPPING, mechanism == "els"))
    ]
    found = {each.finding.claim: each.verdict for each in judged(audit.findings(rows))}
    assert found["confide verify raises no alarm at a sound mechanism."] == REPRODUCED
    assert found[f"confide verify finds {HALF_NOISE} at every mechanism."] == REPRODUCED
    assert found[f"confide verify finds {NO_CLIPPING} at every mechanism."] == NOT_REPRODUCED
    assert found[f"confide audit finds {HALF_NOISE} at every mechanism."] == NOT_REPRODUCED
