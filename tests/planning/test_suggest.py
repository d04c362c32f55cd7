"""Suggestions: every setting meets the target and spends the budget, and the ranking follows its own rule."""

import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, GPTNeoXConfig, MambaConfig

from confide.config.loading import check
from confide.data.shape import Shape
from confide.planning import candidates, rates
from confide.planning import suggest as suggesting
from confide.planning.cost import Size
from confide.planning.progress import (
    COMMON_TOKENS,
    FITTED,
    HIGHEST,
    SQUARES,
    STEADY,
    WALK,
    best_rate,
    log_progress,
    lora_higher,
    own_rate,
    twin_rate,
)
from confide.planning.suggest import suggest
from confide.privacy import mechanisms
from confide.privacy.accounting import fixed_bins
from confide.privacy.correlated_noise import Banded, Buffered
from confide.privacy.mechanisms.statement import calibrate
from confide.privacy.mechanisms.uls import UserLevelSampling
from confide.training.optimisation import scales_of
from confide.tuning.space import altered
from confide.utils.errors import InputError
from tests import small
from tests.command import confide
from tests.test_resume import config as run_config

SIZE = Size(5_300_000, 5_300_000, 4, 256, 8192)


def shape(units: int = 3000) -> Shape:
    rows = np.minimum(np.random.default_rng(0).zipf(1.8, units), 60).astype(np.int64)
    return Shape(rows, int(rows.sum()), int(rows.sum()) * 50, True)


def config(mechanism: str = "uls", **privacy):
    raw = {
        "data": {"train": __file__, "unit": "user"},
        "privacy": {"mechanism": mechanism, "epsilon": 8.0, "rows_per_unit": 2} | privacy,
        "train": {"steps": 60, "batch": 100.0},
    }
    return check(raw)


CLAIMED, FEWER_DRAWS = fixed_bins.DRAWS, 1 << 17
"""Of the accountant of kept bins, for claims, and for tests: the order of suggestions hardly moves."""


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed_bins, "DRAWS", FEWER_DRAWS)
        return suggest(config(), shape(), SIZE, count=12)


def test_hundreds_of_settings_are_considered(found):
    assert found["considered"] >= 200
    assert found["considered"] - found["impossible"] >= 150


def test_every_suggestion_meets_the_target_and_spends_the_budget(found):
    for row in found["ranked"]:
        mechanism = mechanisms.build(altered(config(), row["settings"]))
        setting = calibrate(
            mechanism, shape(), None, row["noise_multiplier"], row["settings"]["privacy.delta"]
        )
        assert setting.curve().epsilon(setting.delta) <= 8.0
        assert setting.curve().epsilon(setting.delta) > 7.9
        computed = mechanism.rows_computed(
            setting.parameters
        )  # a batch is rounded down to what can be written
        least = 0.94 if mechanism.sampling == "bins" else 0.99  # an epoch of bins has a whole number of steps
        most = 1.01 if mechanism.sampling == "bins" else 1 + 1e-9
        assert least * found["budget_rows"] < computed <= found["budget_rows"] * most
        batch = row["settings"]["train.batch"]
        assert batch == float(f"{batch:.3g}") or (isinstance(batch, int) and batch >= 100)
        assert setting.noise_per_gradient() == pytest.approx(row["noise_per_gradient"])


def test_all_are_compared_at_one_delta(found):
    assert len({row["settings"]["privacy.delta"] for row in found["ranked"]}) == 1


def test_the_first_has_nearly_the_most_progress_and_the_reasons_tell_why(found):
    ranked = found["ranked"]
    least = math.exp(-suggesting.UNFITTED - suggesting.ALIKE)
    assert ranked[0]["progress"] >= least * max(row["progress"] for row in ranked)
    assert all(str(row["steps"]) in row["reason"] for row in ranked)
    assert len({row["reason"] for row in ranked}) >= 4
    assert ["first by this rule" in row["reason"] for row in ranked] == [True, *[False] * (len(ranked) - 1)]


def test_of_settings_alike_the_one_that_reaches_more_rows_stands_first(found):
    """User-level sampling of one row a step has the noise of example-level sampling of one row in all."""
    order = [
        row["mechanism"]
        for row in found["ranked"]
        if row["rows_per_unit"] == 1 and row["mechanism"] != "group"
    ]
    assert order[0] == "uls"


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(fixed_bins, "DRAWS", FEWER_DRAWS)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(suggesting, "STEPS", (4, 16, 64, 256))
    for name, caps in {"uls": (1, 2, 8), "els": (1, 4), "group": ()}.items():
        monkeypatch.setattr(mechanisms.find(name), "suggested_caps", caps)


def test_the_ranking_does_not_follow_the_rate_of_the_config(few):
    """What is ranked at one rate for all follows from that rate more than from noise and steps."""
    slow, fast = (
        suggest(trains(config(), learning_rate=rate), shape(), SIZE, rows=20_000, count=3)["ranked"]
        for rate in (1e-4, 2e-2)
    )
    assert [row["settings"] for row in slow] == [row["settings"] for row in fast]


def test_where_it_names_a_rate_the_rate_is_constant(few):
    """Else the schedule is that of the config, whose rate it keeps: a rate that falls bears more steps."""
    raw = config().model_dump(mode="json", exclude_unset=True)

    def first(**changes):
        constant, linear = (
            suggest(trains(check(raw | changes), schedule=schedule), shape(), SIZE, rows=20_000, count=1)
            for schedule in ("constant", "linear")
        )
        return constant, linear

    constant, linear = first()
    assert constant["correlated"] is linear["correlated"] is None  # it is ranked
    assert constant["ranked"] == linear["ranked"]
    assert linear["ranked"][0]["settings"]["train.schedule"] == "constant"
    constant, linear = (found["ranked"][0] for found in first(adapter={"kind": "bias"}))
    assert linear["steps"] >= constant["steps"]
    assert linear["progress"] > constant["progress"]
    assert "train.schedule" not in linear["settings"]


def test_less_noise_suggests_more_steps(few):
    strict, lax = (
        suggest(config(epsilon=epsilon), shape(), SIZE, rows=60_000, count=1)["ranked"][0]["steps"]
        for epsilon in (0.3, 50.0)
    )
    assert strict < lax


def test_where_there_is_little_noise_a_step_is_no_longer_than_one_without_noise_may_be():
    assert own_rate(4, "constant", ratio=0.0) == STEADY < best_rate(4, "constant")
    assert own_rate(32, "constant", ratio=1e6) == best_rate(32, "constant")
    assert own_rate(4, "constant", ratio=3.0) == 2 * STEADY
    assert own_rate(1000, "constant", ratio=0.0) == best_rate(1000, "constant") < STEADY


def test_progress_falls_with_noise_and_ends_to_grow_where_the_walk_outweighs_a_step():
    for steps in (10, 100):
        assert log_progress(steps, 3.0, 0.0) == pytest.approx(math.log(steps / 2))
        assert log_progress(steps, 3.0, 1e-6) < log_progress(steps, 2.0, 1e-6)
    best = max(range(1, 1000), key=lambda steps: log_progress(steps, 0.0, 1e-5, walk=1000.0))
    assert best == 100


def of_biases():
    """A config whose learning rate the rule does not know, so that correlated noise is not ranked."""
    return check(config().model_dump(mode="json") | {"adapter": {"kind": "bias"}})


def test_balls_in_bins_stand_where_they_need_less_noise(few):
    first = suggest(of_biases(), shape(), SIZE, count=1)["ranked"][0]
    assert (first["sampling"], first["bands"]) == ("bins", 1)
    noises = {}
    for sampling in ("bins", "poisson"):
        own = altered(config(), first["settings"] | {"privacy.sampling": sampling}, "test")
        setting = calibrate(mechanisms.build(own), shape(), 8.0, None, own.privacy.delta)
        noises[sampling] = setting.noise_per_gradient()
    assert noises["bins"] < 0.97 * noises["poisson"]
    assert noises["bins"] == pytest.approx(first["noise_per_gradient"])


def test_a_batch_that_all_but_divides_the_users_is_dealt(few, monkeypatch):
    """1,603 users in steps of 200: 8 steps an epoch take 0.2% more."""
    monkeypatch.setattr(suggesting, "STEPS", (23,))
    users = Shape(np.ones(1603, np.int64), 1603, 1603 * 30, True)
    found = suggest(of_biases(), users, SIZE, rows=4608, count=5)
    assert {row["sampling"] for row in found["ranked"] if row["mechanism"] == "uls"} == {"bins"}


def test_nobody_is_dealt_into_bins_where_that_costs_more_or_is_not_possible(few):
    replaced = suggest(config(adjacency="replace-one"), shape(), SIZE, count=3)
    others = [
        row for row in suggest(config(), shape(), SIZE, count=100)["ranked"] if row["mechanism"] == "els"
    ]
    assert {row["sampling"] for row in replaced["ranked"]} == {"poisson"}
    assert {row["sampling"] for row in others} == {"poisson"}


def test_correlated_noise_is_told_of_where_it_leaves_less_in_the_weights(few):
    """Against the accounting itself: noise multiplier, the norm of its matrix, and what it leaves."""
    decaying = config().model_dump(mode="json") | {
        "adapter": {"kind": "bias"}
    }  # whose schedule a suggestion keeps
    decaying["train"]["schedule"] = "linear"
    found = suggest(check(decaying), shape(), SIZE, count=1)
    first, told = found["ranked"][0], found["correlated"]
    assert told["bands"] > 1
    assert 0.4 < told["noise_in_weights"] < 1
    rates = [1 - step / first["steps"] for step in range(first["steps"])]  # linear decay
    noises = []
    for bands in (1, told["bands"]):
        raw = check(
            altered(
                check(decaying),
                first["settings"]
                | ({"privacy.bands": bands, "privacy.sampling": told["sampling"]} if bands > 1 else {}),
                "test",
            ).model_dump(mode="json")
        )
        setting = calibrate(mechanisms.build(raw), shape(), raw.privacy.epsilon, None, raw.privacy.delta)
        matrix = Banded(bands, setting.mechanism.exponent)
        noises.append(setting.noise_multiplier * matrix.sensitivity * matrix.noise_in_weights(rates))
    assert told["noise_in_weights"] == pytest.approx(noises[1] / noises[0], rel=0.01)
    share = Banded(told["bands"]).walk_share(rates)
    assert told["rate_factor"] == pytest.approx(share**-0.5)
    assert told["bands"] * first["sampling_probability"] <= 1


def test_where_the_rule_knows_rates_correlated_noise_is_ranked_at_its_own(few, monkeypatch):
    """As many steps with independent noise go less far, and their rate is lower."""
    found = suggest(config(), shape(), SIZE, count=1)
    first = found["ranked"][0]
    assert (first["bands"] > 1, first["sampling"], found["correlated"]) == (True, "bins", None)
    assert first["settings"]["privacy.bands"] == first["bands"]
    assert first["settings"]["train.betas"] == [0.6, 0.999]
    own = trains(config(), betas=(0.4, 0.99))
    assert "train.betas" not in suggest(own, shape(), SIZE, count=1)["ranked"][0]["settings"]
    assert "stays in the weights" in first["reason"]
    monkeypatch.setattr(UserLevelSampling, "correlates", False)
    others = suggest(config(), shape(), SIZE, count=100)["ranked"]
    alike = ("mechanism", "steps", "rows_per_unit")
    other = next(row for row in others if all(row[key] == first[key] for key in alike))
    assert other["progress"] < first["progress"]
    share = Banded(first["bands"]).walk_share([1.0] * first["steps"])
    assert first["learning_rate"] == pytest.approx(
        other["learning_rate"] / share**0.5, rel=0.06
    )  # two digits


def test_buffers_are_suggested_where_bands_of_an_epoch_would_take_too_much_memory(few, monkeypatch):
    monkeypatch.setattr(candidates, "_COPIES", 4.0 * SIZE.trainable * 4)  # four bands, or three buffers
    found = suggest(config(), shape(), SIZE, count=1)["ranked"][0]
    assert (found["bands"], found["sampling"]) == (1, "bins")
    assert 1 <= found["buffers"] <= 3
    assert found["settings"]["privacy.buffers"] == found["buffers"]
    assert found["settings"]["train.betas"] == [0.6, 0.999]
    assert "stays in the weights" in found["reason"]
    chosen = altered(config(), found["settings"], "test")
    assert mechanisms.build(chosen).correlation == Buffered(found["buffers"])
    monkeypatch.undo()
    again = suggest(chosen, shape(), SIZE, count=1)["ranked"][0]
    assert again["settings"]["privacy.buffers"] == 0  # the config's own are taken out
    altered(chosen, again["settings"], "test")


def test_scales_are_set_where_a_study_found_them_to_pay(few):
    def scales(settings):
        return suggest(settings, shape(), SIZE, count=1)["ranked"][0]["settings"].get("privacy.scales")

    assert scales(config(epsilon=0.05)) is scales(of_biases()) is None
    for own in ({"scales": {"embeddings": 3.0}}, {"common_tokens": 0.1}):  # one's own stay
        assert scales(config(**own)) is None
    first = suggest(config(), shape(), SIZE, count=1)["ranked"][0]
    assert first["settings"]["privacy.scales"] == {"embeddings": 2.0, "*attn": 0.5}
    mechanism = mechanisms.build(altered(config(), first["settings"], "test"))
    assert mechanism.scales == (("*attn", 0.5), ("embeddings", 2.0))
    assert mechanism.common_tokens == COMMON_TOKENS
    split = suggest(altered(config(), {"train.distributed": "fsdp"}, "test"), shape(), SIZE, count=1)[
        "ranked"
    ][0]
    assert split["settings"]["privacy.scales"]
    assert "privacy.common_tokens" not in split["settings"]
    # Rows of common tokens then move by whole steps, and the rate is lower.
    assert first["learning_rate"] == pytest.approx(1.3 * split["learning_rate"], rel=0.06)
    assert first["settings"]["train.learning_rate"] == first["learning_rate"]


@pytest.mark.parametrize(("width", "rank", "alpha"), [(128, 32, 64.0), (2000, 8, 12.0)])
def test_lora_factors_walk_as_far_in_their_outputs_as_whole_weights(width, rank, alpha):
    """Against the walk itself: noise that adds up in every weight, and in both factors at the rate that is named."""
    rng, outputs, worlds = np.random.default_rng(0), 100, 100
    of = check(config().model_dump(mode="json") | {"adapter": {"kind": "lora", "rank": rank, "alpha": alpha}})
    x = rng.normal(size=width)
    higher, walk = rates.higher(of, replace(SIZE, width=width)), 1 / math.sqrt(2 * WALK)  # at `best_rate`
    whole = walk * rng.normal(size=(worlds * outputs, width)) @ x
    first = rng.uniform(-1, 1, (worlds, rank, width)) / math.sqrt(width)  # as peft begins
    first += higher * walk * rng.normal(size=first.shape)
    second = higher * walk * rng.normal(size=(worlds, outputs, rank))
    walked = np.einsum("nor,nrw,w->no", second, first, x) * of.adapter.scale
    assert math.sqrt((walked**2).mean() / (whole**2).mean()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("rslora", [False, True])
def test_the_rate_of_lora_factors_is_that_of_whole_weights_times_what_they_walk_less(few, rslora):
    """Scales would change nothing of theirs: no embedding trains."""
    adapter = {"kind": "lora", "rank": 8, "rslora": rslora}
    of = check(config().model_dump(mode="json") | {"adapter": adapter})
    first = suggest(of, shape(), SIZE, count=1)["ranked"][0]
    assert not {"privacy.scales", "privacy.common_tokens"} & set(first["settings"])
    alone = config(scales={"embeddings": 3.0})  # its own stay, so that common tokens count as others
    whole = suggest(alone, shape(), SIZE, count=1)["ranked"][0]
    assert (first["steps"], first["bands"]) == (whole["steps"], whole["bands"])
    higher = lora_higher(256, 8, 16 / math.sqrt(8) if rslora else 2.0)
    assert first["learning_rate"] == pytest.approx(higher * whole["learning_rate"], rel=0.08)  # two digits
    assert first["settings"]["train.twin_learning_rate"] == pytest.approx(higher * STEADY, rel=0.06)


def test_a_wider_model_bears_a_lower_rate_where_there_is_little_noise(few):
    assert own_rate(4, "constant", ratio=0.0, width=1024) == STEADY / 4
    assert own_rate(32, "constant", ratio=1e6, width=1024) == best_rate(32, "constant")
    for width, words in ((256, []), (1024, ["models wider than 256 (this one is 1,024 wide)"])):
        found = suggest(config(), shape(), replace(SIZE, width=width), count=1)
        assert found["learning_rate"]["untried"] == words
        assert found["ranked"][0]["settings"]["train.twin_learning_rate"] == STEADY * 256 / width
    assert twin_rate(64) == STEADY < own_rate(4, "constant", ratio=0.0, width=64)


def test_nothing_is_scaled_where_nobody_tried_it(few):
    """Neither where the output layer has weights of its own, nor beside rates for single tensors."""
    untied = suggest(config(), shape(), replace(SIZE, is_tied=False), count=1)
    faster = suggest(trains(config(), rate_factors={"embeddings": 2.0}), shape(), SIZE, count=1)
    for found, words in ((untied, "output layers with weights of their own"), (faster, "train.rate_factors")):
        assert not {"privacy.scales", "privacy.common_tokens"} & set(found["ranked"][0]["settings"])
        assert found["learning_rate"]["untried"] == [words]
    assert not Size.of(AutoModelForCausalLM.from_config(small.family("llama"))).is_tied
    own = trains(config(), twin_learning_rate=1e-4)
    assert "train.twin_learning_rate" not in suggest(own, shape(), SIZE, count=1)["ranked"][0]["settings"]


def test_common_tokens_count_less_in_large_vocabularies_alone(few):
    for tokens, has in ((512, False), (150_000, True)):
        first = suggest(config(), shape(), replace(SIZE, vocabulary=tokens), count=1)["ranked"][0]
        assert ("privacy.common_tokens" in first["settings"]) is has
        assert first["settings"]["privacy.scales"]


TINY = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (small.family("gpt2"), "*attn"),
        (small.family("llama", tie_word_embeddings=True), "*attn"),
        (GPTNeoXConfig(**TINY, num_attention_heads=2, intermediate_size=32), "*attention"),
        (MambaConfig(**TINY), None),
    ],
    ids=lambda each: getattr(each, "model_type", str(each)),
)
def test_scales_name_attention_as_the_model_does(few, settings, word):
    """A word that fits no tensor would be refused, and the suggested config would not train."""
    model = AutoModelForCausalLM.from_config(settings)
    first = suggest(config(), shape(), Size.of(model), count=1)["ranked"][0]
    scales = first["settings"]["privacy.scales"]
    assert scales == {"embeddings": 2.0} | ({word: 0.5} if word else {})
    scales_of(model, scales.items())  # each fits a tensor


def test_an_audit_of_sums_keeps_poisson_draws_and_independent_noise(few):
    raw = config().model_dump(mode="json") | {"canaries": {"count": 4, "white_box": True}}
    found = suggest(check(raw), shape(), SIZE, count=5)
    assert {(row["sampling"], row["bands"]) for row in found["ranked"]} == {("poisson", 1)}
    altered(check(raw), found["ranked"][0]["settings"], "test")  # the config is possible


def test_the_rate_of_correlated_noise_lets_the_weights_walk_as_far():
    assert own_rate(32, "constant", ratio=1e6, share=0.25) == 2 * best_rate(32, "constant")
    assert own_rate(4, "constant", ratio=3.0, share=0.25) == 2 * STEADY  # as without noise along the gradient
    assert own_rate(4, "linear", ratio=1e6, share=0.25) == 2 * HIGHEST


def test_correlated_noise_is_not_told_of_where_nobody_can_sit_out_a_step(few, monkeypatch):
    monkeypatch.setattr(suggesting, "STEPS", (4,))
    everybody = suggest(config(), shape(60), SIZE, rows=60 * 3, count=1)
    assert everybody["ranked"][0]["sampling_probability"] == 0.75
    assert everybody["correlated"] is None


def test_a_budget_of_its_own_needs_no_batch_that_fits(few):
    """Who has fewer units than a step was to have needs a suggestion most."""
    with pytest.raises(InputError, match="more than the 80 there are"):
        suggest(config(), shape(80), SIZE)
    (first,) = suggest(config(), shape(80), SIZE, rows=2_000, count=1)["ranked"]
    assert first["batch"] <= 80


def test_a_delta_that_is_large_for_so_many_units_is_told(few):
    """It is written into the config that --out makes, where nobody may look at it again."""
    raw = config().model_dump(mode="json", exclude_unset=True)
    large = check(raw | {"privacy": raw["privacy"] | {"delta": 1e-2}})
    assert "delta is large for 300 units" in suggest(large, shape(300), SIZE, rows=2_000, count=1)["warning"]
    small = check(raw | {"privacy": raw["privacy"] | {"delta": 1e-6}})
    assert suggest(small, shape(300), SIZE, rows=2_000, count=1)["warning"] is None


def test_measured_norms_say_that_they_are_not_covered(few):
    def flat(k):
        return 1.0

    def steep(k):
        return k**-0.5

    same = suggest(config(), shape(300), SIZE, norms=flat, rows=50_000, count=1)
    other = suggest(config(), shape(300), SIZE, norms=steep, rows=50_000, count=1)
    assert "not covered" in same["basis"]
    assert "costs no privacy" in suggest(config(), shape(), SIZE, count=1)["basis"]
    assert same["ranked"][0]["rows_per_unit"] == 1
    assert (other["ranked"][0]["mechanism"], other["ranked"][0]["rows_per_unit"]) == ("uls", 8)


@pytest.mark.parametrize(
    ("settings", "rows", "words"),
    [
        (config(epsilon=None, noise_multiplier=1.0), None, "needs a target"),
        (config("none", epsilon=None, rows_per_unit=4), None, "epsilon"),
        (config(), 1e12, "no setting spends them on 3000 units; give fewer with --rows"),
        (config(), 3.0, "3 rows: a suggestion takes 4 steps at least"),
        (config(), math.inf, "inf rows"),
    ],
)
def test_what_cannot_be_suggested_is_said(few, settings, rows, words):
    with pytest.raises(InputError, match=words):
        suggest(settings, shape(), SIZE, rows=rows)


def trains(settings, **changes):
    return settings.model_copy(update={"train": settings.train.model_copy(update=changes)})


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor"])
def test_the_rule_is_for_adam_alone(few, optimizer):
    with pytest.raises(InputError, match=rf"train.optimizer: .* of {optimizer} it knows nothing"):
        suggest(trains(config(), optimizer=optimizer), shape(), SIZE)


def test_warm_up_keeps_its_share_of_the_run(few):
    for row in suggest(trains(config(), warmup=6), shape(), SIZE, rows=20_000, count=12)["ranked"]:
        assert row["settings"]["train.warmup"] == row["steps"] // 10
    assert "train.warmup" not in suggest(config(), shape(), SIZE, count=1)["ranked"][0]["settings"]


@pytest.mark.parametrize(
    ("changes", "knows"),
    [
        ({}, True),
        ({"model": "gpt2"}, True),
        ({"adapter": {"kind": "lora"}}, True),
        ({"adapter": {"kind": "lora", "modules_to_save": ["lm_head"]}}, False),
        ({"adapter": {"kind": "bias"}}, False),
        ({"task": "classification", "data": {"train": __file__, "unit": "user", "label": "label"}}, False),
    ],
)
def test_the_rate_is_set_where_the_rule_knows_it(few, changes, knows):
    """It is of weights that write text, and of LoRA factors: the head of a classifier takes far more."""
    raw = config().model_dump(mode="json", exclude_unset=True) | changes
    found = suggest(trains(check(raw), learning_rate=0.02, schedule="linear"), shape(), SIZE, count=1)
    (first,), told = found["ranked"], found["learning_rate"]
    if not knows:
        assert told is first["learning_rate"] is None
        assert "train.learning_rate" not in first["settings"]
        return
    assert told["of_config"] == 0.02
    assert told["steps"] == first["steps"]
    assert told["by_rule"] == first["learning_rate"] == first["settings"]["train.learning_rate"]
    assert told["schedule"] == first["settings"]["train.schedule"] == "constant"


def test_what_comes_first_does_not_depend_on_how_many_are_shown(monkeypatch):
    monkeypatch.setattr(suggesting, "STEPS", (23, 32))
    monkeypatch.setattr(suggesting, "DEALT", 1)  # were it 60, the first would have 32 steps
    for name, caps in {"uls": (1, 2), "els": (), "group": ()}.items():
        monkeypatch.setattr(mechanisms.find(name), "suggested_caps", caps)
    one, many = (suggest(config(epsilon=2.0), shape(), SIZE, rows=20_000, count=n)["ranked"] for n in (1, 60))
    assert one == many[:1]
    monkeypatch.setattr(suggesting, "DEALT", 60)
    assert suggest(config(epsilon=2.0), shape(), SIZE, rows=20_000, count=1)["ranked"] != one


def test_the_steps_that_are_nearly_as_good_are_told(few, monkeypatch):
    monkeypatch.setattr(mechanisms.find("els"), "suggested_caps", ())  # each setting takes half a second
    found = suggest(config(), shape(), SIZE, rows=20_000, count=50)
    fewest, most = found["nearly"]
    assert fewest <= found["ranked"][0]["steps"] <= most
    best = found["ranked"][0]["progress"]
    near = {row["steps"] for row in found["ranked"] if row["progress"] > best * math.exp(-suggesting.NEARLY)}
    assert (min(near), max(near)) == (fewest, most)


def test_of_settings_that_are_nearly_as_good_one_that_the_rule_was_fitted_to_stands_first(few, monkeypatch):
    monkeypatch.setattr(suggesting, "STEPS", (11, 23))
    monkeypatch.setattr(mechanisms.find("uls"), "suggested_caps", (8, 16))
    few_users = Shape(np.full(97, 60, np.int64), 97 * 60, 97 * 60 * 30, True)
    first = suggest(config(), few_users, SIZE, rows=13_968, count=1)["ranked"][0]
    assert first["steps"] in FITTED
    others = suggest(config(), few_users, SIZE, rows=13_968, count=40)["ranked"][1:]
    better = [row for row in others if row["progress"] > first["progress"] * math.exp(suggesting.ALIKE)]
    assert all("better by this rule, which was not fitted to so few steps" in row["reason"] for row in better)
    monkeypatch.setattr(suggesting, "FITTED", range(1, 2000))
    assert suggest(config(), few_users, SIZE, rows=13_968, count=1)["ranked"][0]["steps"] < min(FITTED)


def test_no_rate_is_above_the_highest_that_was_tried(few):
    assert own_rate(4, "linear", ratio=1e6) == HIGHEST < best_rate(4, "linear")


def test_the_other_mechanisms_have_no_rivals():
    settings = config(epsilon=8.0)
    redacted = settings.model_copy(
        update={"privacy": settings.privacy.model_copy(update={"mechanism": "selective"})}
    )
    with pytest.raises(InputError, match="no suggestion for selective"):
        suggest(redacted, shape(), SIZE)


@pytest.mark.parametrize(("sampling", "resample"), [("shuffle", False), ("poisson", True)])
def test_the_settings_are_those_that_were_accounted_for(few, sampling, resample):
    settings = config("els", sampling=sampling, resample=resample)
    for row in suggest(settings, shape(), SIZE, rows=20_000, count=12)["ranked"]:
        mechanism = mechanisms.build(altered(settings, row["settings"]))
        assert mechanism.sampling == "poisson"
        assert mechanism.parameters(shape()).rows_per_unit in (None, row["rows_per_unit"])


def test_with_rows_of_its_own_the_draws_of_the_config_need_not_be_possible(monkeypatch):
    """An epoch of these units, one a step, would be too long for noise that is correlated over bins."""
    monkeypatch.setattr(fixed_bins, "DRAWS", FEWER_DRAWS)
    monkeypatch.setattr(
        suggesting, "_families", lambda own, config: [replace(own, sampling="poisson", bands=1)]
    )
    found = suggest(config(sampling="bins", bands=10), shape(), SIZE, rows=20_000, count=1)
    assert found["ranked"][0]["rows_seen"] == pytest.approx(20_000, rel=0.05)


def test_it_is_quick(monkeypatch):
    monkeypatch.setattr(fixed_bins, "DRAWS", CLAIMED)
    began = time.thread_time()  # threads of BLAS that wait for work would count as work
    suggest(config(), shape(), SIZE)
    assert time.thread_time() - began < 45  # half of that, or two thirds, where cores are not shared


def test_the_command_writes_a_config_that_trains(few, tmp_path):
    settings = run_config(tmp_path, privacy__noise_multiplier=None, privacy__epsilon=20.0)
    path, out = tmp_path / "c.yaml", tmp_path / "best.yaml"
    path.write_text("# of mine\n" + re.sub(r"( batch: .*)", r"\1   # mine", settings.to_yaml()))
    said = confide("plan", path, "--suggest", "--count", "2", "--out", out, "--json")
    assert said.code == 0
    best = json.loads(said.out)["ranked"][0]
    assert confide("train", out, f"run={tmp_path / 'other'}", "train.steps=2").code == 0
    assert f"mechanism: {best['mechanism']}" in out.read_text()
    assert f"batch: {best['batch']}   # mine\n" in out.read_text()
    assert out.read_text().startswith("# of mine\n")
    again = confide("plan", path, "--suggest", "--out", out)
    assert again.code == 2
    assert "exists already" in again.err


@pytest.mark.parametrize("option", [("--rows", "100"), ("--count", "3"), ("--out", "x.yaml")])
def test_options_of_a_suggestion_need_it(tmp_path, option):
    path = tmp_path / "c.yaml"
    path.write_text(run_config(tmp_path).to_yaml())
    said = confide("plan", path, *option)
    assert said.code == 2
    assert "is an option of --suggest" in said.err


def test_a_what_if_is_no_option_of_a_suggestion(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(run_config(tmp_path).to_yaml())
    said = confide("plan", path, "--suggest", "--times-users", "10")
    assert said.code == 2
    assert "--times-users" in said.err


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_best_rate_goes_farthest(schedule):
    def way(rate, steps):
        return math.log(rate) + log_progress(steps, 3.0, SQUARES[schedule] * rate**2)

    for steps in (8, 200):
        best = best_rate(steps, schedule)
        assert way(best, steps) > max(way(0.99 * best, steps), way(1.01 * best, steps))
    assert best_rate(800, schedule) == pytest.approx(best_rate(200, schedule) / 2)
