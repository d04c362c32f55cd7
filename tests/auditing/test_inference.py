"""Users are told apart by rows that were never trained on, and by nothing where nothing was learned."""

import json
import math

import numpy as np
import pytest
import torch

from confide.auditing.inference import Users, ask, infer, statistic
from confide.auditing.membership import Columns, columns
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError
from tests import small


def written(folder, rows_and_owners) -> UnitGraph:
    with GraphWriter(folder, vocabulary=small.VOCABULARY, unowned=True) as writer:
        for row, owners in rows_and_owners:
            writer.add(np.array(row), owners)
    return UnitGraph.open(folder)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("inference") / "graph", [3, 1, 7, 4, 2])


# which rows ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_first_rows_of_every_user_are_asked_for(graph, limit):
    found = ask(graph, limit)
    expected = [(unit, row) for unit in range(5) for row in graph.rows_of(unit)[:limit]]
    assert list(zip(found.units, found.rows, strict=True)) == expected
    assert found.left_out == 0
    assert found.among.tolist() == sorted(row for _, row in expected)


def test_only_rows_that_may_be_asked_for_are(graph):
    most, least = (int(pick(np.diff(graph.unit_offsets))) for pick in (np.argmax, np.argmin))
    allowed = np.zeros(graph.n_rows, dtype=bool)
    allowed[graph.rows_of(most)[3:]] = True
    allowed[graph.rows_of(least)[0]] = True
    found = ask(graph, 2, allowed)
    pairs = [(most, row) for row in graph.rows_of(most)[3:5]] + [(least, graph.rows_of(least)[0])]
    assert list(zip(found.units, found.rows, strict=True)) == sorted(pairs)
    assert found.left_out == 3
    with pytest.raises(InputError, match="no user has a row"):
        ask(graph, 2, np.zeros(graph.n_rows, dtype=bool))
    with pytest.raises(InputError, match="at least 1"):
        ask(graph, 0)


def test_a_row_of_two_users_counts_for_both(tmp_path):
    graph = written(tmp_path / "graph", [([5, 6], ["a", "b"]), ([7, 8], ["b"]), ([9, 9], [])])
    found = ask(graph)
    assert sorted(zip(found.units.tolist(), found.rows.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]
    assert found.among.tolist() == [0, 1]


# the statistic -------------------------------------------------------------------------------------------------
def says(rows, tokens, loss):
    return Columns(np.array(rows), np.array(tokens), np.array(loss, dtype=float))


@pytest.mark.parametrize("per", ["row", "token"])
def test_the_statistic_is_the_mean_log_ratio_of_a_users_rows(graph, per):
    generator = np.random.default_rng(0)
    rows, tokens = np.arange(graph.n_rows), generator.integers(1, 9, graph.n_rows)
    own, reference = (says(rows, tokens, generator.uniform(1, 3, graph.n_rows)) for _ in range(2))
    expected = []
    for unit in range(5):
        asked = graph.rows_of(unit)[:3]
        whole = [-tokens[i] * own.loss[i] + tokens[i] * reference.loss[i] for i in asked]  # log p - log p_ref
        expected.append(sum(whole) / (len(asked) if per == "row" else tokens[asked].sum()))
    assert statistic(ask(graph, 3), own, reference, per) == pytest.approx(expected)


def test_rows_without_anything_to_predict_count_for_nobody(tmp_path):
    graph = written(tmp_path / "graph", [([5, 6, 7], ["a"]), ([5], ["a"]), ([6], ["b"]), ([8, 9], ["c"])])
    own, reference = (columns(small.gpt2(seed), small.task(), graph) for seed in (0, 1))
    found = statistic(ask(graph), own, reference, "row")
    assert found == pytest.approx(
        (reference.loss - own.loss) * own.tokens
    )  # a by one row, c by the other; no b
    side = Users(ask(graph), own, reference)
    assert infer(side, side).left_out == (1, 1)


def test_columns_of_other_rows_are_refused(graph):
    own = says([0, 1], [3, 3], [1, 1])
    with pytest.raises(ValueError, match="same tokens of the same rows"):
        statistic(ask(graph), own, says([0, 2], [3, 3], [1, 1]))
    with pytest.raises(ValueError, match="token or row"):
        statistic(ask(graph), own, own, per="user")


# the attack ----------------------------------------------------------------------------------------------------
def sided(folder, users, rows, seed):
    """Users who each use four words of their own, half of them frequent."""
    generator = np.random.default_rng(seed)
    found = []
    for user in range(users):
        words = generator.choice(np.arange(2, small.VOCABULARY), 4, replace=False)
        found += [(generator.choice(words, 10), [f"user{seed}-{user}"]) for _ in range(rows)]
    return written(folder, found)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Members, others, which rows were trained on, and the model: the first half of every member's rows."""
    folder = tmp_path_factory.mktemp("users")
    members, others = sided(folder / "members", 8, 12, 1), sided(folder / "others", 30, 6, 2)
    in_use = np.zeros(members.n_rows, dtype=bool)
    for unit in range(8):
        in_use[members.rows_of(unit)[:6]] = True
    model, task = small.gpt2(), small.task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch = task.collate(members.fetch(np.flatnonzero(in_use)))
    for _ in range(80):
        optimizer.zero_grad()
        task.row_loss(model, batch).mean().backward()
        optimizer.step()
    return members, others, in_use, model


def users(graph, model, limit=6, among=None):
    asked = ask(graph, limit, among)
    task = small.task()
    own, known = (columns(one, task, graph, asked.among, tokenwise=False) for one in (model, small.gpt2(9)))
    return Users(asked, own, known)


@pytest.mark.parametrize(("kind", "pick"), [("trained", lambda used: used), ("fresh", lambda used: ~used)])
def test_users_are_known_by_rows_that_were_trained_on_and_by_others(trained, kind, pick):
    members, others, in_use, model = trained
    found = infer(users(members, model, among=pick(in_use)), users(others, model), in_use)
    assert found.member_rows == kind
    assert (found.rates.members, found.rates.non_members) == (8, 30)
    assert found.rows == (48, 180)
    assert found.rates.auroc.value > 0.95
    assert found.rates.p_value <= 0.5**8  # the least that eight users can show


def test_it_says_when_some_rows_were_trained_on(trained):
    members, others, in_use, model = trained
    mixed = infer(users(members, model, 8), users(others, model, 8), in_use)
    assert mixed.member_rows == "mixed"
    assert infer(users(members, model), users(others, model)).member_rows == "trained"  # all may be drawn


def test_no_user_is_known_to_a_model_that_saw_none(trained):
    members, others, in_use, _ = trained
    for per in ("token", "row"):
        found = infer(users(members, small.gpt2(4)), users(others, small.gpt2(4)), in_use, per)
        assert found.per == per
        assert found.rates.auroc.low <= 0.5 <= found.rates.auroc.high
        assert found.rates.p_value > 0.05


def test_no_forward_pass_is_made_beyond_those_of_the_columns(trained):
    members, others, in_use, model = trained
    seen = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sides = users(members, model, among=~in_use), users(others, model)
    infer(*sides, in_use)
    handle.remove()
    assert sum(seen) == 48 + 180


def test_at_pure_chance_users_are_found_as_seldom_as_they_should(graph, tmp_path):
    """Users differ, in how many rows they have too; none was trained on."""
    generator = np.random.default_rng(5)
    shape = small.graph(tmp_path / "graph", [1, 2, 9, 3, 1, 1, 2, 5, 30, 2, 1, 4, 2, 3])
    asked, rows = ask(shape, 4), np.arange(shape.n_rows)
    trials, alarms, covered = 2000, 0, 0
    for _ in range(trials):
        sides = []
        for _ in range(2):
            style = generator.normal(size=shape.n_units)
            of_rows = np.array([style[shape.owners_of(row)[0]] for row in rows])
            tokens = generator.integers(1, 30, len(rows))
            own = says(rows, tokens, 3 + of_rows + generator.normal(size=len(rows)))
            sides.append(Users(asked, own, says(rows, tokens, np.full(len(rows), 3.0))))
        found = infer(*sides, fprs=()).rates
        alarms += found.p_value <= 0.05
        covered += found.auroc.low <= 0.5 <= found.auroc.high
    slack = 2 * math.sqrt(0.05 * 0.95 / trials)
    assert alarms / trials <= 0.05 + slack
    assert covered / trials >= 0.95 - slack


def test_what_cannot_be_compared_is_refused(trained, graph, tmp_path):
    members, others, _, model = trained
    with pytest.raises(ValueError, match="as many rows"):
        infer(users(members, model, 3), users(others, model, 4))
    lonely = written(tmp_path / "graph", [([5, 6, 7], ["a"])])
    with pytest.raises(InputError, match=r"data\.eval"):
        infer(users(members, model), users(lonely, model))


def test_results_are_plain_json(trained):
    members, others, in_use, model = trained
    found = infer(users(members, model), users(others, model), in_use).to_json()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["member_rows"] == "trained"
    assert again["rates"]["members"] == 8
