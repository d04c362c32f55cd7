"""Paths of doublings agree with brute force, norms with plain autograd."""

import json

import numpy as np
import pytest
import torch
import transformers
from studies.parts.user_sampling import Target

from confide.cli import show_plans
from confide.config.loading import check
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.planning import user_sampling as configuring
from confide.planning.user_sampling import (
    Place,
    Split,
    estimate_and_double,
    gradient_norms,
    measured_norms,
    measured_split,
)
from confide.randomness.streams import RunKey
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import command, small
from tests.clipping.brute_force import ABOVE

KEY = RunKey.from_text("configuring test")


# strategies ----------------------------------------------------------------------------------------------------
def path(norm, noise, budget=64, most_k=64, users=10**6, start=None):
    return estimate_and_double(norm, noise, start or Split(1, 1.0), budget, most_k, users)


def test_rows_are_doubled_only_where_they_shrink_the_noise_more():
    # s in proportion to n: more users bring nothing, more rows do
    assert path(lambda k: k**-0.5, lambda n: n)[-1] == Place(Split(64, 1.0))
    # norms that more rows do not shrink, noise that does not grow
    assert path(lambda k: 1.0, lambda n: 1.0)[-1] == Place(Split(1, 64.0))


def test_of_equals_users_are_doubled():
    assert path(lambda k: 1.0, lambda n: n)[-1].split == Split(1, 64.0)
    assert path(lambda k: 1 / k, lambda n: 1.0)[-1].split == Split(1, 64.0)


def test_the_path_tells_both_quotients_at_every_place():
    norm = {1: 8.0, 2: 6.0, 4: 5.0, 8: 4.8}.__getitem__
    noise = {2: 1.0, 4: 1.4, 8: 2.6}.__getitem__
    found = path(norm, noise, budget=16, start=Split(1, 2.0))
    assert found == (
        Place(Split(1, 2.0), pytest.approx(6 / 8), pytest.approx(0.7)),
        Place(Split(1, 4.0), pytest.approx(6 / 8), pytest.approx(2.6 / 2.8)),
        Place(Split(2, 4.0), pytest.approx(5 / 6), pytest.approx(2.6 / 2.8)),
        Place(Split(4, 4.0)),
    )


def test_doubling_reaches_the_least_noise_where_gains_only_shrink():
    generator = np.random.default_rng(3)
    for _ in range(200):
        by_k, by_n = (np.cumprod([1, *np.sort(generator.uniform(0.5, 1, 8))]) for _ in range(2))
        budget = 2 ** int(generator.integers(1, 9))

        def norm(k, found=by_k):
            return found[int(np.log2(k))]

        def noise(n, found=by_n):
            return n * found[int(np.log2(n))]

        least = min(
            norm(k) * noise(budget // k) / (budget // k) for k in map(int, 2 ** np.arange(9)) if k <= budget
        )
        end = path(norm, noise, budget, most_k=256, users=256)[-1].split
        assert end.budget == budget
        assert norm(end.k) * noise(end.n) / end.n == pytest.approx(least)


def test_users_are_never_more_than_there_are_nor_rows_than_are_allowed():
    found = path(lambda k: 1.0, lambda n: 1.0, budget=64, users=8)
    assert found[-1].split == Split(8, 8.0)
    assert [place.by_n is None for place in found] == [False] * 3 + [True] * 4
    assert path(lambda k: 1 / k, lambda n: n, budget=64, most_k=4)[-1].split == Split(4, 16.0)
    with pytest.raises(InputError, match="64 rows a step"):
        path(lambda k: 1.0, lambda n: 1.0, budget=64, most_k=4, users=8)


def test_a_budget_between_doublings_is_passed_and_one_that_is_spent_is_left_alone():
    assert path(lambda k: 1.0, lambda n: 1.0, budget=40)[-1].split.budget == 64
    assert path(lambda k: 1.0, lambda n: 1.0, budget=1) == (Place(Split(1, 1.0)),)


# norms ---------------------------------------------------------------------------------------------------------
def slow_norm(model, task, rows, labels=None):
    model.zero_grad()
    loss = torch.stack([task.row_loss(model, task.collate([row]))[0] for row in rows]).mean()
    loss.backward()
    return float(torch.cat([p.grad.double().flatten() for p in model.parameters()]).norm())


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small.graph(tmp_path_factory.mktemp("configuring") / "graph", [1, 2, 3, 5, 7, 9, 4])


@pytest.mark.parametrize("micro_tokens", [8192, 24])  # units whole, or over several micro-batches
def test_norms_of_all_rows_are_those_of_plain_autograd(graph, micro_tokens):
    model, task = small.gpt2(), small.task()
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = gradient_norms(model, task, graph, [9], KEY, micro_tokens=micro_tokens)
    slow = [slow_norm(small.gpt2(), task, graph.fetch(graph.rows_of(unit))) for unit in range(graph.n_units)]
    assert found == pytest.approx([np.median(slow)], rel=ABOVE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training


def test_one_row_of_each_user(tmp_path):
    graph, model, task = small.graph(tmp_path / "graph", [1] * 9), small.gpt2(), small.task()
    slow = [slow_norm(model, task, graph.fetch(graph.rows_of(unit))) for unit in range(9)]
    model.zero_grad()
    assert gradient_norms(model, task, graph, [1, 4], KEY) == pytest.approx([np.median(slow)] * 2, rel=ABOVE)


def test_chunks_are_windows_of_a_users_running_text(graph):
    task, texts = small.task(), [graph.fetch(graph.rows_of(unit)) for unit in range(graph.n_units)]
    short = [np.concatenate(rows) for rows in texts if sum(map(len, rows)) <= 30]  # one chunk is all of it
    assert len(short) > 1
    model = small.gpt2()
    keys = [RunKey.from_text(str(i)) for i in range(60)]
    norms = [gradient_norms(model, task, graph, [3], key, users=1, chunk=30)[0] for key in keys]
    for text in short:
        assert np.isclose(norms, slow_norm(small.gpt2(), task, [text]), rtol=ABOVE).any()


def test_the_sample_is_of_so_many_users_and_follows_the_key(graph):
    model, task = small.gpt2(), small.task()
    seen = []
    original = configuring.UnitSampler.draw

    def draw(self, step):
        found = original(self, step)
        seen.append(found.groups)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuring.UnitSampler, "draw", draw)
        first = gradient_norms(model, task, graph, [1, 2], KEY, users=5)
        again = gradient_norms(model, task, graph, [1, 2], KEY, users=5)
        gradient_norms(model, task, graph, [1], KEY, users=100)
    assert seen == [5] * 4 + [7]
    assert first == pytest.approx(again)
    assert gradient_norms(model, task, graph, [1, 2], RunKey.from_text("another"), users=5) != pytest.approx(
        first
    )


def test_masked_models_are_measured_too(tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(small.family("bert", vocab_size=small.VOCABULARY))
    graph = small.graph(tmp_path / "graph", [8] * 5, longest=60)
    found = gradient_norms(model, small.task("masked-lm"), graph, [1, 8], KEY)
    assert 0 < found[1] < found[0] < np.inf


def test_a_median_of_nothing_is_refused(tmp_path):
    with GraphWriter(tmp_path / "graph", vocabulary=small.VOCABULARY) as writer:
        for user in range(5):
            writer.add(np.array([5]), [f"user{user}"])  # one token: nothing to predict
    graph = UnitGraph.open(tmp_path / "graph")
    with pytest.raises(InputError, match="zero"):
        gradient_norms(small.gpt2(), small.task(), graph, [2], KEY)


# in a run folder -----------------------------------------------------------------------------------------------
@pytest.fixture
def job(tmp_path):
    def make(epsilon=4.0, words="the printer is out of paper"):
        with open(tmp_path / "text.jsonl", "w") as stream:
            for user in range(6):
                for _ in range(user + 1):
                    stream.write(json.dumps({"user": f"u{user}", "text": f"{words} {user}"}) + "\n")
        raw = {
            "model": str(small.config_file(tmp_path)),
            "tokenizer": "bundled",
            "adapter": {"kind": "full"},
            "data": {"train": str(tmp_path / "text.jsonl"), "unit": "user", "eval": None, "max_length": 8},
            "privacy": {"mechanism": "els", "epsilon": epsilon, "published_key": "configuring"},
            "train": {"batch": 4.0, "steps": 5},
            "run": str(tmp_path / "run"),
        }
        return Job.of(Run(check(raw)), Console(quiet=True))

    return make


def test_norms_are_measured_once_for_a_model_and_data(job, monkeypatch):
    asked = []
    original = configuring.gradient_norms

    def counting(model, task, graph, ks, *arguments):
        asked.append((list(ks), arguments[2]))
        return original(model, task, graph, ks, *arguments)

    monkeypatch.setattr(configuring, "gradient_norms", counting)
    first = measured_norms(job(), [1, 2])
    assert first.shape == (2,)
    assert asked == [([1], 8), ([2], 8)]  # chunks of max_length, as user-level sampling of a causal LM draws
    assert measured_norms(job(epsilon=8.0), [2, 1]) == pytest.approx(first[::-1])
    assert len(asked) == 2
    assert measured_norms(job(words="quite another text"), [1]) != pytest.approx(first[:1])
    assert len(asked) == 3


@pytest.fixture
def users(tmp_path):
    """A config of 60 users with 8 texts each, with changes: section__name=value."""

    def make(**changes):
        with open(tmp_path / "text.jsonl", "w") as stream:
            for user in range(60):
                for part in range(8):
                    words = f"the printer on floor {user} is out of paper {part}"
                    stream.write(json.dumps({"user": f"u{user}", "text": words}) + "\n")
        raw = {
            "model": str(small.config_file(tmp_path)),
            "tokenizer": "bundled",
            "adapter": {"kind": "full"},
            "data": {"train": str(tmp_path / "text.jsonl"), "unit": "user", "eval": None, "max_length": 8},
            "privacy": {"mechanism": "uls", "epsilon": 2.0, "rows_per_unit": 8},
            "train": {"batch": 8, "steps": 5},
            "run": str(tmp_path / "run"),
        }
        for key, value in changes.items():
            section, _, name = key.partition("__")
            raw[section][name] = value
        return check(raw)

    return make


def split_of(config, epsilon=2.0):
    job = Job.of(Run(config), Console(quiet=True))
    return measured_split(job, epsilon), job


def test_rows_and_users_are_doubled_by_measured_norms(users, monkeypatch):
    """Where norms do not fall users are doubled, as far as there are any; where they fall to L / k, rows."""
    for exponent, chosen in ((0.0, (2, 32.0)), (1.0, (4, 16.0))):

        def norms(job, ks, exponent=exponent):
            return np.array([10 / k**exponent for k in ks])

        monkeypatch.setattr(configuring, "measured_norms", norms)
        found, job = split_of(users())
        target = Target(2.0, job.setting.delta, 5, 60)
        assert (found["path"][-1]["k"], found["path"][-1]["n"]) == chosen
        assert found["path"][0] | {"by_k": 0, "by_n": 0} == {"k": 1, "n": 16.0, "by_k": 0, "by_n": 0}
        for name, (k, n) in (("noise", chosen), ("noise_of_config", (8, 8))):
            assert found[name] == pytest.approx(target.uls_noise(n) * 10 / k**exponent / n, rel=1e-3)


def test_a_measured_plan_is_of_this_data_and_covered_by_nothing(users, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(users().to_yaml())
    said = command.confide("plan", path, "--measure")
    assert said.code == 0
    assert (
        "Estimate-and-Double (Charles et al. 2024, Algorithm 3), by gradients of 60 units at the base model"
        in said.out
    )
    assert "No guarantee covers what is chosen from this" in said.out
    found, _ = split_of(users())
    first, last = found["path"][0], found["path"][-1]
    assert last["k"] * last["n"] == 64
    assert 0.5 < first["by_k"] < 1.1  # L(2) / L(1)
    assert first["by_n"] >= 0.5  # s(32) / 2 s(16)
    assert found["noise"] > 0
    assert f"train.batch={last['n']:g} and privacy.rows_per_unit={last['k']}" in said.out


def test_a_budget_that_rows_and_users_do_not_reach_is_refused(users):
    with pytest.raises(InputError, match="10000 rows a step are more than doublings of 1 rows of"):
        split_of(users(privacy__rows_per_unit=200, train__batch=50))


@pytest.mark.parametrize(
    "extra", [{"privacy__bands": 2}, {"privacy__sampling": "truncated", "train__max_batch": 16}]
)
def test_a_measured_split_is_accounted_for_as_the_config_is(users, extra):
    """Its noise is that of the run, and what it says can be run."""
    found, _ = split_of(users(**extra))
    last = found["path"][-1]
    assert last["n"] <= (16 if "train__max_batch" in extra else 30)
    again, other = split_of(users(train__batch=last["n"], privacy__rows_per_unit=last["k"], **extra))
    assert again["noise_of_config"] == pytest.approx(found["noise"], rel=1e-3)
    length = measured_norms(other, [last["k"]])[0]
    assert found["noise"] == pytest.approx(other.setting.noise_per_gradient() * length, rel=1e-3)


def test_a_measured_split_of_nothing_to_choose_is_refused(users, tmp_path):
    with pytest.raises(InputError, match=r"train\.divisor: --measure chooses"):
        split_of(users(train__sampling_rate=0.15, train__divisor=9))
    path = tmp_path / "job.yaml"
    path.write_text(users(privacy__epsilon=None, privacy__noise_multiplier=0.0).to_yaml())
    result = command.confide("plan", path, "--measure")
    assert result.code == 2
    assert "there is no noise to compare" in result.err


def test_a_config_that_has_less_noise_is_not_talked_out_of(capsys):
    path = [{"k": 1, "n": 16.0, "by_k": None, "by_n": None}]
    for ours, says in ((0.1, True), (0.3, False)):
        show_plans._split({"users": 60, "path": path, "noise": 0.2, "noise_of_config": ours})
        assert ("this config has less noise than where its path ends" in capsys.readouterr().out) == says
