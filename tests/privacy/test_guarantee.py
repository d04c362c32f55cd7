import dataclasses
import json
import math

import pytest

from confide.privacy.guarantee import NOT_COVERED, PRIORS, Guarantee
from confide.utils.errors import CheckFailed, InputError

STABLE = [
    "notion",
    "theorem",
    "unit",
    "adjacency",
    "epsilon",
    "delta",
    "noise_multiplier",
    "clip_norm",
    "steps",
]
STABLE += ["sampling", "rows_per_unit", "accountant", "not_covered"]


def fields(**changes):
    """A claim as user-level training makes it."""
    values = {
        "notion": "user-level DP",
        "unit": "all mail sent by one person",
        "rows_per_unit": 4,
        "contribution": "at most 4 of its rows to a step, any of its rows over the run",
        "rows_cut": "one mail a row, cut at 128 tokens, no packing across units",
        "adjacency": "zero-out",
        "public_facts": ("the number of users (1000)", "how many rows each user has"),
        "epsilon": 2.0,
        "delta": 1e-5,
        "curve": ((0.5, 1e-2), (2.0, 1e-5), (2.6, 1e-7)),
        "reconstruction": ((1e-6, 6.3e-6), (1e-4, 5.5e-4), (1e-3, 4.7e-3)),
        "advantage": 0.3121,
        "true_positive_rate": 0.03214,
        "noise_multiplier": 1.25,
        "clip_norm": 1.0,
        "steps": 500,
        "sampling": "poisson",
        "sampling_used": "poisson",
        "expected_batch": 64.0,
        "sampling_probability": (0.064, 0.064),
        "accountant": "dp_accounting privacy loss distribution",
        "accountant_version": "0.6.0",
        "discretisation": 1e-4,
        "protected_output": "the final adapter, released once",
        "not_covered": NOT_COVERED,
        "trust": "the operator sees the raw rows; anyone may see the output",
        "randomness": "AES-CTR under a secret run key; Gaussian noise in float32",
        "provenance": {"code": "confide 0.1.0", "date": "2026-01-01", "config": "9f3a"},
        "evidence": ("no audit has been made",),
    }
    return values | changes


def none_fields(**changes):
    values = {
        "notion": "none",
        "adjacency": "not applicable",
        "epsilon": math.inf,
        "delta": 1.0,
        "curve": (),
        "reconstruction": tuple((p, 1.0) for p in PRIORS),
        "advantage": 1.0,
        "true_positive_rate": 1.0,
        "noise_multiplier": 0.0,
        "clip_norm": None,
    }
    return fields(**(values | changes))


def test_a_full_claim_is_a_theorem_and_survives_json():
    guarantee = Guarantee(**fields())
    assert guarantee.theorem
    text = json.dumps(guarantee.to_json(), allow_nan=False)
    data = json.loads(text)
    assert all(key in data for key in STABLE)
    assert data["theorem"] is True
    assert Guarantee.from_json(data) == guarantee


def test_infinity_is_a_string_in_json():
    guarantee = Guarantee(**none_fields())
    data = json.loads(json.dumps(guarantee.to_json(), allow_nan=False))
    assert data["epsilon"] == "inf"
    assert Guarantee.from_json(data) == guarantee


REQUIRED = [f.name for f in dataclasses.fields(Guarantee) if f.default is dataclasses.MISSING]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_line_is_an_error(name):
    values = fields()
    del values[name]
    with pytest.raises(TypeError, match=name):
        Guarantee(**values)
    data = Guarantee(**fields()).to_json()
    del data[name]
    with pytest.raises(InputError, match=name):
        Guarantee.from_json(data)
    if name not in ("rows_per_unit", "clip_norm"):
        with pytest.raises((InputError, TypeError)):
            Guarantee(**fields(**{name: None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": ""},
        {"trust": "  "},
        {"public_facts": ()},
        {"not_covered": ("", "metrics")},
        {"not_covered": ("the base model's pretraining",)},
        {"evidence": ()},
        {"provenance": {}},
        {"provenance": {"code": ""}},
        {"curve": ()},
        {"notion": "example-level"},
        {"adjacency": "not applicable"},
        {"adjacency": "swap"},
        {"epsilon": math.nan},
        {"epsilon": -1.0},
        {"epsilon": math.inf},
        {"delta": 1.5},
        {"reconstruction": ((1e-6, 1e-5),)},
        {"reconstruction": ((1e-6, 1e-5), (1e-4, 1e-3), (1e-3, 1.2))},
        {"advantage": 1.2},
        {"true_positive_rate": math.nan},
        {"noise_multiplier": math.inf},
        {"clip_norm": 0.0},
        {"steps": -1},
        {"rows_per_unit": 0},
        {"sampling_probability": (0.2, 1.1)},
        {"sampling_probability": (0.2, 0.1)},
        {"secret_targets": ((1e-6, 1e-3),)},
        {"notion": "(p, r)-secret protection"},
    ],
)
def test_an_impossible_line_is_an_error_that_names_it(changes):
    with pytest.raises(
        InputError, match=next(iter(changes)) if "notion" not in changes else "notion|secret_targets"
    ):
        Guarantee(**fields(**changes))


def test_other_sampling_than_assumed_can_never_be_a_theorem():
    guarantee = Guarantee(**fields(sampling_used="shuffle"))
    assert not guarantee.theorem
    assert guarantee.to_json()["theorem"] is False
    assert "shuffle" in guarantee.estimates[0]
    assert "estimate" in guarantee.sentences()[0]
    assert not dataclasses.replace(guarantee, estimates=()).theorem
    with pytest.raises(TypeError):
        Guarantee(**fields(sampling_used="shuffle"), theorem=True)
    forged = Guarantee(**fields()).to_json() | {"sampling_used": "shuffle"}
    with pytest.raises(CheckFailed, match="theorem"):
        Guarantee.from_json(forged)


def test_an_unknown_field_is_refused():
    with pytest.raises(InputError, match="epsilom"):
        Guarantee.from_json(Guarantee(**fields()).to_json() | {"epsilom": 1.0})


def test_reasons_make_an_estimate():
    guarantee = Guarantee(**fields(estimates=("the scale depends on the data",)))
    assert not guarantee.theorem
    assert "the scale depends on the data" in guarantee.sentences()[0]
    assert "the scale depends on the data" in guarantee.model_card_section()


def test_no_privacy_says_so_plainly():
    guarantee = Guarantee(**none_fields())
    assert "Nothing is protected" in guarantee.sentences()[0]
    assert "Nothing is protected" in guarantee.model_card_section()
    with pytest.raises(InputError, match="epsilon"):
        Guarantee(**none_fields(epsilon=8.0, curve=((8.0, 1e-5),)))
    with pytest.raises(InputError, match="words"):
        Guarantee(**none_fields(words=("This model respects privacy.",)))


def test_sentences_state_the_numbers_rounded_to_the_attackers_side():
    text = " ".join(Guarantee(**fields()).sentences())
    assert "3.3%" in text  # a true positive rate of 3.214%
    assert "65.7%" in text  # (1 + 0.3121) / 2 = 65.605%
    assert "1 in 1,000,000 becomes at most 1 in 150,000" in text  # 6.3e-6 is 1 in 158,730
    assert "1 in 1,000 becomes at most 1 in 210" in text
    assert "all mail sent by one person" in text
    assert "how many rows each user has" in text
    assert "metrics computed from private rows" in text
    assert "weak" not in text


def test_a_weak_bound_is_called_weak():
    weak = Guarantee(**fields(advantage=0.97))
    assert "weak" in weak.sentences()[-1]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, "epsilon = 2 at delta"),
        ({"advantage": 0.97}, "These bounds are weak"),
        (
            {"reconstruction": ((1e-6, 0.06), (1e-4, 0.06), (1e-3, 0.07))},
            "These bounds are weak. They do not rule out that something hard to guess is recovered",
        ),
        ({"delta": 0.01, "curve": ((2.0, 0.01),)}, "delta = 0.01 is large"),
        ({"estimates": ("the scale depends on the data",)}, "are an estimate and not a proved guarantee"),
        (
            {"estimates": ("so",), "epsilons": (("if so", 3.0),)},
            "Under other suppositions epsilon is 3 if so",
        ),
        ({"protected_output": "the best of a sweep"}, "The figures are about the best of a sweep"),
    ],
)
def test_in_short_nothing_is_left_out_that_weakens_a_claim(changes, kept):
    guarantee = Guarantee(**fields(**changes))
    assert kept in " ".join(guarantee.short())
    assert "all mail sent by one person" in " ".join(guarantee.short())
    assert len(" ".join(guarantee.short())) < len(" ".join(guarantee.sentences())) / 2
    assert Guarantee(**none_fields()).short() == Guarantee(**none_fields()).sentences()


def test_secret_targets_are_told():
    secret = {
        "notion": "(p, r)-secret protection",
        "secret_targets": ((1e-10, 1e-3),),
        "closest_secrets": (("words:17", 1e-10, 1e-3, 9e-4),),
    }
    guarantee = Guarantee(**fields(**secret))
    assert any("1 in 10,000,000,000 becomes at most 1 in 1,000" in s for s in guarantee.sentences())
    assert any("1 in 10,000,000,000 becomes at most 1 in 1,000" in s for s in guarantee.short())
    card = guarantee.model_card_section()
    assert "asked for secrets" in card
    assert "words:17: 1e-10 to at most 0.0009 (asked: 0.001)" in card
    assert Guarantee.from_json(json.loads(json.dumps(guarantee.to_json()))) == guarantee


@pytest.mark.parametrize(
    "closest",
    [(), (("words:17", 1e-10, 1e-3, 2e-3),), (("words:17", 1e-10, 1e-3, 1e-11),)],
    ids=["none listed", "above what was asked", "below the prior"],
)
def test_secrets_that_are_not_protected_as_asked_make_no_claim(closest):
    secret = {"notion": "(p, r)-secret protection", "secret_targets": ((1e-10, 1e-3),)}
    with pytest.raises(InputError, match="closest_secrets"):
        Guarantee(**fields(**secret, closest_secrets=closest))


def test_the_model_card_prints_every_line():
    guarantee = Guarantee(**fields())
    card = guarantee.model_card_section()
    for value in (
        "user-level DP",
        "zero-out",
        "1.25",
        "dp_accounting",
        "0.6.0",
        "poisson",
        "AES-CTR",
        "confide 0.1.0",
    ):
        assert value in card
    for item in (*NOT_COVERED, *guarantee.public_facts, *guarantee.evidence):
        assert f"- {item}" in card
    assert "r(1e-06) = 6.3e-06" in card
    assert "a proved bound" in card


@pytest.mark.parametrize(("delta", "said"), [(1e-5, False), (7e-3, True)])
def test_a_large_delta_is_said_in_words(delta, said):
    words = " ".join(Guarantee(**fields(delta=delta)).sentences())
    assert ("may not hold at all" in words) == said


WORDS_OF_WHAT_IS_NOT_COVERED = [
    "base model",
    "pretraining",
    "tokenizer",
    "vocabulary",
    "evaluation",
    "metrics",
    "logs",
    "timing",
    "medians",
    "tuning",
    "screening",
    "other units' rows",
]


@pytest.mark.parametrize("word", WORDS_OF_WHAT_IS_NOT_COVERED)
def test_what_no_training_run_covers_is_named(word):
    """Pitfall 24. In words of the test's own: whoever takes one out of the list must take it out of here as well."""
    assert any(word in line for line in NOT_COVERED), word
