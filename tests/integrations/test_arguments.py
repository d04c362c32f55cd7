"""What TrainingArguments say becomes confide's config."""

import pytest

from confide.integrations import PrivateTrainer
from confide.integrations.arguments import longest_row, scheduler_of
from tests.integrations.world import PRIVACY, arguments, dataset, made, tokenizer


def config(folder, **changes):
    found = PrivateTrainer(
        model=made(),
        args=arguments(folder, **changes),
        train_dataset=dataset(number=12),
        processing_class=tokenizer(),
        privacy=PRIVACY,
    )
    return found.confide_config


def test_each_argument_has_its_key(tmp_path):
    found = config(
        tmp_path / "out", max_steps=50, warmup_steps=5, lr_scheduler_type="cosine", weight_decay=0.1, seed=7,
        adam_beta1=0.8, adam_beta2=0.99, bf16=True, per_device_train_batch_size=6, learning_rate=0.003,
    )  # fmt: skip
    train = found.train
    assert (train.steps, train.warmup, train.batch, train.schedule) == (50, 5, 6, "cosine")
    assert (train.learning_rate, train.weight_decay, train.betas) == (0.003, 0.1, (0.8, 0.99))
    assert (train.optimizer, train.precision, train.seed) == ("adamw", "bf16", 7)
    assert found.run == f"{tmp_path / 'out'}.private"
    assert (found.privacy.mechanism, found.privacy.epsilon, found.data.unit) == ("uls", 8, "author")
    assert found.data.eval is None


@pytest.mark.parametrize(
    ("name", "ours"),
    [("sgd", "sgd"), ("adafactor", "adafactor"), ("adamw_torch", "adamw"), ("adamw_torch_fused", "adamw")],
)
def test_optimisers(tmp_path, name, ours):
    assert config(tmp_path / "out", optim=name).train.optimizer == ours


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3, 0.2])
def test_rates_are_trainers_own_but_for_the_first_of_a_warm_up(tmp_path, kind, warmup):
    import torch
    from transformers import get_scheduler

    from confide.training.optimisation import Optimisation

    args = arguments(tmp_path / "out", max_steps=10, lr_scheduler_type=kind, warmup_steps=warmup)
    assert scheduler_of(args, 10) is None
    ours = Optimisation.of(
        config(tmp_path / "out", max_steps=10, lr_scheduler_type=kind, warmup_steps=warmup).train
    )
    optimizer = torch.optim.SGD(made().parameters(), lr=1e-2)
    theirs = get_scheduler(kind, optimizer, args.get_warmup_steps(10), 10)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    length = ours.warmup
    assert length == (0 if kind == "constant" else round(warmup * 10 if warmup < 1 else warmup))
    assert [ours.rate(step) for step in range(length, 10)] == pytest.approx(rates[length:])
    # Trainer's warm-up begins with a step of rate 0, confide's ends with one of the full rate.
    assert [ours.rate(step) for step in range(length)] == pytest.approx([*rates[1:length], 1e-2][:length])


def test_the_longest_row_never_comes_from_the_rows(tmp_path):
    args = arguments(tmp_path / "out")
    assert longest_row(args, made()) == 64
    args.max_length = 16
    assert longest_row(args, made()) == 16
    args.max_length = 4096
    assert longest_row(args, made()) == 64
