"""Histograms that are released with a model: what a unit adds, their noise, and the epsilon that covers them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from confide.config.loading import check
from confide.data.lengths import BOUNDS
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy import histograms, mechanisms
from confide.privacy.accounting import MixtureOfGaussians, replaced
from confide.privacy.accounting.stock import recheck, second_opinion
from confide.privacy.histograms import GRID, Histograms, each_vector
from confide.privacy.mechanisms.statement import calibrate, recheck_claim, state_guarantee
from confide.randomness.streams import RunKey
from confide.utils.errors import CheckFailed, InputError

BOTH = Histograms(("conditions", "lengths"), 3.0)
KEY = RunKey.from_text("histograms")
LISTED = 4  # conditions


def graph_of(folder, documents: list[tuple[str, int, list[int]]]) -> UnitGraph:
    """Write documents: the unit, the number of the condition or 0, and the tokens of each row."""
    with GraphWriter(folder, vocabulary=9, counted=True) as writer:
        for unit, condition, rows in documents:
            marks = [condition, *[-1] * (len(rows) - 1)]
            writer.add_many(np.ones(sum(rows), int), rows, [unit] * len(rows), documents=marks)
    return UnitGraph.open(folder)


def random_documents(rng: np.random.Generator, unit: str, most: int) -> list[tuple[str, int, list[int]]]:
    return [
        (unit, int(rng.integers(0, LISTED + 1)), rng.integers(1, 60, rng.integers(1, 4)).tolist())
        for _ in range(rng.integers(1, most + 1))
    ]


def slow(documents: list[tuple[str, int, list[int]]]) -> np.ndarray:
    """What a user with these documents adds to both histograms, one document at a time."""
    found = np.zeros(LISTED + len(BOUNDS))
    for _, condition, rows in documents:
        if condition:
            found[condition - 1] += 1 / len(documents)
        cell = next((at for at, bound in enumerate(BOUNDS) if sum(rows) <= bound), len(BOUNDS) - 1)
        found[LISTED + cell] += 1 / len(documents)
    return found


def added(graph: UnitGraph, by_user: bool = True) -> np.ndarray:
    """What each unit adds to both histograms: float64[units, cells]."""
    return (
        np.concatenate(
            [
                np.concatenate(list(each_vector(graph, name, cells, by_user)))
                for name, cells in BOTH.cells(LISTED).items()
            ],
            axis=1,
        )
        / GRID
    )


# what a unit adds ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("entries", [1, 40, 1 << 22])  # one unit at a time, a few, all together
def test_a_change_of_one_user_moves_the_sum_by_no_more_than_the_bound(tmp_path, monkeypatch, entries):
    """The attacker's side: random neighbours, with users of up to 300 documents."""
    monkeypatch.setattr(histograms, "_ENTRIES", entries)
    rng = np.random.default_rng(entries)
    furthest = {"gone": 0.0, "other": 0.0}
    for trial in range(25):
        users = [random_documents(rng, f"user{u}", rng.choice([1, 5, 300])) for u in range(6)]
        theirs = random_documents(rng, "user3", rng.choice([1, 300]))
        others = [each for u, own in enumerate(users) for each in own if u != 3]
        order = rng.permutation(len(others) + len(users[3]))
        mixed = [(others + users[3])[at] for at in order]  # documents of users are mixed
        before = added(graph_of(tmp_path / f"{trial} before", mixed))
        gone = added(graph_of(tmp_path / f"{trial} gone", others))
        after = added(graph_of(tmp_path / f"{trial} after", others + theirs))
        assert before.sum(0) == pytest.approx(sum(slow(own) for own in users), abs=1e-7)
        away, moved = (np.linalg.norm(before.sum(0) - other.sum(0)) for other in (gone, after))
        assert away <= math.sqrt(2)
        assert moved <= 2
        furthest["gone"], furthest["other"] = max(furthest["gone"], away), max(furthest["other"], moved)
    assert furthest["gone"] > 0.9 * math.sqrt(2)  # the bound is met by users of one document
    assert furthest["other"] > 0.7 * 2


def test_of_rows_each_that_begins_a_document_adds_its_condition(tmp_path, monkeypatch):
    documents = [("a", 2, [16]), ("a", 0, [10, 7]), ("b", 4, [5000]), ("b", 2, [1, 1, 1])]
    graph = graph_of(tmp_path / "g", documents)
    expected = np.zeros((7, LISTED))
    for row, condition in ((0, 2), (3, 4), (4, 2)):
        expected[row, condition - 1] = 1
    assert np.array_equal(added(graph, by_user=False)[:, :LISTED], expected)
    monkeypatch.setattr(histograms, "_ENTRIES", 1)
    assert np.array_equal(added(graph, by_user=False)[:, :LISTED], expected)


def test_no_document_reaches_over_two_users(tmp_path):
    """Rows that begin no document, such as those of a canary that was not planted, are of their own user."""
    with GraphWriter(tmp_path / "g", vocabulary=9, counted=True) as writer:
        writer.add_many([1] * 30, [30], ["a"], documents=[3])
        writer.add([1] * 300, ["b"])
    found = added(UnitGraph.open(tmp_path / "g"))
    assert found[0].sum() == 2
    assert found[0, LISTED + 1] == 1
    assert found[1, :LISTED].sum() == 0


def test_a_graph_that_tells_no_documents_is_refused(tmp_path):
    with GraphWriter(tmp_path / "g", vocabulary=9) as writer:
        writer.add([1], ["a"], 0)
    with pytest.raises(InputError, match="prepare the data again"):
        added(UnitGraph.open(tmp_path / "g"))


# noise -----------------------------------------------------------------------------------------------------------
def test_noise_has_the_stated_deviation_and_is_the_same_each_time(tmp_path):
    graph = graph_of(tmp_path / "g", [(f"user{u}", u % 5, [20 * u + 1]) for u in range(30)])
    exact = added(graph).sum(0)

    def noise(key: RunKey) -> np.ndarray:
        found = BOTH.released(graph, LISTED, True, key)
        return np.concatenate([found["conditions"], found["lengths"]]) - exact

    assert np.array_equal(noise(KEY), noise(KEY))
    drawn = np.array([noise(KEY.bound_to(bytes([number]))) for number in range(200)])
    assert len(np.unique(drawn.round(3), axis=0)) == 200
    assert drawn.std() == pytest.approx(
        math.sqrt(BOTH.deviation**2 + 1 / 12), rel=0.06
    )  # rounded to whole numbers
    assert np.abs(np.corrcoef(drawn.T) - np.eye(drawn.shape[1])).max() < 0.35
    assert BOTH.deviation == 3.0 * math.sqrt(2)
    assert Histograms(("lengths",), 3.0).deviation == 3.0


# accounting ------------------------------------------------------------------------------------------------------
def brute(q: float, s: float, noise: float, distance: tuple[float, float], epsilon: float) -> float:
    """H(epsilon) of one step and one release, by adding up max(0, p - e^epsilon q) on a grid of both outcomes.

    Args:
        distance: of the step, and of the release: (1, 1), or of two texts.
    """
    x, y = np.linspace(-9 * s - 1, 9 * s + 1, 1501), np.linspace(-8 * noise, 8 * noise + 2, 1501)
    zero, one = stats.norm.pdf(x, 0, s), stats.norm.pdf(x, 1, s)
    other = zero if distance[0] == 1 else (1 - q) * zero + q * stats.norm.pdf(x, -1, s)
    step = (1 - q) * zero + q * one
    first, second = stats.norm.pdf(y, distance[1], noise), stats.norm.pdf(y, 0, noise)
    gap = np.outer(step, first) - math.exp(epsilon) * np.outer(other, second)
    return float(np.maximum(gap, 0).sum() * (x[1] - x[0]) * (y[1] - y[0]))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("q", "s", "noise"), [(0.2, 0.8, 3.0), (0.5, 1.5, 1.0)])
def test_delta_is_that_of_both_outcomes_together(q, s, noise, adjacency):
    step = MixtureOfGaussians.bernoulli(q, 1)
    distance = (1.0, 1.0) if adjacency == "zero-out" else (2.0, math.sqrt(2))
    process = step if adjacency == "zero-out" else replaced(step)
    curve = Histograms(("conditions",), noise).before(process, adjacency).curve(s)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact = brute(q, s, noise, distance, epsilon)
        assert float(curve.removal.delta(epsilon)) >= exact - 1e-9
        assert float(curve.removal.delta(epsilon)) == pytest.approx(exact, rel=2e-3, abs=1e-6)
        assert float(process.curve(s).removal.delta(epsilon)) < 0.99 * exact  # it left out, it would be seen


def test_neighbours_differ_by_no_more_than_what_is_accounted(tmp_path):
    """Two small data sets, their counts with Gaussian noise: exact divergences against the pair."""
    rng = np.random.default_rng(5)
    for trial in range(20):
        users = [random_documents(rng, f"user{u}", 3) for u in range(3)]
        others = [each for own in users[1:] for each in own]
        first = added(graph_of(tmp_path / f"{trial} a", others + users[0])).sum(0)
        gone = added(graph_of(tmp_path / f"{trial} b", others)).sum(0)
        theirs = added(graph_of(tmp_path / f"{trial} c", others + random_documents(rng, "user0", 3))).sum(0)
        for second, adjacency in ((gone, "zero-out"), (theirs, "replace-one")):
            mu = np.linalg.norm(first - second) / BOTH.deviation
            curve = BOTH.pair(adjacency).curve(BOTH.noise_multiplier)
            for epsilon in (0.0, 0.2, 0.6):
                exact = stats.norm.cdf(mu / 2 - epsilon / max(mu, 1e-9)) - math.exp(epsilon) * stats.norm.cdf(
                    -mu / 2 - epsilon / max(mu, 1e-9)
                )
                assert exact <= curve.delta(epsilon) + 1e-9


ASKED = {"of": ["conditions"], "noise_multiplier": 5.0}
LIST = {"condition": "topic", "conditions": ["billing", "login"]}


def asked(name: str, data=None, sampling_rate=None, divisor=None, max_batch=None, **privacy):
    raw = {
        "data": {"train": "x", "unit": "from"} | LIST | (data or {}),
        "privacy": {"mechanism": name, "epsilon": 4.0, "histograms": ASKED} | privacy,
        "train": {
            "batch": 5.0,
            "steps": 50,
            "sampling_rate": sampling_rate,
            "divisor": divisor,
            "max_batch": max_batch,
        },
    }
    if "noise_multiplier" in privacy:
        del raw["privacy"]["epsilon"]
    return check(raw)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-or-remove"])
@pytest.mark.parametrize("name", ["uls", "dp-sgd"])
def test_the_claim_is_of_both_and_follows_from_what_it_says(tmp_path, name, adjacency):
    literal = {"delta": 1e-4, "noise_multiplier": 1.2, "sampling_rate": 0.1, "divisor": 5.0}
    settings = asked(
        name, adjacency=adjacency, **(literal if adjacency == "add-or-remove" else {"delta": 1e-4})
    )
    graph = graph_of(tmp_path / "g", [(f"user{u}", 1, [5, 5]) for u in range(60)])
    mechanism = mechanisms.build(settings)
    assert mechanism.histograms == Histograms(("conditions",), 5.0)
    privacy = settings.privacy
    setting = calibrate(mechanism, graph.shape(), privacy.epsilon, privacy.noise_multiplier, 1e-4)
    if privacy.epsilon is not None:
        assert setting.curve().epsilon(1e-4) <= privacy.epsilon
        alone = calibrate(replace(mechanism, histograms=None), graph.shape(), privacy.epsilon, None, 1e-4)
        assert setting.noise_multiplier > alone.noise_multiplier
    claim = state_guarantee(setting, mechanism.all_steps, False, settings, {"state": "planned"})
    assert claim.theorem
    step = MixtureOfGaussians.bernoulli(claim.sampling_probability[1], claim.steps)
    process = replaced(step) if adjacency == "replace-one" else step
    both = Histograms(("conditions",), 5.0).before(process, adjacency)
    assert both.curve(claim.noise_multiplier).epsilon(claim.delta) == pytest.approx(claim.epsilon)
    assert process.curve(claim.noise_multiplier).epsilon(claim.delta) < claim.epsilon - 1e-3
    guessed = Histograms(("conditions",), 5.0).before(step, "zero-out").curve(claim.noise_multiplier)
    for prior, bound in claim.reconstruction:
        assert bound == pytest.approx(float(guessed.reconstruction(prior)))
    assert "standard deviation 5 (noise multiplier 5), which epsilon covers too" in claim.protected_output
    assert any("beside it the counts of how often each condition" in words for words in claim.words)
    assert (
        "With noise multiplier 5: the counts of how often each condition of the list occurs"
        in claim.accountant
    )
    assert any("chose its values by looking" in item for item in claim.not_covered)


@pytest.mark.parametrize(
    ("adjacency", "sampling", "bands"),
    [
        ("zero-out", "poisson", 1),
        ("zero-out", "truncated", 1),
        ("zero-out", "bins", 1),
        ("zero-out", "shuffle", 1),
        ("zero-out", "poisson", 3),
        ("replace-one", "poisson", 3),
        ("replace-one", "truncated", 1),
    ],
)
def test_all_that_is_allowed_composes_exactly(tmp_path, adjacency, sampling, bands):
    most = {"max_batch": 9} if sampling == "truncated" else {}
    settings = asked(
        "uls", adjacency=adjacency, sampling=sampling, bands=bands, delta=1e-4, noise_multiplier=1.3, **most
    )
    graph = graph_of(tmp_path / "g", [(f"user{u}", 1, [5, 5]) for u in range(60)])
    setting = calibrate(mechanisms.build(settings), graph.shape(), None, 1.3, 1e-4)
    curve, alone = setting.curve(), setting.parameters.process.process.curve(1.3)
    assert curve.composed is not None
    counts = BOTH.pair(adjacency).curve(5.0)
    assert alone.epsilon(1e-4) < curve.epsilon(1e-4) < alone.epsilon(5e-5) + counts.epsilon(5e-5)


def test_dp_accounting_finds_the_same_and_sees_histograms_that_were_left_out(tmp_path, monkeypatch):
    settings = asked("uls", delta=1e-4, noise_multiplier=1.3)
    graph = graph_of(tmp_path / "g", [(f"user{u}", 1, [5, 5]) for u in range(60)])
    setting = calibrate(mechanisms.build(settings), graph.shape(), None, 1.3, 1e-4)
    process, epsilon = setting.parameters.process, setting.curve().epsilon(1e-4)
    assert second_opinion(process, 1.3, 1e-4).epsilon == pytest.approx(epsilon, rel=2e-3)
    assert recheck_claim(setting, 50)
    alone = process.process.curve(1.3).epsilon(1e-4)
    with pytest.raises(CheckFailed, match="dp_accounting by itself finds"):
        recheck(process, 1.3, 1e-4, alone)
    # a composition that forgets the first part
    monkeypatch.setattr("confide.privacy.accounting.phases.compose", lambda curves: curves[-1])
    with pytest.raises(CheckFailed, match="dp_accounting by itself finds"):
        recheck_claim(setting, 50)


# what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "data", "privacy", "words"),
    [
        ("els", {}, {}, "counted under uls and dp-sgd, not under els"),
        ("group", {}, {}, "counted under uls and dp-sgd, not under group"),
        ("adaptive", {}, {}, "counted under uls and dp-sgd, not under adaptive"),
        ("none", {}, {"epsilon": None}, "counted under uls and dp-sgd, not under none"),
        ("uls", {"condition": None, "conditions": None}, {}, "conditions: data.condition names none"),
        ("uls", {"conditions": [{"topic": "x", "share": 2}]}, {}, "states a share"),
        ("uls", {"eval": None, "eval_within": 0.1}, {}, "holds out rows of documents"),
        ("uls", {}, {"histograms": {"of": ["lengths", "lengths"]}}, "names one twice"),
        ("uls", {}, {"histograms": {"noise_multiplier": 3.0}}, "nothing is counted"),
        ("uls", {}, {"histograms": ASKED | {"noise_multiplier": 0.0}}, "noise_multiplier.*above 0"),
        ("uls", {}, {"sampling": "bins", "adjacency": "replace-one"}, "does not compose exactly"),
        (
            "dp-sgd",
            {},
            {
                "histograms": {"of": ["lengths"]},
                "adjacency": "add-or-remove",
                **{"epsilon": None, "noise_multiplier": 1.0, "delta": 1e-5},
            },
            "a document's length is of all its rows",
        ),
        ("dp-sgd", {}, {"histograms": {"of": ["lengths"]}}, "a document's length is of all its rows"),
        ("uls", {}, {"histograms": ASKED | {"noise_multiplier": 20_000.0}}, "noise_multiplier"),
    ],
)
def test_what_nothing_accounts_for_is_refused(name, data, privacy, words):
    with pytest.raises(InputError, match=words):
        asked(name, data, **privacy)


def test_canaries_that_leave_empty_rows_are_refused():
    raw = asked("uls").model_dump(mode="json", exclude_defaults=True)
    with pytest.raises(InputError, match=r"canaries\.count: a canary that is not planted"):
        check(raw | {"canaries": {"count": 8}})


def test_counts_that_cost_more_than_the_target_are_named():
    with pytest.raises(
        InputError, match=r"privacy\.histograms\.noise_multiplier: the counts alone cost epsilon"
    ):
        Histograms(("lengths",), 1.0).check_within(0.5, 1e-6, "zero-out")
    Histograms(("lengths",), 20.0).check_within(0.5, 1e-6, "zero-out")


def test_the_noise_is_another_at_another_size():
    key = RunKey.from_text("the same")
    sums = {"lengths": np.zeros(len(BOUNDS), np.int64)}
    drawn = [Histograms(("lengths",), size).noised(sums, key)["lengths"] / size for size in (3.0, 6.0)]
    assert not np.allclose(*drawn)


def test_only_these_mechanisms_account_for_histograms():
    assert {name for name in mechanisms.NAMES if mechanisms.find(name).counts} == {"uls", "dp-sgd"}
    other = mechanisms.build(asked("els", histograms={}))
    with pytest.raises(AssertionError, match="nothing accounts for histograms"):
        replace(other, histograms=BOTH)
