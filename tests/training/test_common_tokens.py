"""`privacy.common_tokens`: rows of embeddings that count less the more common their token is."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import confide
from confide.config.loading import check
from confide.config.train_section import EMBEDDINGS
from confide.models import loading as models
from confide.models.expected_tokens import expected_tokens, expects_now, keep_expected
from confide.privacy.mechanisms.values import Aggregation
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.training.optimisation import Optimisation, scales_of
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config, same

POWER = 0.25
TABLE = "transformer.wte.weight"


def job(folder, twin=False, **changes):
    return Job.of(Run(config(folder, privacy__common_tokens=POWER, **changes), twin), Console(quiet=True))


def skewed(model):
    """Expect each token half as often as the one before it, down to far below the mean."""
    p = 0.5 ** torch.arange(len(model.get_input_embeddings().weight), dtype=torch.float64).clamp(max=40)
    keep_expected(model, p / p.sum())
    return p / p.sum()


# What a model expects -------------------------------------------------------------------------------------------
def test_what_a_model_expects_is_what_it_writes():
    """A model whose outputs do not depend on the text expects the softmax of its bias at every place."""
    model = small.gpt2()
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.randn(16, generator=torch.Generator().manual_seed(1)) * 20)
        [logits] = model(torch.zeros(1, 1, dtype=torch.long)).logits[0]
    expected = expects_now(model)
    assert expected.dtype == torch.float64
    torch.testing.assert_close(expected, logits.double().softmax(0), rtol=1e-5, atol=1e-9)
    assert float(expected.max() / expected.min()) > 10


def test_the_next_token_rests_on_the_text_so_far(monkeypatch):
    """Without a cache the whole text is read again, and gives the same."""
    found = expects_now(small.gpt2())
    monkeypatch.setattr("confide.models.expected_tokens.caches", lambda model: False)
    torch.testing.assert_close(expects_now(small.gpt2()), found, rtol=1e-5, atol=1e-9)
    assert float(found.sum()) == pytest.approx(1)


def test_training_changes_nothing_of_it_and_it_changes_nothing_of_training():
    model = small.gpt2().train()
    torch.manual_seed(5)
    before, state = expects_now(model), torch.get_rng_state()
    keep_expected(model, before)
    assert model.training
    assert torch.equal(state, torch.manual_seed(5).get_state())
    with torch.no_grad():
        model.transformer.wte.weight.normal_()
    assert expected_tokens(model) is before
    assert not torch.allclose(expects_now(model), before)


@pytest.mark.parametrize("changes", [{"n_positions": 7}, {"bos_token_id": 50256}, {"bos_token_id": None}])
def test_a_model_may_read_little_and_name_no_first_token(changes):
    model = GPT2LMHeadModel(GPT2Config.from_dict(small.gpt2().config.to_dict() | changes))
    assert float(expects_now(model).sum()) == pytest.approx(1)


def test_nobody_asks_weights_that_may_be_private():
    with pytest.raises(AssertionError, match="a run keeps what its base expects"):
        scales_of(small.gpt2(), (), POWER)


def test_a_model_that_writes_no_text_is_refused():
    settings = small.gpt2().config
    with pytest.raises(InputError, match=r"privacy\.common_tokens: this model does not write text"):
        expects_now(GPT2ForSequenceClassification(settings))


# Factors --------------------------------------------------------------------------------------------------------
def test_factors_fall_from_one_as_a_power_of_how_common_a_token_is():
    model = small.gpt2()
    p, size = skewed(model), small.VOCABULARY
    factors = scales_of(model, {EMBEDDINGS: 2.0}.items(), POWER)
    wanted = [2.0 * min(1.0, (size * float(each)) ** -POWER) for each in p]
    assert wanted[0] < 1.0
    assert wanted[-1] == 2.0
    assert factors[TABLE][:, 0].tolist() == pytest.approx(wanted)
    assert {by for name, by in factors.items() if name != TABLE} == {1.0}


def test_rows_that_no_output_stands_for_count_whole():
    model = small.gpt2()
    keep_expected(model, torch.full((10,), 0.1, dtype=torch.float64))
    rows = scales_of(model, (), POWER)[TABLE]
    assert len(rows) == small.VOCABULARY
    assert (rows[:10] < 1).all()
    assert (rows[10:] == 1).all()


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_layer_of_its_own_counts_too(tied):
    """Its rows are those of tokens as well; of what is frozen, nothing."""
    settings = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(settings)
    skewed(model)
    own = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    found = scales_of(model, (), POWER)
    assert {name for name, by in found.items() if isinstance(by, torch.Tensor)} == own
    model.get_input_embeddings().weight.requires_grad_(False)
    assert set(models.token_tables(model)) == own - {"model.embed_tokens.weight"}


# The step -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bits", [32, 16])
def test_a_step_is_that_of_a_model_written_with_the_factors_in_front(tmp_path, bits):
    """W = W_0 + D U: the step of U by plain SGD, with U's gradients clipped, moves W as the factors do."""
    plain = {"train__optimizer": "sgd", "train__learning_rate": 100.0, "privacy__noise_multiplier": 0.0}
    plain |= {"train__precision": "float32" if bits == 32 else "bf16"}
    made = job(tmp_path / "a", privacy__scales={EMBEDDINGS: 2.0}, **plain)
    once = Job.of(Run(config(tmp_path / "b", **plain)), Console(quiet=True)).model
    p = skewed(made.model)
    rows = 2.0 * (len(p) * p).clamp(min=1).pow(-POWER)[:, None].float()
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    runner = made.phase_runner()
    runner(0)
    step = runner._steps[0]
    draw, aggregation = step.sampler.draw(0), step.aggregation
    expected = {name: torch.zeros_like(p) for name, p in before.items()}
    once.train()
    clipped = 0
    for unit in range(draw.groups):
        once.zero_grad()
        for row in [i for i in range(len(draw.rows)) if draw.group[i] == unit]:
            ids = torch.tensor(draw.rows[row].astype("int64"))[None]
            loss = functional.cross_entropy(once(input_ids=ids).logits[0, :-1], ids[0, 1:])
            (float(draw.weight[row]) * loss).backward()
        of_u = {n: (rows if n == TABLE else 1.0) * p.grad for n, p in once.named_parameters()}
        norm = sum(float(g.double().square().sum()) for g in of_u.values()) ** 0.5
        clipped += norm > aggregation.clip_norm
        for name, g in of_u.items():
            expected[name] += min(1.0, aggregation.clip_norm / norm) * g
    assert clipped
    rate, tolerance = step.optimisation.rate(0), 1e-3 if bits == 32 else 3e-2
    for name, p in made.model.named_parameters():
        moved = (p.detach() - before[name]).double()
        wanted = -rate * aggregation.scale * ((rows if name == TABLE else 1.0) * expected[name]).double()
        assert (moved - wanted).norm() <= tolerance * wanted.norm() + 1e-9, name


@pytest.mark.parametrize("optimizer", ["tensor-adamw", "adamw", "sgd"])
def test_each_row_moves_by_its_own_share_of_a_step(optimizer):
    """Beside an optimiser without factors, given the same gradients, over three steps."""
    optimisation = Optimisation(steps=3, optimizer=optimizer, learning_rate=0.1, momentum=0.5)
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    share = torch.tensor([1.0, 0.5, 0.25, 0.125, 1.0, 0.3])[:, None]
    slow, plain = (torch.nn.Parameter(start.clone()) for _ in range(2))
    with_rows = optimisation.build({"table": slow}, 1.0, scales={"table": 4.0 * share})
    without = optimisation.build({"table": plain}, 1.0, scales={"table": 4.0})
    for number in range(3):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(number + 1))
        slow.grad, plain.grad = gradient.clone(), gradient.clone()
        with_rows.step(), without.step()
    assert not torch.allclose(plain, start)
    torch.testing.assert_close(slow - start, share * (plain - start), rtol=1e-4, atol=1e-6)


def test_whole_steps_stay_bit_for_bit():
    """A share of 1 leaves what the optimiser made of a row."""
    optimisation = Optimisation(steps=1, optimizer="sgd", learning_rate=0.3)
    table = torch.nn.Parameter(torch.randn(3, 4))
    plain = table.detach() - 0.3 * torch.ones(3, 4)
    made = optimisation.build({"table": table}, scales={"table": torch.tensor([[1.0], [0.5], [1.0]])})
    table.grad = torch.ones(3, 4)
    made.step()
    assert torch.equal(table[0], plain[0])
    assert torch.equal(table[2], plain[2])
    assert not torch.equal(table[1], plain[1])


# The run --------------------------------------------------------------------------------------------------------
def kept(made):
    [path] = made.run.root.glob("expected-tokens-*.npy")
    return path


def test_a_run_goes_on_with_what_the_model_expected_when_it_began(tmp_path, monkeypatch):
    factors = scales_of(job(tmp_path / "run").model, (), POWER)[TABLE]
    monkeypatch.setattr("confide.models.expected_tokens.SEED", 1)
    assert torch.equal(scales_of(job(tmp_path / "run").model, (), POWER)[TABLE], factors)
    other = scales_of(job(tmp_path / "other").model, (), POWER)[TABLE]
    assert not torch.equal(other, factors)
    path = kept(job(tmp_path / "run"))
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(InputError, match=r"expected-tokens-.*\.npy is damaged, or of another run"):
        job(tmp_path / "run")


def test_a_run_that_has_begun_does_not_go_on_without_it(tmp_path):
    settings = config(tmp_path / "run", privacy__common_tokens=POWER, train__steps=3)
    confide.train(settings)
    kept(Job.of(Run(settings), Console(quiet=True))).unlink()
    with pytest.raises(InputError, match=r"expected-tokens-.*\.npy is gone"):
        Job.of(Run(settings), Console(quiet=True))


def test_a_config_may_change_until_a_run_begins(tmp_path):
    """As after `confide plan --measure`, which looks at the model too."""
    job(tmp_path / "run")
    job(tmp_path / "run", train__steps=20)


def test_a_run_ends_as_if_it_had_not_stopped(tmp_path):
    whole, cut = (Run(config(tmp_path / name, True, privacy__common_tokens=POWER)) for name in ("a", "b"))
    fine_tune(whole)
    for until in (7, 24):
        fine_tune(cut, until=until)
    same(cut, whole)


def test_what_an_object_expected_before_it_got_the_base_counts_for_nothing(tmp_path, monkeypatch):
    """A program may train an object, put the base back, and begin another run with it."""
    clean = scales_of(job(tmp_path / "clean").model, (), POWER)[TABLE]
    load = models.load_model

    def used(*given):
        model = load(*given)
        skewed(model)
        return model

    monkeypatch.setattr(models, "load_model", used)
    assert torch.equal(scales_of(job(tmp_path / "run").model, (), POWER)[TABLE], clean)


def test_other_probabilities_have_other_noise(tmp_path):
    """Two trainings with one noise and different factors would give clipped gradients away."""
    keys = []
    for size in (10, 20):
        made = Job.of(
            Run(config(tmp_path / f"{size}", secret=True, privacy__common_tokens=POWER)), Console(quiet=True)
        )
        keep_expected(made.model, torch.full((size,), 1 / size, dtype=torch.float64))
        keys.append(made._steps(made.phases()[0], print).noise_key.fingerprint(b""))
    assert keys[0] != keys[1]


def test_the_twin_has_none(tmp_path):
    made = job(tmp_path / "run", twin=True)
    [phase] = made.phases()
    assert phase.mechanism.aggregation(made.setting.parameters, 0.0).common_tokens == 0
    assert not list(made.run.root.glob("expected-tokens*"))


def test_the_claim_says_what_is_multiplied(tmp_path):
    said = [fact for fact in job(tmp_path / "run").guarantee(24).public_facts if "multiplied" in fact]
    assert len(said) == 1
    assert (
        "the gradient of each token's embedding, and of its row in an output layer of its own " in (said[0])
    )
    assert "(V p)^-0.25 if that is below 1" in said[0]


def test_an_observer_of_the_sums_multiplies_the_canaries_too(tmp_path):
    raw = config(tmp_path / "run", privacy__common_tokens=POWER).model_dump(mode="json", exclude={"canaries"})
    made = Job.of(Run(check(raw | {"canaries": {"count": 2, "white_box": True}})), Console(quiet=True))
    [phase] = made.phases()
    rows = made.readings(phase).scales[TABLE]
    assert torch.equal(rows, scales_of(made.model, (), POWER)[TABLE])
    assert float(rows.min()) < 1


def test_another_power_has_other_noise():
    plain = Aggregation(1.0, 1.0, 0.1)
    bindings = {replace(plain, common_tokens=power).binding() for power in (0.0, 0.25, 0.5)}
    assert len(bindings) == 3


# What is refused ------------------------------------------------------------------------------------------------
def test_a_programs_own_optimiser_is_refused_before_the_folder_is_bound(tmp_path):
    settings = config(tmp_path / "run", privacy__common_tokens=POWER)
    with pytest.raises(InputError, match=r"privacy\.common_tokens: the program's own optimizer"):
        confide.train(settings, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert not (tmp_path / "run" / "run" / "ledger.jsonl").exists()


def test_without_embeddings_that_train_it_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"privacy\.common_tokens: no embeddings of tokens are trained"):
        job(tmp_path / "run", model="bundled", adapter={"kind": "lora", "rank": 2})
    assert not (tmp_path / "run" / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("privacy", "train", "why"),
    [
        ({"mechanism": "none"}, {}, "mechanism none clips nothing, so no token can count less"),
        ({}, {"distributed": "fsdp"}, "with distributed: fsdp, embeddings are split"),
        ({"common_tokens": -0.1}, {}, "is not valid"),
        ({"common_tokens": 1.0}, {}, "is not valid"),
    ],
)
def test_settings_that_it_does_not_go_with_are_refused(tmp_path, privacy, train, why):
    raw = config(tmp_path / "run").model_dump(mode="json")
    raw["privacy"] |= {"common_tokens": POWER} | privacy
    raw["train"] |= train
    with pytest.raises(InputError, match=rf"privacy\.common_tokens: .*{why}"):
        check(raw)
