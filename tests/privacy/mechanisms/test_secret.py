"""Secret protection: weights, rates, noise, draws and the claim, each checked by arithmetic of its own.

What a run makes of it, ledger and keys, is in `test_secrecy.py`.
"""

import math
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom

from confide.config.loading import check
from confide.data.shape import Shape
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy import mechanisms
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms import secret, weighted
from confide.privacy.mechanisms.secret import SWEEP
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.randomness.seal import Seal
from confide.randomness.streams import RunKey
from confide.utils.errors import InputError

STEPS, BATCH, ROWS = 10, 6.0, 60
UNITS = [[0, 1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8], [9], [9, 10, 11], list(range(12, 30)), [2, 9, 30, 31]]


def config(privacy: dict | None = None, train: dict | None = None, **secrets):
    stated = {"patterns": {"who": "x"}, "prior": 1e-4, "posterior": 0.02} | secrets
    return check(
        {
            "data": {"train": "x", "unit": None, "eval": None},
            "privacy": {"mechanism": "secret"} | (privacy or {}),
            "secrets": {key: value for key, value in stated.items() if value is not None},
            "train": {"steps": STEPS, "batch": BATCH} | (train or {}),
        }
    )


def build(*arguments, **secrets):
    return mechanisms.build(config(*arguments, **secrets))


def shape(units: list[list[int]] = UNITS, rows: int = ROWS, folder: Path | None = None) -> Shape:
    counts = np.array([len(unit) for unit in units])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    flat = np.array([row for unit in units for row in unit])
    names = [f"who:{number}" for number in range(len(units))]
    return Shape(counts, rows, 10 * rows, False, offsets, flat, lambda: names, folder)


def graph(folder: Path, units: list[list[int]] = UNITS, rows: int = ROWS) -> UnitGraph:
    """Row i is two tokens that say i."""
    with GraphWriter(folder, vocabulary=ROWS, unowned=True) as writer:
        for row in range(rows):
            writer.add([row, row], [f"who:{n}" for n, unit in enumerate(units) if row in unit])
    return UnitGraph.open(folder)


def values(folder: Path, *lines: str) -> str:
    path = folder / "values.csv"
    path.write_text("\n".join(["id,prior,posterior", *lines]) + "\n")
    return str(path)


def process(rates: np.ndarray) -> MixtureOfGaussians:
    return MixtureOfGaussians.poisson_binomial(rates[rates > 0].tolist(), STEPS)


# the program --------------------------------------------------------------------------------------------------
def gaussian(p: float, r: float) -> float:
    return NormalDist().inv_cdf(r) - NormalDist().inv_cdf(p)


def kl(p: float, r: float) -> float:
    return r * math.log(r / p) + (1 - r) * math.log((1 - r) / (1 - p))


NEEDS = {"gaussian": gaussian, "kl": kl, "sqrt-kl": lambda p, r: math.sqrt(kl(p, r))}


@pytest.mark.parametrize(
    ("accountant", "target", "kind"),
    [
        ("blow-up", None, "gaussian"),
        ("kl", None, "sqrt-kl"),
        ("blow-up", "kl", "kl"),
        ("kl", "gaussian", "gaussian"),
    ],
)
@pytest.mark.parametrize("c", [1.0, 0.5, 0.05, 2.0**-10])
def test_no_secret_has_more_than_its_share_of_the_rows(tmp_path, accountant, target, kind, c):
    pairs = {
        0: (1e-6, 1e-3),
        1: (1e-4, 0.02),
        2: (1e-4, 0.3),
        3: (0.01, 0.02),
        4: (1e-4, 0.02),
        5: (0.1, 0.9),
    }
    file = values(tmp_path, *(f"who:{n},{p},{r}" for n, (p, r) in pairs.items()))
    made = build({"accountant": accountant}, values=file, program={"c": c, "target": target})
    data = shape()
    weights, rates = made.weights(data), made.rates(data)
    needs = {n: NEEDS[kind](*pair) for n, pair in pairs.items()}
    largest = max(len(unit) / needs[n] for n, unit in enumerate(UNITS))
    for n, unit in enumerate(UNITS):
        assert weights[unit].sum() <= c * largest * needs[n] * (1 + 1e-9)
    assert weights.min() >= 0
    assert weights.max() == 1
    assert (weights[32:] == 1).all()  # rows that hold no secret
    assert rates.max() <= 1
    assert rates.sum() == pytest.approx(BATCH)
    assert rates == pytest.approx(BATCH * weights / weights.sum())
    assert c < 1 or (weights == 1).all()
    if 2.0**-10 <= c < 1:  # the tightest limit binds: what is left is not simply thrown away
        assert any(
            weights[unit].sum() == pytest.approx(c * largest * needs[n], rel=1e-3)
            for n, unit in enumerate(UNITS)
        )


@pytest.mark.parametrize("c", [0.9, 0.3, 0.05])
def test_greedy_keeps_whole_rows_within_the_same_limits(tmp_path, c):
    file = values(tmp_path, *(f"who:{n},1e-6,{r}" for n, r in enumerate([1e-3, 0.02, 0.3, 0.5, 1e-4, 0.9])))
    data = shape()
    weights = build(values=file, program={"c": c, "solver": "greedy"}).weights(data)
    program = build(values=file, program={"c": c}).weights(data)
    needs = [NEEDS["gaussian"](1e-6, r) for r in (1e-3, 0.02, 0.3, 0.5, 1e-4, 0.9)]
    largest = max(len(unit) / need for unit, need in zip(UNITS, needs, strict=True))
    assert set(weights) == {0.0, 1.0}
    assert weights.sum() <= program.sum() * (1 + 1e-3)  # it is one of the program's choices
    room = [
        math.floor(c * largest * need) - weights[unit].sum() for unit, need in zip(UNITS, needs, strict=True)
    ]
    assert min(room) >= 0
    for row in np.flatnonzero(weights == 0):  # none could be added
        assert min(room[n] for n, unit in enumerate(UNITS) if row in unit) == 0


def test_renyi_asks_for_noise_in_between_and_says_how(monkeypatch):
    monkeypatch.setattr(secret, "SWEEP", (1.0,))
    noise = {}
    for accountant in ("blow-up", "renyi", "kl"):
        made = build({"accountant": accountant})
        setting = calibrate(made, shape(), None, None, None)
        noise[accountant] = setting.noise_multiplier
        claimed = state_guarantee(
            setting, STEPS, False, config({"accountant": accountant}), {"date": "today"}
        )
        assert ("Renyi" in claimed.accountant) == (accountant == "renyi")
        plan = next(made.alternatives(shape()))
        assert plan.facts["noise"][accountant] == noise[accountant] == plan.noise_multiplier
    assert noise["blow-up"] < noise["renyi"] < noise["kl"]


@pytest.mark.parametrize(
    ("accountant", "sweep"), [("blow-up", (1.0, 2.0**-6)), ("kl", SWEEP)], ids=["blow-up", "kl"]
)
def test_a_smaller_c_never_needs_more_noise(monkeypatch, accountant, sweep):
    monkeypatch.setattr(secret, "SWEEP", sweep)
    made = build({"accountant": accountant})
    found = [choice for choice in made.sweep(shape(), (accountant,)) if choice.impossible is None]
    noises = [choice.noise[accountant] for choice in found]
    assert [choice.c for choice in found] == list(sweep)
    for larger, smaller in pairwise(noises):
        assert smaller <= larger * 1.001
    assert noises[-1] < 0.9 * noises[0]
    assert all(choice.rate <= 1 for choice in found)


def test_least_noise_keeps_as_many_rows_as_asked():
    data = shape()
    kl = {"accountant": "kl"}
    for keep, c in ((0.3, SWEEP[-1]), (0.6, None), (1.0, 1.0)):
        made = build(kl, program={"c": "least-noise", "keep": keep})
        choice, weights = made.least_noise_choice(data), made.weights(data)
        assert c in (None, choice.c)
        assert weights.sum() ** 2 / (weights @ weights) >= keep * ROWS
        assert (weights == build(kl, program={"c": choice.c}).weights(data)).all()
        if choice.c > SWEEP[-1]:
            other = build(kl, program={"c": choice.c / 2}).weights(data)
            assert other.sum() ** 2 / (other @ other) < keep * ROWS
    everywhere = shape([list(range(ROWS))])
    with pytest.raises(InputError, match=r"^secrets\.program\.keep: "):
        build(train={"batch": 61.0}, program={"c": "least-noise"}).weights(everywhere)


@pytest.mark.parametrize(("batch", "c"), [(61.0, 1.0), (40.0, 0.01)])
def test_a_batch_that_the_weights_do_not_allow_names_both_keys(batch, c):
    made, data = build(train={"batch": batch}, program={"c": c}), shape()
    with pytest.raises(InputError, match=r"^train\.batch: .*secrets\.program\.c") as refused:
        made.parameters(data)
    most = float(str(refused.value).split("at most ")[1].split(",")[0])
    assert most < batch
    rates = build(train={"batch": most}, program={"c": c}).rates(data)
    assert rates.max() <= 1
    assert rates.sum() == pytest.approx(most)


# the noise ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("c", [1.0, 0.3])
def test_every_secret_is_protected_as_asked_and_one_only_just(tmp_path, c):
    pairs = {0: (1e-4, 0.02), 1: (1e-6, 1e-3), 2: (1e-3, 0.01), 3: (0.01, 0.2), 4: (1e-4, 0.2), 5: (0.1, 0.5)}
    file = values(tmp_path, *(f"who:{n},{p},{r}" for n, (p, r) in pairs.items()))
    made, data = build(values=file, program={"c": c}), shape()
    s, rates = calibrate(made, data).noise_multiplier, made.rates(data)
    curves = {n: [process(rates[unit]).curve(x) for x in (s, 0.98 * s)] for n, unit in enumerate(UNITS)}
    reached = {n: float(curves[n][0].reconstruction(p)) for n, (p, _) in pairs.items()}
    assert all(reached[n] <= r for n, (_, r) in pairs.items())
    assert any(float(curves[n][1].reconstruction(p)) > r for n, (p, r) in pairs.items())


def test_all_pairs_of_a_secret_are_enforced():
    data, noises = shape(), {}
    for p, r in ((1e-8, 1e-3), (1e-3, 0.02), (0.1, 0.5)):
        noises[p] = calibrate(build(prior=p, posterior=r), data).noise_multiplier
    assert noises[1e-3] > 1.05 * max(noises[1e-8], noises[0.1])
    several = build(prior=[1e-8, 1e-3, 0.1], posterior=[1e-3, 0.02, 0.5])
    setting = calibrate(several, data)
    assert setting.noise_multiplier == pytest.approx(noises[1e-3], rel=2e-3)
    assert setting.claim().secret_targets == ((1e-8, 1e-3), (1e-3, 0.02), (0.1, 0.5))
    # of a program, the strictest pair of a secret decides its share
    tight = build(prior=1e-3, posterior=0.02, program={"c": 0.2}).weights(data)
    assert build(prior=[1e-3, 0.1], posterior=[0.02, 0.9], program={"c": 0.2}).weights(data) == pytest.approx(
        tight
    )


def test_accounting_by_kl_needs_more_noise():
    data = shape()
    tight = calibrate(build(), data)
    loose = calibrate(build({"accountant": "kl"}), data)
    assert loose.noise_multiplier > 1.5 * tight.noise_multiplier
    assert loose.curve().reconstruction(1e-4) < tight.curve().reconstruction(1e-4)


def test_values_of_ids_classes_and_a_csv_of_words(tmp_path):
    words = tmp_path / "words.csv"
    words.write_text("word,prior,posterior\nalpha,0.001,0.5\nbeta,,\ngamma,0.01,0.6\n")
    names = ["words:2", "words:3", "words:4", "who:1", "who:2"]
    data = shape([[0, 1], [2], [3], [4], [5]])
    data = Shape(data.rows_per_unit, ROWS, 1, False, data.offsets, data.rows_of_units, lambda: names)
    file = values(tmp_path, "who,0.2,0.7", "who:2,0.3,0.8", "words:4,0.4,0.9")
    targets = build(words=str(words), values=file).targets(data)
    stated = [
        (names[u], p, r) for u, p, r in zip(targets.unit, targets.prior, targets.posterior, strict=True)
    ]
    assert stated == [
        ("words:2", 0.001, 0.5),
        ("words:3", 1e-4, 0.02),
        ("words:4", 0.4, 0.9),
        ("who:1", 0.2, 0.7),
        ("who:2", 0.3, 0.8),
    ]


# the draws ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("c", [1.0, 0.2])
def test_each_row_is_drawn_as_often_as_was_accounted_for(tmp_path, c):
    data, draws = graph(tmp_path / "g"), 3000
    made = build(program={"c": c})
    sampler = made.sampler(data, RunKey.from_text("draws"), "main", lambda: np.zeros(ROWS))
    hits, sizes = np.zeros(ROWS), []
    for step in range(draws):
        draw = sampler.draw(step)
        rows = [int(row[0]) for row in draw.rows]
        assert len(set(rows)) == len(rows)
        assert list(draw.group) == list(range(len(rows)))  # each is clipped by itself
        assert (draw.weight == 1).all()
        hits[rows] += 1
        sizes.append(len(rows))
    rates = calibrate(made, data.shape()).parameters.sampling.rates
    expected = made.rates(data.shape())
    assert sorted(rates) == pytest.approx(sorted(expected[expected > 0]))
    tails = np.minimum(binom.cdf(hits, draws, expected), binom.sf(hits - 1, draws, expected))
    assert tails.min() > 1e-6 / ROWS
    assert np.mean(sizes) == pytest.approx(BATCH, abs=0.2)
    variance = float((expected * (1 - expected)).sum())  # as of independent draws
    assert np.var(sizes) == pytest.approx(variance, rel=0.12)


def test_draws_follow_the_rates_that_were_accounted_for_whatever_becomes_of_a_file(tmp_path):
    # The noise takes minutes for many secrets: a file that is edited meanwhile must not move the draws alone.
    file = values(tmp_path, "who,1e-4,0.02", "who:4,1e-4,0.0002")
    data, made = graph(tmp_path / "g"), build(values=file, program={"c": 0.3})
    accounted = calibrate(made, data.shape()).parameters.sampling.rates
    values(tmp_path, "who,1e-4,0.02", "who:4,1e-4,0.9")
    try:
        drawn = made.sampler(data, RunKey.from_text("x"), "main", lambda: np.zeros(ROWS)).sampling.rates
    except (InputError, AssertionError):
        return  # refused, which is sound
    assert sorted(drawn) == pytest.approx(sorted(accounted))


# the weights on disk ------------------------------------------------------------------------------------------
def test_weights_are_solved_once_and_kept_beside_the_graph(tmp_path, monkeypatch):
    solve, calls = weighted.solve, []
    monkeypatch.setattr(weighted, "solve", lambda *a, **k: calls.append(a) or solve(*a, **k))
    data, made = graph(tmp_path / "g"), build(program={"c": 0.2})
    digests = []
    data.digest(digests.append)
    first = made.weights(data.shape())
    assert len(calls) == 1
    again = build(program={"c": 0.2}).weights(UnitGraph.open(tmp_path / "g").shape())
    assert len(calls) == 1
    assert (again == first).all()
    other = build(posterior=0.05, program={"c": 0.1}).weights(data.shape())
    assert len(calls) == 2
    assert (other != first).any()
    after = []
    data.digest(after.append)
    assert after == digests  # what is kept there is no part of the data that keys are bound to
    assert len(list((tmp_path / "g").glob("weights-*.npy"))) == 2


@pytest.mark.parametrize("fault", ["cut off", "one bit", "of another graph"])
def test_damaged_weights_are_refused_by_name(tmp_path, fault):
    data, made = graph(tmp_path / "g"), build(program={"c": 0.2})
    made.weights(data.shape())
    path = next((tmp_path / "g").glob("weights-*.npy"))
    content = path.read_bytes()
    if fault == "cut off":
        path.write_bytes(content[:-9])
    elif fault == "one bit":  # of a weight's last digit: no limit notices
        path.write_bytes(content[:136] + bytes([content[136] ^ 1]) + content[137:])
    else:
        Seal.against_damage().write_array(path, "weights", np.ones(ROWS + 3))
    with pytest.raises(InputError, match="weights-"):
        made.parameters(data.shape())


# the claim ----------------------------------------------------------------------------------------------------
def stated(settings, steps: int = STEPS, published: bool = False, data: Shape | None = None):
    setting = calibrate(mechanisms.build(settings), data or shape())
    return state_guarantee(setting, steps, published, settings, {"date": "today"}), setting


def test_the_guarantee_states_what_was_asked_and_who_comes_closest(tmp_path):
    file = values(tmp_path, "who:0,1e-3,0.02", "who:4,1e-6,1e-3")
    settings = config(values=file, recall=1.0, program={"c": 0.5})
    found, setting = stated(settings)
    assert found.theorem
    assert found.notion == "(p, r)-secret protection"
    assert found.adjacency == "zero-out"
    assert set(found.secret_targets) == {(1e-4, 0.02), (1e-3, 0.02), (1e-6, 1e-3)}
    assert {name for name, *_ in found.closest_secrets} == {f"who:{n}" for n in range(len(UNITS))}
    rates = setting.mechanism.rates(setting.shape)
    for name, p, r, most in found.closest_secrets:
        unit = UNITS[int(name.removeprefix("who:"))]
        curve = process(rates[unit]).curve(found.noise_multiplier)
        assert p < float(curve.reconstruction(p)) <= most * 1.0001
        assert most <= r
        assert found.epsilon >= curve.epsilon(found.delta) * 0.999
        assert all(bound >= float(curve.reconstruction(q)) * 0.999 for q, bound in found.reconstruction)
    odds = [math.log(r / (1 - r)) - math.log(m / (1 - m)) for _, _, r, m in found.closest_secrets]
    assert odds == sorted(odds)
    assert odds[0] < 0.02
    assert found.rows_per_unit == max(map(len, UNITS))
    assert any("a secret exists" in line for line in found.not_covered)


def test_of_many_secrets_the_claim_lists_the_ten_closest_and_the_ends_of_what_was_asked(tmp_path):
    units = [[2 * n, 2 * n + 1] for n in range(29)]
    file = values(tmp_path, *(f"who:{n},{1e-4 if n % 2 else 1e-3},{0.01 + n / 1000}" for n in range(29)))
    found, _ = stated(config(values=file, recall=1.0), data=shape(units))
    assert len(found.closest_secrets) == 10
    assert found.closest_secrets[0][0] == "who:0"  # prior 1e-3 to 0.01
    assert sorted(found.secret_targets) == [(1e-4, 0.011), (1e-4, 0.037), (1e-3, 0.01), (1e-3, 0.038)]


@pytest.mark.parametrize(
    ("recall", "published", "theorem"),
    [(1.0, False, True), (0.99, False, False), (None, False, False), (1.0, True, False)],
)
def test_only_a_claim_of_full_recall_makes_a_theorem(recall, published, theorem):
    found, _ = stated(config(recall=recall), published=published)
    assert found.theorem is theorem
    assert theorem or found.sentences()[0].startswith("The figures below are an estimate")


def test_fewer_steps_give_away_less():
    settings = config(recall=1.0)
    few, all_ = (stated(settings, steps)[0] for steps in (1, STEPS))
    assert few.epsilon < all_.epsilon
    for (_, p, r, less), (_, _, _, more) in zip(few.closest_secrets, all_.closest_secrets, strict=True):
        assert p <= less <= more <= r


def test_a_secret_of_which_no_row_is_drawn_stays_at_its_prior():
    # The rows of who:0 all belong to who:1 as well, which has so many rows that its weights are nearly 0.
    made, data = build(program={"c": 0.5}), shape([[0, 1, 2, 3], [40, 41]])
    weights = np.ones(ROWS)
    weights[[40, 41]] = 0
    object.__setattr__(made, "weights", lambda data: weights)
    closest = calibrate(made, data).claim().weakest_secrets
    assert next(most for name, _, _, most in closest if name == "who:1") == 1e-4


@pytest.mark.parametrize(
    ("secrets", "name", "shown"),
    [
        ({"words": "w.txt"}, "words:17", True),
        ({"patterns": {"account": "x"}}, "account:3", True),
        ({"detector": {"patterns": "all"}}, "IBAN_CODE:2", True),
        ({"repository": {"packages": ["acme.pay"]}}, "packages:acme.pay", True),
        ({"column": "who"}, "who:Jane Roe", False),
        ({"column": "who"}, "who:17", False),
        ({"column": "who"}, "who:Jane Roe:17", False),
        ({"rows": "rows.csv"}, "rows", True),
        ({"rows": "rows.csv"}, "Jane Roe", False),
        ({"rows": "rows.csv"}, "Jane Roe:17", False),
        ({"rows": "rows.csv"}, "Jane Roe:of the board", False),
        ({"rows": "rows.csv"}, "paths:Jane Roe", False),
        ({"words": "words.csv"}, "Jane Roe:17", False),
        ({"repository": {"authors": "all"}}, "authors:Jane@Roe.com", False),
    ],
)
def test_a_claim_shows_no_words_of_the_data(secrets, name, shown):
    found = secret.published(name, 41, config(**{"patterns": None} | secrets).secrets)
    assert (found == name) == shown
    assert shown or ("Jane" not in found and "Roe" not in found and "42" in found)
