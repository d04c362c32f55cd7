"""Columns against plain computations row by row, attacks against their formulas, one forward pass for each row."""

import json
import math
import zlib

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from confide.auditing.membership import (
    Columns,
    Side,
    attack,
    columns,
    compare,
    compressed_lengths,
    least_mean,
    lira,
    rmia,
    scores,
    unit_of,
)
from confide.config.data_section import Data
from confide.config.schema import Config
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.models import loading as models
from confide.training.evaluation import row_losses
from confide.training.tasks import base
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import Diverged
from tests import small


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("membership") / "graph", [3, 5, 9, 14], longest=30)


def written(folder, rows, owners=None, labels=None) -> UnitGraph:
    with GraphWriter(folder, vocabulary=small.VOCABULARY, unowned=owners is not None) as writer:
        for i, row in enumerate(rows):
            own = [f"user{i}"] if owners is None else owners[i]
            writer.add(np.array(row), own, None if labels is None else labels[i])
    return UnitGraph.open(folder)


def spread(model, scale=0.5, seed=0):
    """Weights far enough from their start for predictions to differ from place to place."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


class Counting:
    """How many rows a model was given, and how often it was asked."""

    def __init__(self, model):
        self.rows = self.passes = 0
        model.register_forward_pre_hook(self._seen, with_kwargs=True)

    def _seen(self, model, positional, named):
        self.rows += named["input_ids"].shape[0]
        self.passes += 1


class Fixed(torch.nn.Module):
    """Says the same logits whatever it reads."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.register_parameter("none", torch.nn.Parameter(torch.zeros(1)))

    def forward(self, input_ids, position_ids=None, attention_mask=None):
        return type("Output", (), {"logits": self.logits.expand(*input_ids.shape, -1)})


# columns -------------------------------------------------------------------------------------------------------
def slow_row(model, ids, percent=20):
    """(loss, min-k%, min-k%++) of one row by itself, in float64 over the whole vocabulary."""
    ids = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        logs = model(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1)
    weights = logs.exp()
    mean = (weights * logs).sum(-1)
    deviation = ((weights * logs**2).sum(-1) - mean**2).sqrt()
    own = logs[torch.arange(len(ids) - 1), ids[1:]]
    wanted = max(1, math.floor(len(own) * percent / 100 + 1e-9))
    return (
        -own.mean().item(),
        own.sort().values[:wanted].mean().item(),
        ((own - mean) / deviation).sort().values[:wanted].mean().item(),
    )


@pytest.mark.parametrize("micro_tokens", [8192, 60, 1])
def test_columns_are_those_of_each_row_alone(graph, micro_tokens):
    model = spread(small.gpt2()).eval()
    found = columns(model, small.task(), graph, micro_tokens=micro_tokens)
    expected = np.array([slow_row(model, graph.fetch(np.array([row]))[0]) for row in range(graph.n_rows)])
    assert found.rows.tolist() == list(range(graph.n_rows))
    assert found.tokens.tolist() == (graph.row_lengths - 1).tolist()
    for name, column in zip(("loss", "min_k", "min_k_plus_plus"), expected.T, strict=True):
        assert getattr(found, name).dtype == np.float64
        assert getattr(found, name) == pytest.approx(column, rel=1e-4, abs=1e-4), name


def test_z_scores_are_those_of_a_worked_example():
    """Zhang et al. 2025: (log p - mu) / sigma under p = (0.7, 0.2, 0.1), worked by hand to six digits."""
    task = CausalLM(0, None, 3, (), frozenset(), False, torch.device("cpu"))
    model = Fixed(torch.tensor([0.7, 0.2, 0.1]).log())
    batch = task.collate([np.array([0, 0]), np.array([0, 1]), np.array([0, 2])])
    logs, counted, mean, deviation = task.token_statistics(model, batch)
    assert counted.tolist() == [[True, False]] * 3
    assert ((logs - mean) / deviation)[:, 0].tolist() == pytest.approx(
        [0.633092, -1.148612, -2.134419], abs=2e-6
    )
    assert logs[:, 0].exp().tolist() == pytest.approx([0.7, 0.2, 0.1])
    assert not logs[:, 1].any()


def test_a_prediction_without_doubt_gives_finite_scores():
    """All weight on one token, or the same on all: the deviation is zero."""
    task = CausalLM(0, None, 3, (), frozenset(), False, torch.device("cpu"))
    rows = [np.array([0, 0]), np.array([0, 1])]
    for logits in ([0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0], [1e4, 0.0, 0.0]):
        logs, counted, mean, deviation = task.token_statistics(
            Fixed(torch.tensor(logits)), task.collate(rows)
        )
        assert mean.isfinite().all()
        assert deviation.isfinite().all()
        certain = least_mean((logs - mean) / deviation.clamp(min=1e-6), counted)
        assert certain[0] == pytest.approx(0, abs=1e-6)


def test_least_tokens_are_a_fifth_and_one_at_least():
    values = torch.arange(20.0).flip(0).repeat(4, 1)
    counted = torch.arange(20) < torch.tensor([[20], [10], [3], [0]])
    found = least_mean(values, counted)
    assert found.tolist() == pytest.approx([1.5, 10.5, 17.0, 0.0])


def test_pieces_change_nothing_and_no_second_tensor_is_as_large_as_the_logits(graph, monkeypatch):
    task, batch = small.task(), small.task().collate(graph.fetch(np.arange(16)))
    logits = 3 * torch.randn(16, batch["input_ids"].shape[1], small.VOCABULARY)
    model = Fixed(logits[0, 0])
    model.forward = lambda **inputs: type("Output", (), {"logits": logits})
    whole = task.token_statistics(model, batch)
    monkeypatch.setattr(base, "_PIECE", 7 * small.VOCABULARY)
    largest = 0

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, (tuple, list)) else [found]:
                if isinstance(tensor, torch.Tensor) and tensor.data_ptr() != logits.data_ptr():
                    largest = max(largest, tensor.numel())
            return found

    with Watching():
        pieces = task.token_statistics(model, batch)
    for ours, theirs in zip(pieces, whole, strict=True):
        assert torch.equal(ours, theirs)
    assert 7 * small.VOCABULARY <= largest < logits.numel() / 4


def test_statistics_agree_with_the_losses_that_are_trained_on(graph):
    model, task = spread(small.gpt2()).eval(), small.task()
    batch = task.collate(graph.fetch(np.arange(9)))
    with torch.no_grad():
        loss, counted, _ = task.token_losses(model, batch)
        logs, also, _, _ = task.token_statistics(model, batch)
    assert torch.equal(counted, also)
    assert torch.allclose(-logs, loss, atol=1e-5)


def test_each_row_is_read_once_by_each_model(graph):
    audited, base = small.gpt2(0), small.gpt2(1)
    own, reference = Counting(audited), Counting(base)
    some = np.array([7, 2, 11])
    found = columns(audited, small.task(), graph, micro_tokens=64)
    known = columns(base, small.task(), graph, micro_tokens=64, tokenwise=False)
    scores(found, known)
    lira(found.loss, known.loss[None])
    assert own.rows == reference.rows == graph.n_rows
    assert 1 < own.passes == reference.passes < graph.n_rows
    few = columns(audited, small.task(), graph, among=some)
    assert own.rows == graph.n_rows + 3
    assert few.rows.tolist() == [2, 7, 11]
    assert few.loss == pytest.approx(found.loss[[2, 7, 11]], abs=1e-5)
    assert known.min_k is None


def test_masked_models_and_classes_have_the_losses_of_evaluation(tmp_path):
    import transformers

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    rows = [generator.integers(2, small.VOCABULARY, 12) for _ in range(20)]
    graph = written(tmp_path / "graph", rows, labels=[i % 2 for i in range(20)])
    changes = {"vocab_size": small.VOCABULARY, "pad_token_id": 0}
    for kind, head in (
        ("masked-lm", transformers.AutoModelForMaskedLM),
        ("classification", transformers.AutoModelForSequenceClassification),
    ):
        model = head.from_config(small.family("bert", **changes)).eval()
        seen = Counting(model)
        found = columns(model, small.task(kind), graph)
        assert seen.rows == 20
        sums, counts, _ = row_losses(model, small.task(kind), graph)
        assert found.rows.tolist() == np.flatnonzero(counts).tolist()
        assert found.loss == pytest.approx((sums / np.maximum(counts, 1))[counts > 0])
        assert found.tokens.tolist() == counts[counts > 0].tolist()
        assert found.min_k is None
        assert scores(found, found).keys() == {"loss", "reference"}


def test_rows_without_anything_to_predict_are_left_out(tmp_path):
    graph = written(tmp_path / "graph", [[5, 6, 7], [5], [8, 9], [1, 1, 1]])
    found = columns(small.gpt2(), small.task(), graph)
    assert found.rows.tolist() == [0, 2]  # the last one holds masks alone
    assert found.tokens.tolist() == [2, 1]
    here, places = found.places(np.array([3, 2, 0, 2]))
    assert here.tolist() == [False, True, True, True]
    assert places.tolist() == [1, 0, 1]


def test_progress_is_told_of_every_row_and_the_mode_is_given_back(graph):
    model, told = small.gpt2(), []
    model.train()
    columns(model, small.task(), graph, micro_tokens=40, progress=told.append)
    assert sum(told) == graph.n_rows
    assert len(told) > 1
    assert model.training


@pytest.mark.parametrize("tokenwise", [True, False])
def test_a_model_that_diverged_is_told_of(graph, tokenwise):
    model = small.gpt2()
    with torch.no_grad():
        model.transformer.wte.weight[7] = torch.nan
    with pytest.raises(Diverged, match="not a finite number"):
        columns(model, small.task(), graph, tokenwise=tokenwise)


def test_compressed_lengths_are_of_the_text(tmp_path):
    tokenizer = models.load_tokenizer(Config(model="bundled", data=Data(train="x", max_length=2)))
    texts = ["the printer is out of paper " * 6, "a", "qxz wvu 93 kjh"]
    rows = [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in texts]
    with GraphWriter(tmp_path / "graph", vocabulary=len(tokenizer)) as writer:
        for i, row in enumerate(rows):
            writer.add(row, [f"u{i}"])
    found = compressed_lengths(UnitGraph.open(tmp_path / "graph"), np.array([2, 0, 1]), tokenizer)
    assert found.tolist() == [len(zlib.compress(texts[i].encode())) for i in (2, 0, 1)]


def test_a_rows_unit_is_its_first_owner_or_its_own(tmp_path):
    graph = written(tmp_path / "graph", [[5, 6]] * 4, [["a", "b"], ["b"], [], []])
    found = unit_of(graph, np.array([0, 1, 2, 3]))
    assert found[0] == graph.owners_of(0)[0]
    assert found[1] == graph.owners_of(1)[0]
    assert len(set(found.tolist())) == 4


# attacks -------------------------------------------------------------------------------------------------------
def some_columns(loss, tokens=None, least=None):
    n = len(loss)
    tokens = np.full(n, 10) if tokens is None else np.array(tokens)
    return Columns(np.arange(n), tokens, np.array(loss, dtype=float), least, least)


def test_simple_scores_are_their_formulas():
    own = some_columns([1.0, 2.0, 4.0], [10, 20, 5], np.array([-3.0, -2.0, -1.0]))
    found = scores(own, some_columns([3.0, 2.5, 4.0], [10, 20, 5]), np.array([20, 10, 40]))
    assert found["loss"].tolist() == [-1, -2, -4]
    assert found["reference"].tolist() == [2, 0.5, 0]
    assert found["zlib"].tolist() == [-0.5, -4, -0.5]
    assert found["min-k"].tolist() == found["min-k++"].tolist() == [-3, -2, -1]
    assert scores(some_columns([1.0])).keys() == {"loss"}
    with pytest.raises(ValueError, match="same tokens of the same rows"):
        scores(own, some_columns([3.0, 2.5, 4.0]))
    with pytest.raises(ValueError, match="compressed"):
        scores(own, None, np.array([20]))


def logit(loss):
    p = np.exp(-loss)
    return np.log(p / (1 - p))


def test_lira_is_a_normal_fitted_to_the_reference_models():
    generator = np.random.default_rng(0)
    loss, references = generator.uniform(0.1, 3, 6), generator.uniform(0.1, 3, (64, 6))
    away = logit(loss) - logit(references).mean(0)
    own = logit(references).std(0, ddof=1)
    assert lira(loss, references) == pytest.approx(away / own)
    shared = np.sqrt((logit(references[:5]).var(0, ddof=1)).mean())
    assert lira(loss, references[:5]) == pytest.approx((logit(loss) - logit(references[:5]).mean(0)) / shared)
    assert lira(loss, references[:5], individual_from=5) != pytest.approx(lira(loss, references[:5]))
    assert lira(loss, references[:1]) == pytest.approx(logit(loss) - logit(references[0]))


def test_lira_stays_finite_where_references_agree_or_losses_vanish():
    references = np.ones((64, 3))
    references[:, 0] += np.linspace(0, 1, 64)
    found = lira(np.array([0.0, 0.5, 2.0]), references)
    assert np.abs(found).max() < 1e4
    assert found[0] > 0
    assert found[1] > 0 > found[2]
    same = lira(np.array([0.5, 2.0]), np.full((70, 2), 1.1))
    assert same == pytest.approx(logit(np.array([0.5, 2.0])) - logit(np.array(1.1)))


def test_lira_knows_hard_rows_from_strangers():
    """Members lose less than by models without them, by less than rows differ among each other."""
    generator = np.random.default_rng(1)
    difficulty = generator.uniform(1, 4, 1000)
    references = difficulty + 0.1 * generator.normal(size=(8, 1000))
    loss = difficulty + 0.1 * generator.normal(size=1000) - 0.3 * (np.arange(1000) < 500)
    found = lira(loss, references)
    result = compare(
        {"loss": -loss[:500], "lira": found[:500]}, {"loss": -loss[500:], "lira": found[500:]}
    ).attacks
    assert result["loss"].auroc.value < 0.65
    assert result["lira"].auroc.low > 0.9


@pytest.mark.parametrize(("a", "gamma"), [(0.3, 1.0), (0.9, 1.1), (1.0, 1.0), (0.0, 0.8)])
def test_rmia_counts_the_population_rows_that_a_row_beats(a, gamma):
    """Zarifzadeh et al. 2024: pair by pair, in probabilities."""
    generator = np.random.default_rng(2)
    loss, references = generator.uniform(0.2, 3, 15), generator.uniform(0.2, 3, (3, 15))
    others, other_references = generator.uniform(0.2, 3, 40), generator.uniform(0.2, 3, (3, 40))

    def ratio(own, without):
        return np.exp(-own) / (((1 + a) * np.exp(-without).mean(0) + 1 - a) / 2)

    expected = [
        np.mean([x / z >= gamma for z in ratio(others, other_references)]) for x in ratio(loss, references)
    ]
    assert rmia(loss, references, others, other_references, a, gamma) == pytest.approx(expected)
    assert len(set(expected)) > 5
    again = rmia(loss, references, loss, references, a)  # a row beats its like
    assert np.sort(again) == pytest.approx(np.arange(1, 16) / 15)


def test_impossible_references_are_refused():
    with pytest.raises(ValueError, match="matrix"):
        lira(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="matrix"):
        lira(np.zeros(3), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="matrix"):
        rmia(np.zeros(3), np.zeros((1, 3)), np.zeros(2), np.zeros((1, 3)))
    with pytest.raises(ValueError, match="a from 0 to 1"):
        rmia(np.zeros(3), np.zeros((1, 3)), np.zeros(2), np.zeros((1, 2)), a=1.5)


def test_members_and_others_share_what_lira_and_rmia_share():
    """The spread of few references is one number for both sides: that of each alone would tell them apart."""
    generator = np.random.default_rng(6)
    sides = [
        Side(
            some_columns(generator.uniform(1, 2, n)),
            tuple(some_columns(generator.uniform(1, 2, n)) for _ in range(2)),
        )
        for n in (30, 20, 10)
    ]
    found = attack(*sides)
    loss = np.concatenate([side.own.loss for side in sides[:2]])
    matrix = np.concatenate([side.matrix() for side in sides[:2]], axis=1)
    away, beaten = lira(loss, matrix), rmia(loss, matrix, sides[2].own.loss, sides[2].matrix())
    expected = compare({"lira": away[:30], "rmia": beaten[:30]}, {"lira": away[30:], "rmia": beaten[30:]})
    assert {name: found.attacks[name] for name in ("lira", "rmia")} == expected.attacks
    assert found.attacks.keys() == {"loss", "reference", "lira", "rmia"}
    assert attack(*sides[:2]).attacks.keys() == {"loss", "reference", "lira"}
    assert attack(Side(sides[0].own), Side(sides[1].own)).attacks.keys() == {"loss"}
    with pytest.raises(ValueError, match="as many reference models"):
        attack(sides[0], Side(sides[1].own))
    strange = Side(sides[0].own, (sides[0].own, sides[1].own))  # the second reference is of other rows
    with pytest.raises(ValueError, match="same tokens of the same rows"):
        attack(strange, sides[1])
    with pytest.raises(ValueError, match="both or neither"):
        attack(Side(sides[0].own, units=np.arange(30)), Side(sides[1].own))


# what attacks achieve ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Members, others and a population of rows of one distribution, and a model that was over-trained on the first."""
    folder = tmp_path_factory.mktemp("sides")
    graphs = [
        small.graph(folder / name, [1] * n, seed, longest=20)
        for seed, (name, n) in enumerate((("members", 60), ("others", 60), ("population", 40)))
    ]
    model, task = small.gpt2(), small.task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    batch = task.collate(graphs[0].fetch(np.arange(60)))
    for _ in range(80):
        optimizer.zero_grad()
        task.row_loss(model, batch).mean().backward()
        optimizer.step()
    return graphs, model


def attacked(graphs, model):
    task, bases = small.task(), [small.gpt2(seed) for seed in (1, 2)]
    sides = []
    for graph in graphs:
        own = columns(model, task, graph)
        known = tuple(columns(base, task, graph, tokenwise=False) for base in bases)
        sides.append(Side(own, known, None, unit_of(graph, own.rows)))
    return attack(*sides)


def test_every_attack_finds_the_rows_that_a_model_was_over_trained_on(sides):
    graphs, model = sides
    found = attacked(graphs, model)
    assert found.attacks.keys() == {"loss", "reference", "min-k", "min-k++", "lira", "rmia"}
    for name, own in found.attacks.items():
        assert own.auroc.low > 0.85, name
        assert own.advantage.low > 0.3, name
    assert found.p_value < 1e-9
    assert found.attacks[found.strongest].auroc.value > 0.97


def test_no_attack_finds_members_of_a_model_that_saw_none(sides):
    found = attacked(sides[0], small.gpt2(5))
    for name, own in found.attacks.items():
        assert own.auroc.low <= 0.5 <= own.auroc.high, name
        assert own.advantage.low <= 0 <= own.advantage.high, name
    assert found.p_value > 0.05


def test_trying_many_attacks_costs_what_it_should():
    generator = np.random.default_rng(3)
    trials, alarms, naive = 2000, 0, 0
    for _ in range(trials):
        members, others = ({str(i): generator.normal(size=40) for i in range(6)} for _ in range(2))
        found = compare(members, others, fprs=())
        alarms += found.p_value <= 0.05
        naive += found.attacks[found.strongest].p_value <= 0.05
    assert alarms / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)
    assert naive / trials > 0.15


def test_results_are_plain_json_and_attacks_must_match():
    generator = np.random.default_rng(4)
    members, others = {"loss": generator.normal(size=9)}, {"loss": generator.normal(size=8)}
    found = json.loads(json.dumps(compare(members, others).to_json(), allow_nan=False))
    assert found["strongest"] == "loss"
    assert found["attacks"]["loss"]["members"] == 9
    with pytest.raises(ValueError, match="same attacks"):
        compare(members, {"other": others["loss"]})
