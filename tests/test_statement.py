"""From a mechanism and data to every line of a claim."""

import math

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.privacy import mechanisms
from confide.privacy.accounting import GroupOf, MixtureOfGaussians, Replacement
from confide.privacy.guarantee import NOT_COVERED, PRIORS, Guarantee
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.randomness.streams import RunKey

COUNTS = np.array([1, 2, 3, 8, 5, 1, 9, 4, 4, 2])
SHAPE = Shape(COUNTS, int(COUNTS.sum()), 400, True)
M, N, STEPS, NOISE, DELTA = int(COUNTS.sum()), len(COUNTS), 6, 1.2, 1e-4
CAPPED = int(np.minimum(COUNTS, 3).sum())
PROVENANCE = {"code": "confide test"}
LITERAL = {"sampling_rate": 0.4, "divisor": 4.0, "delta": DELTA, "adjacency": "add-or-remove"}


def config(mechanism="uls", task="causal-lm", **changes):
    privacy = {"mechanism": mechanism, "delta": DELTA}
    if mechanism != "none":
        privacy["noise_multiplier"] = NOISE
    if mechanism in ("uls", "els", "group"):
        privacy["rows_per_unit"] = 3
    train = {"batch": 4.0, "steps": STEPS}
    for key, value in changes.items():
        (train if key in ("max_batch", "sampling_rate", "divisor", "batch") else privacy)[key] = value
    data = {"train": "x", "unit": "user", "max_length": 64} | (
        {"label": "l"} if task == "classification" else {}
    )
    return check({"task": task, "data": data, "privacy": privacy, "train": train})


def stated(mechanism="uls", steps=STEPS, published=False, **changes):
    settings = config(mechanism, **changes)
    setting = calibrate(mechanisms.build(settings), SHAPE, None, settings.privacy.noise_multiplier, DELTA)
    return state_guarantee(setting, steps, published, settings, PROVENANCE)


CASES = {
    "uls": (
        MixtureOfGaussians.bernoulli(4 / N, STEPS),
        "user-level DP",
        "all text of one user",
        None,
        4 / N,
        "all its rows; a step that draws it uses at most 3 (random-chunk)",
    ),
    "els": (
        MixtureOfGaussians.binomial(3, 4 / CAPPED, STEPS),
        "user-level DP",
        "all rows of one user",
        3,
        4 / CAPPED,
        "at most 3 rows in all, chosen once (random); each may enter any step",
    ),
    "group": (
        GroupOf(MixtureOfGaussians.bernoulli(4 / CAPPED, STEPS), 3),
        "user-level DP",
        "all rows of one user",
        3,
        4 / CAPPED,
        "at most 3 rows in all, chosen once (random); each may enter any step",
    ),
    "dp-sgd": (
        MixtureOfGaussians.bernoulli(4 / M, STEPS),
        "(epsilon, delta)-DP",
        "one row: at most 64 tokens of one document (a longer document is several units)",
        1,
        4 / M,
        "1 row",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_line_of_every_mechanism(name):
    process, notion, unit, rows, rate, contribution = CASES[name]
    found, curve = stated(name), process.curve(NOISE)
    assert found.theorem
    assert (found.notion, found.unit, found.rows_per_unit, found.contribution) == (
        notion,
        unit,
        rows,
        contribution,
    )
    assert found.adjacency == "zero-out"
    assert (found.epsilon, found.delta) == (pytest.approx(curve.epsilon(DELTA)), DELTA)
    assert found.curve == pytest.approx(np.array(curve.points()))
    assert dict(found.reconstruction) == pytest.approx({p: float(curve.reconstruction(p)) for p in PRIORS})
    assert found.advantage == pytest.approx(float(curve.advantage()))
    assert found.true_positive_rate == pytest.approx(float(curve.true_positive_rate(0.01)))
    assert (found.noise_multiplier, found.clip_norm, found.steps) == (NOISE, 1.0, STEPS)
    assert (found.sampling, found.sampling_used) == ("poisson", "poisson")
    assert found.expected_batch == pytest.approx(4.0)
    assert found.sampling_probability == pytest.approx((rate, rate))
    assert "dp_accounting" in found.accountant
    assert 0 < found.discretisation <= 1e-3
    assert "64 tokens" in found.rows_cut
    assert set(NOT_COVERED) < set(found.not_covered)
    assert any("twin" in line for line in found.not_covered)
    assert "AES-256" in found.randomness
    assert "secret run key" in found.randomness
    assert found.provenance == PROVENANCE
    assert found.evidence == ("no audit was made yet",)
    assert any("divisor 4 " in fact for fact in found.public_facts)
    assert any("number of steps 6" in fact for fact in found.public_facts)
    assert Guarantee.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("task", "words"), [("causal-lm", "cut into rows"), ("classification", "is one row, cut off")]
)
def test_how_rows_were_cut_follows_the_task(task, words):
    assert words in stated("dp-sgd", task=task).rows_cut


def test_none_protects_nobody_and_says_so():
    for found in (stated("none"), stated("uls", noise_multiplier=0.0)):
        assert found.notion == "none"
        assert found.epsilon == math.inf
        assert found.adjacency == "not applicable"
        assert (found.advantage, found.true_positive_rate, found.curve) == (1.0, 1.0, ())
        assert all(r == 1.0 for _, r in found.reconstruction)
        assert "Nothing is protected" in found.sentences()[0]
    assert stated("none").clip_norm is None


def test_a_twin_of_a_private_run_protects_nobody():
    settings = config("uls")
    setting = calibrate(NonPrivate.twin(mechanisms.build(settings)), SHAPE, delta=DELTA)
    found = state_guarantee(setting, STEPS, False, settings, PROVENANCE)
    assert (found.notion, found.clip_norm, found.noise_multiplier) == ("none", None, 0.0)


@pytest.mark.parametrize("name", CASES)
def test_shuffled_batches_are_an_estimate_in_these_words(name):
    found, honest = stated(name, sampling="shuffle"), stated(name)
    assert not found.theorem
    assert found.estimates == ("batches were shuffled, accounting assumes Poisson",)
    assert "an estimate" in found.sentences()[0]
    assert (found.sampling, found.sampling_used) == ("poisson", "shuffle")
    assert found.epsilon == honest.epsilon


@pytest.mark.parametrize("name", ["uls", "els", "group", "dp-sgd"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_truncated_draws_cost_what_plain_ones_do(name, adjacency):
    found = stated(name, sampling="truncated", max_batch=6, adjacency=adjacency)
    assert not found.estimates
    assert found.epsilon == stated(name, adjacency=adjacency).epsilon
    assert found.sampling == found.sampling_used == "truncated"
    assert "train.max_batch 6: draws above the cap are made anew" in found.public_facts
    assert "4, before draws above the cap are made anew" in found.model_card_section()


@pytest.mark.parametrize("name", ["uls", "dp-sgd"])
def test_replace_one_costs_no_more_than_two_zero_outs(name):
    found = stated(name, adjacency="replace-one")
    rate = 4 / (N if name == "uls" else M)
    twice = GroupOf(MixtureOfGaussians.bernoulli(rate, STEPS), 2).curve(NOISE).epsilon(DELTA)
    assert found.adjacency == "replace-one"
    assert found.epsilon == pytest.approx(Replacement(rate, STEPS).curve(NOISE).epsilon(DELTA))
    assert 1.2 * stated(name).epsilon < found.epsilon < twice
    assert found.reconstruction == stated(name).reconstruction
    assert "replace-one" in " ".join(found.sentences())


def test_add_or_remove_with_literal_constants():
    found = stated(**LITERAL)
    assert found.adjacency == "add-or-remove"
    assert found.sampling_probability == (0.4, 0.4)
    assert found.theorem


@pytest.mark.parametrize("noise", ["secure", "fast"])
def test_a_published_key_and_fast_noise_are_both_said(noise):
    secret, published = stated(noise=noise), stated(noise=noise, published=True, published_key="open")
    open_key = "the run key is published: no guarantee against who knows it"
    assert secret.theorem == (noise == "secure")
    assert not published.theorem
    assert published.estimates == (open_key, *secret.estimates)
    assert all("noise: fast" in reason for reason in secret.estimates)
    assert published.epsilon == secret.epsilon
    assert "published key" in published.randomness
    assert "secret" not in published.randomness
    for found in (secret, published):
        assert ("noise: fast" in found.randomness) == (noise == "fast")


@pytest.mark.parametrize("name", CASES)
def test_fewer_steps_than_planned_cost_less(name):
    epsilons = [stated(name, steps=steps).epsilon for steps in (1, 3, STEPS)]
    assert epsilons[0] < epsilons[1] < epsilons[2]
    assert stated(name, steps=3).steps == 3
    assert any("number of steps 3" in fact for fact in stated(name, steps=3).public_facts)


def test_before_the_first_step_the_bound_of_one_is_stated():
    assert stated(steps=0) == stated(steps=1)


def test_settle_meets_the_target_with_the_least_noise():
    mechanism = mechanisms.build(config("els"))
    setting = calibrate(mechanism, SHAPE, 3.0, None, DELTA)
    assert 2.98 < setting.curve().epsilon(DELTA) <= 3.0
    assert setting.curve(steps=2).epsilon(DELTA) < setting.curve().epsilon(DELTA)
    assert setting.noise_per_gradient() == setting.noise_multiplier / 4.0


def test_the_default_delta_follows_from_the_data():
    assert calibrate(mechanisms.build(config("els")), SHAPE, None, NOISE).delta == pytest.approx(
        min(CAPPED**-1.1, 1 / N)
    )


def test_published_streams_are_known_by_the_key():
    assert RunKey.from_text("x").published
    assert not RunKey(bytes(32)).published


def test_the_claim_says_what_became_of_documents_without_a_unit():
    def stated(mechanism, without_unit):
        raw = config(mechanism).model_dump(exclude_unset=True)
        raw["data"]["without_unit"] = without_unit
        settings = check(raw)
        setting = calibrate(mechanisms.build(settings), SHAPE, None, NOISE, DELTA)
        return state_guarantee(setting, STEPS, False, settings, PROVENANCE)

    refused, dropped, own = (stated("uls", each) for each in ("refuse", "drop", "own"))
    assert dropped.rows_cut == f"documents that name no unit are left out; {refused.rows_cut}"
    assert dropped.not_covered == refused.not_covered
    (added,) = set(own.not_covered) - set(refused.not_covered)
    assert added.startswith("whoever wrote several documents that name no unit, as a whole")
    # Where each row is protected by itself, nobody was promised more.
    assert stated("dp-sgd", "own").not_covered == stated("dp-sgd", "refuse").not_covered
