"""Personalising: only the first half is trained on, nothing of it stays, and it helps where users are peculiar."""

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from confide.config.model_sections import Adapter
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.distributed.ranks import Ranks
from confide.models import adapters
from confide.runs import personalise as personalisation
from confide.runs.personalise import halves, personalise
from confide.training.tasks.classification import Classification
from confide.training.tasks.masked_lm import MaskedLM
from confide.utils.errors import InputError
from tests import small
from tests.command import World, confide, files_below, refused, tiny_model

RATE = (0.5,)  # high enough for four epochs to show on a fresh model of a few thousand weights


def job(graph, model=None, task=None, micro_tokens=8192, ranks=None):
    """What of a job is asked for."""
    return SimpleNamespace(
        model=model or small.gpt2(),
        task=task or small.task(),
        prepared=SimpleNamespace(held_out=graph),
        micro_tokens=micro_tokens,
        ranks=ranks or Ranks(),
    )


def written(folder, rows_of_users, labels=False) -> UnitGraph:
    """A graph of the rows of each user, by name."""
    with GraphWriter(folder, vocabulary=small.VOCABULARY) as writer:
        for name, rows in rows_of_users.items():
            for number, row in enumerate(rows):
                writer.add(np.array(row), [name], label=number % 2 if labels else None)
    return UnitGraph.open(folder)


def peculiar(users=12, rows=6, length=10, seed=0) -> dict[str, list[list[int]]]:
    """Each user repeats a word of their own among words of everybody."""
    generator = np.random.default_rng(seed)
    found = {}
    for user in range(users):
        texts = generator.integers(2, 20, (rows, length))
        texts[:, 1::2] = 20 + user
        found[f"user{user}"] = texts.tolist()
    return found


def alike(users=12, rows=6, length=10, seed=0) -> dict[str, list[list[int]]]:
    generator = np.random.default_rng(seed)
    return {f"user{user}": generator.integers(2, 40, (rows, length)).tolist() for user in range(users)}


# what stays ----------------------------------------------------------------------------------------
def gpt2():
    return small.gpt2(), small.task()


def bert():
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(small.family("bert", vocab_size=small.VOCABULARY, pad_token_id=0))
    return model, MaskedLM(0, 1, small.VOCABULARY, (0, 1), frozenset(), False, torch.device("cpu"))


def classifier():
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    settings = small.family("bert", vocab_size=small.VOCABULARY, pad_token_id=0, num_labels=2)
    task = Classification(0, 1, small.VOCABULARY, (), frozenset(), False, torch.device("cpu"))
    return BertForSequenceClassification(settings), task


def adapted(make=gpt2):
    model, task = make()
    return adapters.adapt(model, Adapter(kind="lora", rank=2), task.facts.name), task


def adapted_classifier():
    return adapted(classifier)


@pytest.mark.parametrize("make", [gpt2, bert, classifier, adapted, adapted_classifier])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_model_is_left_bit_for_bit(tmp_path, make, optimizer):
    model, task = make()
    model.eval()
    before = copy.deepcopy(model.state_dict())
    flags = [p.requires_grad for p in model.parameters()]
    graph = written(tmp_path / "g", peculiar(5), labels=task.facts.has_classes)
    found = personalise(job(graph, model, task), learning_rate=(0.05,), optimizer=optimizer)
    assert abs(found.difference) > 1e-4  # the copies did move
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert not model.training


def test_the_model_is_left_so_when_a_training_breaks_off(tmp_path, monkeypatch):
    model = small.gpt2().train()
    before = copy.deepcopy(model.state_dict())
    rows = personalisation.row_losses
    calls = []

    def breaks(*args, **kwargs):
        calls.append(0)
        if len(calls) == 7:  # the base losses of four users, and the third user's loss after training
            raise KeyboardInterrupt
        return rows(*args, **kwargs)

    monkeypatch.setattr(personalisation, "row_losses", breaks)
    with pytest.raises(KeyboardInterrupt):
        personalise(job(written(tmp_path / "g", peculiar(5)), model), learning_rate=RATE)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training


# what is trained on --------------------------------------------------------------------------------
FIRST, SECOND = 38, 39  # stand in all rows of the one half, and nowhere else


def marked(users=8, rows=7) -> dict[str, list[list[int]]]:
    found = alike(users, rows)
    for texts in found.values():
        for number, row in enumerate(texts):
            row[:] = [min(token, 37) for token in row]
            row[2] = FIRST if number < len(texts) // 2 else SECOND
    return found


def seen(graph) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tokens that the model sees with gradients, and those without."""
    model, trained, asked = small.gpt2(), [], []

    def spy(module, args, kwargs):
        (trained if torch.is_grad_enabled() else asked).append(kwargs["input_ids"].flatten())

    model.register_forward_pre_hook(spy, with_kwargs=True)
    personalise(job(graph, model, micro_tokens=30), learning_rate=(0.01, 0.1))
    return trained, asked


def test_rows_that_are_asked_for_are_never_trained_on(tmp_path):
    trained, asked = seen(written(tmp_path / "g", marked()))
    assert (torch.cat(trained) == FIRST).any()
    assert not (torch.cat(trained) == SECOND).any()
    assert (torch.cat(asked) == SECOND).any()
    assert not (torch.cat(asked) == FIRST).any()


def test_a_row_that_repeats_one_of_the_first_half_is_not_asked_for(tmp_path):
    same, other = [5, 6, 7], [8, 9, 10]
    graph = written(tmp_path / "g", {"a": [same, [4, 5], same, other, [5, 6]], "b": [same, same]})
    rows = [graph.fetch(half) for half in halves(graph, 0)]
    assert [[row.tolist() for row in half] for half in rows] == [[same, [4, 5]], [other, [5, 6]]]
    assert len(halves(graph, 1)[1]) == 0


def test_halves_are_of_the_first_rows_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(personalisation, "ROWS", 4)
    graph = written(tmp_path / "g", {"a": [[i, i] for i in range(2, 20)], "b": [[i, 5] for i in range(6, 9)]})
    first, second = halves(graph, 0)
    assert [row.tolist() for row in graph.fetch(first)] == [[2, 2], [3, 3]]
    assert [row.tolist() for row in graph.fetch(second)] == [[4, 4], [5, 5]]
    assert [len(half) for half in halves(graph, 1)] == [1, 2]


# the figures ---------------------------------------------------------------------------------------
def by_hand(graph, model, unit, rate, epochs) -> tuple[float, float, int]:
    """Mean loss of a unit's second half before and after, one row at a time; and its predicted tokens."""

    def loss(model, rows):
        task = small.task()
        parts = [task.token_losses(model, task.collate([row])) for row in graph.fetch(rows)]
        tokens = sum(int(counted.sum()) for _, counted, _ in parts)
        return sum(loss.double().sum().item() for loss, _, _ in parts) / tokens, tokens

    rows = graph.rows_of(unit)
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    with torch.no_grad():
        before, tokens = loss(model, second)
    own = copy.deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=rate)
    for _ in range(epochs):
        for start in range(0, len(first), personalisation.BATCH):
            step = graph.fetch(first[start : start + personalisation.BATCH])
            optimizer.zero_grad()
            total = sum(small.task().row_loss(own, small.task().collate([row])).sum() for row in step)
            (total / len(step)).backward()
            optimizer.step()
    with torch.no_grad():
        return before, loss(own, second)[0], tokens


@pytest.mark.parametrize("micro_tokens", [8192, 25])
def test_losses_are_those_of_plain_training_by_hand(tmp_path, micro_tokens):
    """Each user from the same weights, the mean over users, and its interval."""
    graph, model = small.graph(tmp_path / "g", [20, 2, 7, 1, 4]), small.gpt2()
    found = personalise(job(graph, model, micro_tokens=micro_tokens), epochs=2, learning_rate=RATE)
    units = [unit for unit in range(5) if len(graph.rows_of(unit)) > 1]
    before, after, tokens = map(
        np.array, zip(*[by_hand(graph, model, u, RATE[0], 2) for u in units], strict=True)
    )
    assert (found.users, found.skipped, found.tokens) == (4, 1, tokens.sum())
    assert found.loss_before == pytest.approx(before.mean(), rel=1e-5)
    assert found.loss_after == pytest.approx(after.mean(), rel=1e-5)
    assert found.difference == pytest.approx((after - before).mean(), rel=1e-3)
    assert found.by_tokens == pytest.approx((before @ tokens / tokens.sum(), after @ tokens / tokens.sum()))
    assert found.improved == (after < before).sum()
    interval = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-3)


def test_it_helps_where_each_user_has_a_word_of_their_own(tmp_path):
    found = personalise(job(written(tmp_path / "g", peculiar())), learning_rate=RATE)
    assert found.users == found.improved == 10  # every fifth of the twelve is set aside
    assert found.interval[1] < 0
    assert found.difference < -0.3
    plain = personalise(job(written(tmp_path / "h", alike())), learning_rate=RATE)
    assert plain.difference > found.difference + 0.3


def test_who_has_one_row_or_nothing_to_predict_is_skipped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(personalisation, "_CHOOSING", 100)
    texts = peculiar(4) | {"short": [[5], [6], [7]], "same": [[5, 6, 7]] * 4, "single": [[5, 6, 7, 8]]}
    found = personalise(job(written(tmp_path / "g", texts)), learning_rate=RATE)
    everybody = personalise(job(written(tmp_path / "h", peculiar(4))), learning_rate=RATE)
    assert (found.users, found.skipped) == (4, 3)
    assert (everybody.users, everybody.skipped) == (4, 0)
    assert found.loss_after == pytest.approx(everybody.loss_after, rel=1e-5)


# who, and at which rate ----------------------------------------------------------------------------
def taken(graph, monkeypatch, **options) -> tuple[dict[float, set[int]], personalisation.Personalisation]:
    """For each learning rate the first rows of the users trained at it; and the result."""
    found: dict[float, set[int]] = {}
    loss_after = personalisation._Copies.loss_after

    def spy(self, user, rate):
        found.setdefault(rate, set()).add(int(user.first[0]))
        return loss_after(self, user, rate)

    with monkeypatch.context() as patch:
        patch.setattr(personalisation._Copies, "loss_after", spy)
        result = personalise(job(graph), **options)
    return found, result


def test_the_rate_is_chosen_by_users_who_are_not_reported_on(tmp_path, monkeypatch):
    graph = written(tmp_path / "g", peculiar(18))
    single, first = taken(graph, monkeypatch, learning_rate=(0.5,), users=8)
    several, second = taken(graph, monkeypatch, learning_rate=(0.5, 1e-6), users=8)
    judges = several[1e-6]
    assert len(judges) == second.users_choosing == 2
    assert not judges & single[0.5]
    assert several[0.5] == judges | single[0.5]  # the same are reported on, however many rates there are
    assert second.learning_rate == 0.5
    assert second.loss_after == first.loss_after
    assert dict(second.tried)[0.5] < dict(second.tried)[1e-6]
    assert (first.tried, first.users_choosing) == ((), 0)


def test_users_follow_from_their_names_alone(tmp_path, monkeypatch):
    texts = peculiar(18)
    backwards = dict(reversed(texts.items()))
    names = []
    for place, own in enumerate((texts, backwards)):
        graph = written(tmp_path / str(place), own)
        found, _ = taken(graph, monkeypatch, learning_rate=(0.5,), users=5)
        names.append({graph.unit_name(int(graph.owners_of(row)[0])) for row in found[0.5]})
    assert names[0] == names[1]
    assert len(names[0]) == 5


def test_a_rate_that_diverges_is_not_chosen(tmp_path):
    graph = written(tmp_path / "g", peculiar(10))
    found = personalise(job(graph), learning_rate=(1e6, 0.1))
    assert found.learning_rate == 0.1
    assert math.isfinite(found.loss_after)


REFUSED = {
    "one user": ({"users": 1}, r"--users"),
    "no epoch": ({"epochs": 0}, r"--epochs"),
    "no rate": ({"learning_rate": ()}, r"--learning-rate"),
    "a rate of 0": ({"learning_rate": (0.0,)}, r"--learning-rate"),
    "a rate that is no number": ({"learning_rate": (math.nan,)}, r"--learning-rate"),
    "another optimiser": ({"optimizer": "adamw"}, r"--optimizer: sgd or adam"),
    "a rate that diverges": (
        {"learning_rate": (1e30,)},
        r"--learning-rate: 1e\+30 diverges for \d+ of 8 users",
    ),
    "rates that diverge": ({"learning_rate": (1e30, 1e31)}, r"--learning-rate: 1e\+30 and all above diverge"),
}


@pytest.mark.parametrize(("options", "pattern"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(tmp_path, options, pattern):
    with pytest.raises(InputError, match=pattern):
        personalise(job(written(tmp_path / "g", peculiar(10))), **options)


def test_data_that_do_not_suffice_are_refused(tmp_path):
    single = written(tmp_path / "g", {"a": [[5, 6]], "b": [[6, 7]], "c": [[8, 9], [9, 8]]})
    with pytest.raises(InputError, match=r"--personalise: 1 of 3 held-out units"):
        personalise(job(single))
    with pytest.raises(InputError, match=r"--learning-rate: too few users"):
        personalise(job(written(tmp_path / "h", peculiar(4))))
    with pytest.raises(InputError, match=r"data\.eval"):
        personalise(job(None))


def test_several_ranks_are_refused(tmp_path):
    with pytest.raises(InputError, match="without torchrun"):
        personalise(job(small.graph(tmp_path / "g", [3, 3]), ranks=SimpleNamespace(several=True)))


# the command ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    world = World(tmp_path_factory.mktemp("world"), tiny_model(tmp_path_factory.mktemp("model")))
    world.set(data__eval=0.7)
    world.rows(world.text, users=30)
    assert confide("train", world.path).code == 0
    assert confide("train", world.path, "--twin").code == 0
    return world


KEYS = {"users", "loss_before", "loss_after", "difference", "interval", "improved", "learning_rate", "epochs"}


def test_eval_personalises_all_three_models_and_writes_nothing(world):
    before = files_below(world.run)
    found = {}
    for side in ((), ("--base",), ("--twin",)):
        said = confide("eval", world.run, *side, "--personalise", "--epochs", 1, "--json")
        assert said.code == 0, said
        found[side] = json.loads(said.out)["personalisation"]
        assert found[side].keys() >= KEYS
        assert found[side]["epochs"] == 1
    assert len({one["users"] for one in found.values()}) == 1
    assert len({one["loss_before"] for one in found.values()}) == 3
    assert files_below(world.run) == before


def test_eval_in_words(world):
    arguments = ("--personalise", "--users", 5, "--learning-rate", 0.01, "--learning-rate", 0.1)
    said = confide("eval", world.run, *arguments, "--optimizer", "adam")
    assert said.code == 0, said
    assert "personalised for 5 held-out users" in said.out
    assert "epochs of adam at learning rate" in said.out
    assert "chosen by the loss of 2 other users" in said.out


def test_options_of_personalising_need_it(world):
    refused(confide("eval", world.run, "--users", 5), r"--users is an option of --personalise")
    refused(confide("eval", world.run, "--learning-rate", 0.1), r"--learning-rate is an option")
    refused(confide("eval", world.run, "--personalise", "--users", 0), r"--users: ")
