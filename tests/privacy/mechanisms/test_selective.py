"""Selective DP, redaction alone, and confidentially redacted training: stages, accounting, claims."""

import math

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.privacy import mechanisms
from confide.privacy.accounting import (
    After,
    MixtureOfGaussians,
    Replacement,
    Untouched,
)
from confide.privacy.mechanisms.none import NonPrivate
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.utils.errors import InputError

ROWS = 500
SHAPE = Shape(np.ones(ROWS, dtype=np.int64), ROWS, 20 * ROWS, True)
DETECTOR = {"patterns": ["EMAIL_ADDRESS"], "recall": 1.0}


def config(name: str, privacy=None, redacted=None, detector=None, **train):
    raw = {
        "data": {"train": "x"},
        "detector": DETECTOR if detector is None else detector,
        "privacy": {"mechanism": name, **({"epsilon": 3.0} if name != "redacted" else {}), **(privacy or {})},
        "train": {"steps": 40, "batch": 25, **train},
    }
    return check(raw | ({"redacted": {"steps": 60, **(redacted or {})}} if name != "redacted" else {}))


def settled(config, **privacy):
    mechanism = mechanisms.build(config)
    return calibrate(
        mechanism, SHAPE, config.privacy.epsilon, config.privacy.noise_multiplier, config.privacy.delta
    )


def guarantee(config, steps=None):
    setting = settled(config)
    return state_guarantee(setting, steps or setting.mechanism.all_steps, False, config, {"state": "test"})


LIGHT = {"mode": "light-noise", "epsilon": 1.0, "missing_rate": (0.002, 0.01)}


def test_phase_1_costs_nothing_and_phase_2_is_accounted_as_replacement():
    mechanism = mechanisms.build(config("selective"))
    assert mechanism.parameters(SHAPE).process == Replacement(25 / ROWS, 40)
    assert mechanism.parameters(SHAPE, 61).process == Replacement(25 / ROWS, 1)
    assert isinstance(mechanism.parameters(SHAPE, 60).process, Untouched)
    assert mechanism.parameters(SHAPE).zeroed == MixtureOfGaussians.bernoulli(25 / ROWS, 40)


def test_the_papers_number_is_that_of_zeroing_out():
    paper = mechanisms.build(config("selective", {"adjacency": "zero-out"}))
    assert paper.parameters(SHAPE).process == MixtureOfGaussians.bernoulli(25 / ROWS, 40)
    assert any("more than twice as large" in line for line in paper.claim(SHAPE, 1.0, 1e-3, 100).not_covered)
    cut = mechanisms.build(config("selective", {"sampling": "truncated"}, max_batch=30))
    assert cut.parameters(SHAPE).process == Replacement(25 / ROWS, 40)


def test_the_target_is_met_under_replace_one_and_says_so():
    found = guarantee(config("selective"))
    assert found.notion == "selective DP"
    assert found.adjacency == "replace-one"
    assert 2.95 < found.epsilon <= 3.0
    assert found.theorem
    assert "number of noised steps 40, and 60 on redacted rows before (direct)" in found.public_facts
    at_phase_1 = guarantee(config("selective"), steps=30)
    assert (at_phase_1.epsilon, at_phase_1.advantage) == (0.0, 0.0)
    assert "number of noised steps 0, and 30 on redacted rows before (direct)" in at_phase_1.public_facts


def test_who_guesses_is_bound_by_zeroing_out_with_no_factor_of_two():
    made = config("selective", {"epsilon": None, "noise_multiplier": 0.9})
    found, paper = (
        guarantee(made),
        guarantee(config("selective", {"epsilon": None, "noise_multiplier": 0.9, "adjacency": "zero-out"})),
    )
    assert found.epsilon > 1.3 * paper.epsilon
    assert found.reconstruction == paper.reconstruction


def test_the_claim_names_the_detectors_and_holds_nothing_of_what_they_look_for():
    policy = {"level": "low-entity", "pipeline": "/home/ann/models/en_x", "words": "/home/ann/words.txt"}
    policy |= {"expressions": {"project": "apollo"}, "spans": "marks", "recall": 1.0}
    found = guarantee(config("selective", detector=policy))
    (named,) = (fact for fact in found.public_facts if "marked by" in fact)
    for part in (
        "level low-entity",
        "en_x",
        "a list of words",
        "expressions project",
        "the data's own spans",
    ):
        assert part in named
    text = " ".join(found.sentences())
    assert "apollo" not in text
    assert "/home/ann" not in text


@pytest.mark.parametrize("recall", [None, 0.99])
@pytest.mark.parametrize("name", ["selective", "redacted", "crt"])
def test_a_detector_that_may_miss_something_makes_an_estimate(name, recall):
    found = guarantee(config(name, detector=DETECTOR | {"recall": recall}))
    assert not found.theorem
    assert any("detector.recall" in reason for reason in found.estimates)


def test_redaction_alone_is_zero_zero():
    found = guarantee(config("redacted"))
    assert (found.epsilon, found.delta, found.noise_multiplier, found.clip_norm) == (0.0, 0.0, 0.0, None)
    assert found.notion == "selective DP"
    assert found.theorem
    assert all(r == pytest.approx(p) for p, r in found.reconstruction)


def test_stages_of_a_run_in_two_phases():
    mechanism = mechanisms.build(config("selective", redacted={"batch": 7, "learning_rate": 0.5}))
    first, second = mechanism.phases(SHAPE, 1.7)
    assert (first.name, first.steps, first.noise_multiplier, first.on_public, first.learning_rate) == (
        "redacted",
        60,
        0.0,
        True,
        0.5,
    )
    assert (second.name, second.steps, second.noise_multiplier, second.on_public) == ("main", 40, 1.7, False)
    assert first.mechanism.parameters(SHAPE).expected_batch == 7
    assert first.mechanism.aggregation(first.mechanism.parameters(SHAPE), 0.0).clip_norm is None
    turns = [mechanism.phase_of(step) for step in range(mechanism.all_steps)]
    assert turns == [(0, i) for i in range(60)] + [(1, i) for i in range(40)]


def test_a_sample_that_is_smaller_than_a_batch_is_taken_whole():
    first = mechanisms.build(config("selective")).phases(SHAPE, 1.0)[0]
    few = Shape(np.ones(3, dtype=np.int64), 3, 60, True)
    assert first.mechanism.parameters(few).sampling.rate == 1.0
    with pytest.raises(InputError, match="no rows"):
        first.mechanism.parameters(Shape(np.zeros(0, dtype=np.int64), 0, 0, True))


@pytest.mark.parametrize(("ordinary", "noised"), [(60, 40), (1, 9), (9, 1), (5, 5)])
def test_the_two_kinds_of_steps_of_crt_take_turns_over_the_whole_run(ordinary, noised):
    mechanism = mechanisms.build(config("crt", redacted={"steps": ordinary}, steps=noised))
    turns = [mechanism.phase_of(step) for step in range(mechanism.all_steps)]
    for place, count in ((0, ordinary), (1, noised)):
        assert [own for phase, own in turns if phase == place] == list(range(count))
    for done in range(1, len(turns) + 1):
        share = sum(phase == 0 for phase, _ in turns[:done]) / done
        assert abs(share - ordinary / (ordinary + noised)) <= 1 / done
        own = sum(phase == 1 for phase, _ in turns[:done])
        assert mechanism.parameters(SHAPE, done).process == Replacement(25 / ROWS, max(1, own))


def test_crt_is_never_called_selective():
    assert guarantee(config("crt")).notion == "confidentiality"


def test_light_noise_is_composed_with_phase_2_and_shown_at_both_ends():
    made = config("selective", redacted=LIGHT, detector=DETECTOR | {"recall": None})
    setting, found = settled(made), guarantee(made)
    first, second = setting.mechanism.phases(SHAPE, setting.noise_multiplier)
    rate = 25 / ROWS
    assert setting.parameters.process == After(
        Replacement(rate * 0.01, 60), first.noise_multiplier, Replacement(rate, 40)
    )
    assert 0 < first.noise_multiplier < second.noise_multiplier
    light = Replacement(rate * 0.01, 60).curve(first.noise_multiplier).epsilon(setting.delta)
    assert 0.98 < light <= 1.0
    low, high, row = (value for _, value in found.epsilons)
    assert low < high == pytest.approx(found.epsilon)
    assert high <= 3.0 < row
    whole = After(Replacement(rate, 60), first.noise_multiplier, Replacement(rate, 40))
    assert row == pytest.approx(whole.curve(setting.noise_multiplier).epsilon(setting.delta))
    assert "for a row in which something was missed" in " ".join(found.sentences())
    assert not found.theorem
    assert any("estimated on a sample" in reason for reason in found.estimates)
    assert guarantee(made, steps=30).epsilon < light


def test_light_noise_of_no_missed_word_at_the_lower_end_leaves_phase_2():
    made = config(
        "selective", redacted=LIGHT | {"missing_rate": (0.0, 0.01)}, detector=DETECTOR | {"recall": None}
    )
    setting, found = settled(made), guarantee(made)
    alone = Replacement(25 / ROWS, 40).curve(setting.noise_multiplier).epsilon(setting.delta)
    assert found.epsilons[0][1] == pytest.approx(alone, rel=1e-6)


def test_where_a_missed_word_is_hardly_ever_drawn_there_is_some_noise_all_the_same():
    light = LIGHT | {"missing_rate": (1e-7, 1e-6), "steps": 1}
    setting = settled(config("selective", redacted=light, detector=DETECTOR | {"recall": None}))
    assert setting.mechanism.phases(SHAPE, 1.0)[0].noise_multiplier == 0.1
    assert 2.9 < setting.curve().epsilon(setting.delta) <= 3.0


def test_the_twin_takes_the_same_turns_without_clip_or_noise():
    mechanism = mechanisms.build(config("selective"))
    twin = NonPrivate.twin(mechanism)
    assert twin.all_steps == 100
    assert [twin.phase_of(step) for step in (0, 59, 60, 99)] == [(0, 0), (0, 59), (1, 0), (1, 39)]
    for phase in twin.phases(SHAPE, 1.7):
        assert phase.noise_multiplier == 0.0
        assert phase.mechanism.aggregation(phase.mechanism.parameters(SHAPE), 0.0).clip_norm is None


def test_steps_of_both_phases_count_as_compute():
    mechanism = mechanisms.build(config("selective", redacted={"batch": 10}))
    assert mechanism.rows_computed(mechanism.parameters(SHAPE)) == 10 * 60 + 25 * 40


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "selective",
            {"detector": {"recall": 1.0}},
            "detector: mechanism selective needs to know what is sensitive",
        ),
        ("redacted", {"privacy": {"epsilon": 3.0}}, "privacy.epsilon: mechanism redacted adds no noise"),
        ("redacted", {"privacy": {"delta": 1e-5}}, "privacy.delta: mechanism redacted adds no noise"),
        (
            "selective",
            {"redacted": {"mode": "screened"}},
            "redacted.marks: mode: screened trains on what a person",
        ),
        (
            "selective",
            {"redacted": {"marks": "a"}},
            "redacted.marks: is for mode: screened, and this is direct",
        ),
        ("selective", {"redacted": {"epsilon": 1.0}}, "redacted.epsilon: is for mode: light-noise"),
        (
            "selective",
            {"redacted": {"mode": "light-noise"}},
            "redacted.missing_rate: mode: light-noise needs it",
        ),
        ("selective", {"redacted": LIGHT}, "detector.recall: 1.0 claims that nothing is missed"),
        (
            "selective",
            {"redacted": LIGHT | {"epsilon": 3.0}, "detector": {"patterns": "all"}},
            "must be below privacy",
        ),
        ("selective", {"redacted": LIGHT | {"missing_rate": (0.0, 0.0)}}, "high must be above 0"),
        ("selective", {"redacted": LIGHT | {"missing_rate": (0.02, 0.01)}}, "0.02 is above 0.01"),
        ("crt", {"redacted": {"mode": "screened"}}, "redacted.mode: screened is for mechanism selective"),
        ("selective", {"privacy": {"selection": "random"}}, "privacy.selection: selective uses every row"),
        (
            "crt",
            {"privacy": {"adjacency": "add-or-remove"}},
            "privacy.adjacency: crt compares texts of one row",
        ),
        ("dp-sgd", {}, "detector: is for mechanism selective, redacted, crt, and this is dp-sgd"),
    ],
)
def test_impossible_settings_are_named(name, changes, message):
    with pytest.raises(InputError) as caught:
        config(name, **changes)
    assert message in str(caught.value)


def test_more_noise_is_asked_of_phase_2_where_phase_1_spends_too():
    direct = settled(config("selective")).noise_multiplier
    light = settled(
        config("selective", redacted=LIGHT, detector=DETECTOR | {"recall": None})
    ).noise_multiplier
    assert direct < light < 2 * direct
    assert math.isfinite(light)
