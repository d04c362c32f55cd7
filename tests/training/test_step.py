"""The step against the formula of the paper, term by term."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from confide.config.loading import check
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.noise_grid import step_of as step_of_grid
from confide.randomness.streams import RunKey
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks import Task
from confide.utils.errors import InputError
from tests import small

KEY = RunKey.from_text("test")
KEYS = {
    "published": KEY,
    "secret": RunKey(bytes(range(32))),
}  # noise of a secret key takes a branch of its own
NOTHING = Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass
class Fixed:
    """A sampler that draws what it is told."""

    draws: list[Draw]

    def draw(self, step: int) -> Draw:
        return self.draws[step % len(self.draws)]


def some_draw(sizes=(1, 3, 2), seed=0) -> Draw:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(2, small.VOCABULARY, generator.integers(3, 12)) for _ in range(sum(sizes))]
    group = np.repeat(np.arange(len(sizes)), sizes)
    weight = (1 / np.array(sizes)[group]).astype(np.float32)
    return Draw(rows, group, weight)


def step_of(model, draws, aggregation, key=KEY, **options):
    sgd = Optimisation(steps=10, learning_rate=1.0, optimizer="sgd")
    task = options.pop("task", small.task())
    return PrivateStep(
        model, task, Fixed(draws), aggregation, options.pop("optimisation", sgd), key, **options
    )


def unit_gradients(model, draw):
    """Each unit's mean-of-rows gradient by plain autograd, one row at a time."""
    task, gradients = small.task(), []
    for unit in range(draw.groups):
        model.zero_grad()
        for i in np.flatnonzero(draw.group == unit):
            (task.row_loss(model, task.collate([draw.rows[i]])) * float(draw.weight[i])).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    model.zero_grad()
    return gradients


def moved(before, model):
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}


def snapshot(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(params=KEYS)
def key(request) -> RunKey:
    return KEYS[request.param]


def noise_key(key, aggregation):
    """The key of a step's noise, as it is in the plainest of steps."""
    return step_of(small.gpt2(), [NOTHING], aggregation, key).noise_key


def lifted(clip):
    """By how much an element may be smaller than the formula's: norms are bounds, and clip a little more."""
    return 5e-4 * clip if clip and clip < 1 else 0.0


def expected_move(model, draw, clip, noise, scale, key=KEY, step=0):
    gradients = unit_gradients(model, draw)
    norms = [sum(float((g**2).sum()) for g in gradient.values()) ** 0.5 for gradient in gradients]
    total = {}
    for name, parameter in model.named_parameters():
        summed = torch.zeros_like(parameter)
        for gradient, norm in zip(gradients, norms, strict=True):
            summed += gradient[name] * (min(1.0, clip / norm) if clip else 1.0)
        values = (
            key.stream("main", "noise", step, name).normal(parameter.numel()).float().view(parameter.shape)
        )
        total[name] = (summed + noise * (clip or 0) * values) * scale
    return total


@pytest.mark.parametrize("clip", [0.05, 0.8, 100.0, None])
@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("micro_tokens", [8192, 20])
def test_a_step_is_the_formula(clip, noise, micro_tokens, key):
    """(sum of clipped means + s C N) * scale: pitfalls 1, 5, 7, 29. micro_tokens 20 cuts units into parts."""
    model, draw = small.gpt2(), some_draw()
    noise = noise if clip else 0.0
    aggregation = Aggregation(clip, noise, 0.25)
    expected = expected_move(small.gpt2(), draw, clip, noise, scale=0.25, key=noise_key(key, aggregation))
    before = snapshot(model)
    step_of(model, [draw], aggregation, key, micro_tokens=micro_tokens)(0)
    for name, got in moved(before, model).items():
        off = 2e-6 + lifted(clip) + 0.25 * (step_of_grid(noise * clip) if noise else 0.0)
        assert torch.allclose(got, expected[name], atol=off, rtol=1e-4), name


@pytest.mark.parametrize("optimizer", ["sgd", "tensor-adamw"])
def test_micro_batches_make_no_difference(key, optimizer):
    """Neither to clipped sums nor to noise, however small they are and whatever there was room for in between."""
    optimisation = Optimisation(steps=3, learning_rate=0.1, optimizer=optimizer)
    ends = []
    for micro_tokens in (8192, 4096, 64, 20):
        model = small.gpt2()
        draws = [some_draw(seed=1), NOTHING, some_draw((4, 1), seed=2)]
        step = step_of(
            model,
            draws,
            Aggregation(0.8, 0.7, 0.25),
            key,
            micro_tokens=micro_tokens,
            optimisation=optimisation,
        )
        for number in range(3):
            step(number)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    for end in ends[1:]:
        assert float((end - ends[0]).abs().max()) < 1e-4


def test_noise_is_the_one_that_recorded_steps_had(key):
    """Pitfall 35: a step that is taken again must have the noise that it had. Where this fails, what it rests on has
    changed, such as a name that is printed or a new default: runs that have begun cannot go on, and must be told so
    (`noise.LAYOUT`)."""
    words = noise_key(key, Aggregation(1.0, 0.5, 0.25)).stream("main", "noise", 3, "wte").uint64(2).tolist()
    published, secret = (
        [17846484518905707339, 12177650735458955727],
        [16819901301626780152, 13534163032875335360],
    )
    assert words == (published if key.published else secret)


def test_an_empty_draw_is_a_noise_only_step(key):
    """Pitfall 2."""
    model, aggregation = small.gpt2(), Aggregation(0.5, 2.0, 0.1)
    before = snapshot(model)
    report = step_of(model, [NOTHING], aggregation, key)(0)
    for name, got in moved(before, model).items():
        values = (
            noise_key(key, aggregation)
            .stream("main", "noise", 0, name)
            .normal(got.numel())
            .float()
            .view(got.shape)
        )
        assert torch.allclose(got, values * 0.1, atol=0.1 * step_of_grid(1.0)), name
    assert (report.rows, report.units, report.loss) == (0, 0, None)


def test_the_divisor_does_not_depend_on_what_was_drawn():
    """Pitfall 6: the scale of a step with one unit is that of a step with many."""
    one, many = some_draw((2,)), some_draw((2, 1, 1, 1), seed=0)
    many.rows[:2] = one.rows
    moves = []
    for draw in (one, many):
        model = small.gpt2()
        before = snapshot(model)
        step_of(model, [draw], Aggregation(1e-3, 0.0, 1 / 8))(0)
        moves.append(torch.cat([v.flatten() for v in moved(before, model).values()]))
    # Each unit is clipped to 1e-3, so one unit moves the weights by exactly 1e-3 / 8.
    assert moves[0].norm().item() == pytest.approx(1e-3 / 8, rel=1e-3)
    assert moves[1].norm().item() <= 4 * 1e-3 / 8 * 1.001


def test_noise_differs_between_steps_and_parameters_and_is_the_same_again(key):
    model = small.gpt2()
    taken = []
    step = step_of(model, [NOTHING], Aggregation(1.0, 1.0, 1.0), key)
    for number in (0, 1, 0):
        before = snapshot(model)
        step(number)
        taken.append(moved(before, model))
    assert torch.allclose(taken[0]["transformer.wpe.weight"], taken[2]["transformer.wpe.weight"], atol=1e-5)
    assert not torch.allclose(
        taken[0]["transformer.wpe.weight"], taken[1]["transformer.wpe.weight"], atol=0.1
    )
    a, b = (taken[0][f"transformer.h.{i}.ln_1.weight"] for i in (0, 1))
    assert not torch.allclose(a, b, atol=0.1)


def test_the_ledger_hears_before_the_weights_move():
    model = small.gpt2()
    before, seen = snapshot(model), []
    step_of(model, [some_draw()], Aggregation(1.0, 1.0, 1.0))(
        0,
        before_update=lambda draw: seen.append(
            all(torch.equal(before[n], p) for n, p in model.named_parameters())
        ),
    )
    assert seen == [True]
    assert not torch.equal(before["transformer.wpe.weight"], model.transformer.wpe.weight)


def test_weights_that_lie_crosswise_in_memory_move_as_others_do():
    """AdamW in one pass is blind to strides on a CPU."""
    value = torch.arange(12.0).view(4, 3)
    straight, across = torch.nn.Parameter(value.clone()), torch.nn.Parameter(value.T.contiguous().T)
    assert not across.is_contiguous()
    for parameter in (straight, across):
        parameter.grad = torch.linspace(-1, 1, 12).view(4, 3)
        Optimisation(steps=1, learning_rate=1e-3).build({"weight": parameter}).step()
    assert torch.allclose(straight, across, atol=1e-7)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 2 / 3]),
        ("cosine", [0.5, 1.0, 1.0, 0.75]),
    ],
)
def test_the_schedule_is_followed(schedule, rates):
    """Pitfall 10: the learning rate that the optimiser uses is that of the schedule."""
    optimisation = Optimisation(steps=5, learning_rate=1.0, schedule=schedule, warmup=2, optimizer="sgd")
    model = small.gpt2()
    step = step_of(model, [NOTHING], Aggregation(1.0, 1.0, 1.0), optimisation=optimisation)
    for number, rate in enumerate(rates):
        before = snapshot(model)
        step(number)
        got = moved(before, model)["transformer.wpe.weight"]
        values = (
            KEY.stream("main", "noise", number, "transformer.wpe.weight")
            .normal(got.numel())
            .float()
            .view(got.shape)
        )
        assert torch.allclose(got, rate * values, atol=rate * step_of_grid(1.0))


@pytest.mark.parametrize("factors", [{}, {"wpe": 3.0, "h.1": 0.5}])
@pytest.mark.parametrize("optimizer", ["tensor-adamw", "adamw", "adafactor", "sgd"])
def test_state_restores_to_the_bit(optimizer, factors, key):
    optimisation = Optimisation(
        steps=6,
        learning_rate=1e-2,
        rate_factors=factors,
        optimizer=optimizer,
        schedule="cosine",
        weight_decay=0.01,
    )
    draws = [some_draw(seed=s) for s in range(6)]
    whole, cut = small.gpt2(), small.gpt2()
    step = step_of(whole, draws, Aggregation(1.0, 0.5, 0.3), key, optimisation=optimisation)
    for number in range(6):
        step(number)
    first = step_of(cut, draws, Aggregation(1.0, 0.5, 0.3), key, optimisation=optimisation)
    for number in range(3):
        first(number)
    state = first.state()
    if not factors:  # as an older version wrote it
        for group in state["optimizer"]["param_groups"]:
            del group["rate_factor"]
    resumed = small.gpt2(seed=9)
    second = step_of(resumed, draws, Aggregation(1.0, 0.5, 0.3), key, optimisation=optimisation)
    second.restore(state)
    for number in range(3, 6):
        second(number)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


class Told(torch.optim.SGD):
    """A program's optimiser that asks for the noise."""

    def __init__(self, parameters):
        half = len(parameters) // 2
        groups = [{"params": parameters[:half], "noise_std": 0.0}, {"params": parameters[half:]}]
        super().__init__(groups, lr=1.0)


def test_a_programs_optimiser_is_told_the_noise_if_it_asks():
    """What it is told is the standard deviation of what it gets from a step without rows."""
    model, optimisation = small.gpt2(), Optimisation(steps=1, optimizer_of=Told)
    before = snapshot(model)
    step = step_of(model, [NOTHING], Aggregation(0.5, 3.0, 0.1), optimisation=optimisation)
    asks, does_not = step.optimizer.param_groups
    assert asks["noise_std"] == pytest.approx(0.5 * 3.0 * 0.1)
    assert "noise_std" not in does_not
    step(0)
    values = torch.cat([values.flatten() for values in moved(before, model).values()])
    assert float(values.std()) == pytest.approx(asks["noise_std"], rel=0.03)


def test_without_noise_an_optimiser_is_told_of_none():
    optimisation = Optimisation(steps=1, optimizer_of=Told)
    step = step_of(small.gpt2(), [NOTHING], Aggregation(None, 0.0, 0.1), optimisation=optimisation)
    assert step.optimizer.param_groups[0]["noise_std"] == 0.0


@pytest.mark.parametrize("published", [False, True])
def test_noise_of_another_size_is_other_noise(published):
    """Else two trainings of one config, whose sizes two versions of confide find, would differ by a multiple of it."""
    key = RunKey(bytes(32), published=published)
    noise = []
    for multiplier in (0.5, 0.6, 0.6):
        model = small.gpt2()
        before = snapshot(model)
        step_of(model, [NOTHING], Aggregation(1.0, multiplier, 0.1), key=key)(0)
        noise.append(torch.cat([v.flatten() for v in moved(before, model).values()]) / multiplier)
    assert torch.allclose(noise[1], noise[2])
    alike = abs(float(torch.corrcoef(torch.stack(noise[:2]))[0, 1]))
    assert alike > 0.999 if published else alike < 0.05


def test_fast_noise_has_the_same_size():
    model = small.gpt2()
    before = snapshot(model)
    step_of(model, [NOTHING], Aggregation(0.5, 2.0, 0.1), noise="fast")(0)
    values = torch.cat([v.flatten() for v in moved(before, model).values()])
    assert values.std().item() == pytest.approx(0.1, rel=0.05)


def test_every_trainable_weight_moves_with_lora():
    """Pitfall 9: LoRA weights that never move while loss and epsilon look healthy."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(small.gpt2(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = step_of(model, [some_draw()], Aggregation(1.0, 0.0, 1.0))
    for number in range(2):
        step(number)
    for name, parameter in model.named_parameters():
        assert torch.equal(before[name], parameter) == (name not in names), name


def test_the_noise_of_a_step_is_multiplied_by_the_draws_factor():
    sizes = []
    for factor in (1.0, 0.25, 3.0):
        model = small.gpt2()
        before = snapshot(model)
        step_of(model, [replace(NOTHING, noise_factor=factor)], Aggregation(0.5, 2.0, 0.1))(0)
        sizes.append(torch.cat([v.flatten() for v in moved(before, model).values()]))
    step = 0.1 * step_of_grid(1.0)  # of what moved with factor 1, whose noise has the size 0.5 times 2
    torch.testing.assert_close(sizes[1], 0.25 * sizes[0], rtol=1e-3, atol=step)
    torch.testing.assert_close(sizes[2], 3.0 * sizes[0], rtol=1e-3, atol=4 * step)


@pytest.fixture
def unlucky(monkeypatch):
    """The loss of every row that begins with token 2 is no number, and neither is its gradient."""
    row_loss = Task.row_loss

    def spoilt(self, model, batch):
        bad = batch["input_ids"][:, 0] == 2
        return row_loss(self, model, batch) * torch.where(bad, torch.nan, 1.0)

    monkeypatch.setattr(Task, "row_loss", spoilt)


@pytest.mark.parametrize("micro_tokens", [8192, 20])
def test_a_unit_without_a_finite_gradient_counts_as_zero_and_ends_nothing(unlucky, micro_tokens):
    """micro_tokens 20 cuts the unit into parts."""
    moves, draw = [], some_draw()
    for row in draw.rows:
        row[0] = 3
    for bad in (False, True):
        if bad:
            draw.rows[2][0] = 2  # of unit 1, which has rows 1 to 3
        else:
            whole, draw.rows[1:4] = draw.rows[1:4], []
            short = Draw(draw.rows, np.array([0, 1, 1]), np.array([1, 0.5, 0.5], np.float32))
        model = small.gpt2()
        before = snapshot(model)
        step = step_of(
            model, [draw if bad else short], Aggregation(0.05, 0.7, 0.25), micro_tokens=micro_tokens
        )
        report = step(0)
        moves.append(moved(before, model))
        assert report.left_out == int(bad)
        assert np.isfinite(report.loss)
        if not bad:
            draw.rows[1:1] = whole
    for name, expected in moves[0].items():
        assert torch.allclose(moves[1][name], expected, atol=2e-6, rtol=1e-4), name


def test_where_no_unit_has_a_finite_gradient_a_step_is_noise(unlucky):
    draw = some_draw()
    for row in draw.rows:
        row[0] = 2
    model = small.gpt2()
    before = snapshot(model)
    report = step_of(model, [draw], Aggregation(0.5, 2.0, 0.1))(0)
    assert (report.left_out, report.loss) == (3, None)
    for name, got in moved(before, model).items():
        values = KEY.stream("main", "noise", 0, name).normal(got.numel()).float().view(got.shape)
        assert torch.allclose(got, values * 0.1, atol=0.1 * step_of_grid(1.0)), name


def test_the_mean_over_gradients_spans_a_small_part_of_the_run_unless_the_config_says_how_much():
    def first(steps, **keys):
        raw = {
            "data": {"train": "x", "unit": "u"},
            "privacy": {"epsilon": 8.0},
            "train": {"steps": steps, **keys},
        }
        return Optimisation.of(check(raw).train).betas

    found = [first(steps)[0] for steps in (1, 8, 100, 200, 500, 700, 10_000)]
    assert found == [0.3, 0.3, 0.3, 0.65, 0.86, 0.9, 0.9]
    assert first(8)[1] == 0.999
    assert first(8, betas=[0.9, 0.99]) == (0.9, 0.99)
    made = check(
        {"data": {"train": "x", "unit": "u"}, "privacy": {"epsilon": 8.0}, "train": {"steps": 700}}
    ).train
    assert Optimisation.of(made, steps=8).betas[0] == 0.3  # of a stage


FACTORS = {"wpe": 3.0, "ln_*": 0.5, "h.1": 4.0}


@pytest.mark.parametrize("optimizer", ["tensor-adamw", "adamw", "sgd"])
def test_tensors_move_at_the_rates_of_their_names(optimizer):
    def steps(factors):
        model = small.gpt2()
        before = snapshot(model)
        optimisation = Optimisation(
            steps=3, learning_rate=1e-3, schedule="linear", rate_factors=factors, optimizer=optimizer
        )
        step = step_of(model, [NOTHING], Aggregation(1.0, 1.0, 1.0), optimisation=optimisation)
        rates = [step(number).learning_rate for number in range(3)]
        return rates, moved(before, model)

    (plain_rates, plain), (rates, factored) = steps({}), steps(FACTORS)
    assert rates == pytest.approx(plain_rates)
    for name, factor in (
        ("transformer.wpe.weight", 3.0),
        ("transformer.wte.weight", 1.0),
        ("transformer.h.0.ln_1.weight", 0.5),
        ("transformer.h.1.ln_1.weight", 2.0),
        ("transformer.h.1.mlp.c_fc.weight", 4.0),
    ):
        assert torch.allclose(factored[name], factor * plain[name], atol=1e-6), name
        assert plain[name].abs().max() > 1e-4, name


def test_a_scheduler_of_a_program_keeps_the_factors():
    model = small.gpt2()
    before = snapshot(model)
    optimisation = Optimisation(
        steps=2,
        learning_rate=1.0,
        rate_factors={"wte": 10.0},
        optimizer="sgd",
        scheduler_of=lambda made: torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5),
    )
    step = step_of(model, [NOTHING], Aggregation(1.0, 1.0, 1.0), optimisation=optimisation)
    assert [step(0).learning_rate, step(1).learning_rate] == pytest.approx([1.0, 0.5])
    spread = {name: float(found.std()) for name, found in moved(before, model).items()}
    assert spread["transformer.wte.weight"] == pytest.approx(10 * spread["transformer.wpe.weight"], rel=0.2)


def test_a_rate_factor_that_fits_no_tensor_is_refused():
    optimisation = Optimisation(steps=1, rate_factors={"lora_B": 4.0})
    with pytest.raises(InputError, match=r"'lora_B' as a part of its name, between points.*attn.*wte"):
        step_of(small.gpt2(), [NOTHING], Aggregation(1.0, 1.0, 1.0), optimisation=optimisation)


def test_an_optimiser_of_a_program_has_no_rate_factors():
    optimisation = Optimisation(
        steps=1, rate_factors={"wte": 4.0}, optimizer_of=lambda own: torch.optim.SGD(own, lr=1.0)
    )
    with pytest.raises(InputError, match=r"train.rate_factors: .* optimizer"):
        step_of(small.gpt2(), [NOTHING], Aggregation(1.0, 1.0, 1.0), optimisation=optimisation)
