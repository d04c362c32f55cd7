"""Learning rates of single tensors: which have a factor."""

from itertools import product

import pytest
import torch

from confide.config.loading import check
from confide.config.train_section import EMBEDDINGS
from confide.models.loading import load_model, token_embeddings
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training.optimisation import RATE_FACTOR, Optimisation, factors_of
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.command import World, confide, tiny_model
from tests.test_resume import config

NAMES = ["transformer.wte.weight", "transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_fc.weight"]


@pytest.mark.parametrize(
    ("stated", "factors"),
    [
        ({}, [1, 1, 1]),
        ({"wte": 3.0}, [3, 1, 1]),
        ({"h.1": 3.0, "mlp": 2.0}, [1, 1, 6]),
        ({"ln_*": 0.5, "h": 4.0}, [1, 2, 4]),
        ({EMBEDDINGS: 3.0}, [3, 1, 1]),
        ({EMBEDDINGS: 3.0, "weight": 0.5}, [1.5, 0.5, 0.5]),
    ],
)
def test_factors_follow_the_parts_of_names(stated, factors):
    assert list(factors_of(NAMES, stated, {NAMES[0]}).values()) == factors


@pytest.mark.parametrize("word", ["w", "transformer.h.2", "wte_", EMBEDDINGS])
def test_a_word_that_fits_nothing_is_refused(word):
    """A part of a part is no part: `h.1` is not the eleventh block, and a model may have no embeddings that train."""
    with pytest.raises(InputError, match=r"train\.rate_factors"):
        factors_of([*NAMES, "transformer.h.11.ln_1.weight"], {word: 2.0})


def test_a_word_nearly_right_is_suggested():
    with pytest.raises(InputError, match=r"did you mean 'embeddings'\?"):
        factors_of(NAMES, {"embedding": 3.0}, {NAMES[0]})


def test_a_wrong_word_is_told_by_plan_and_binds_no_folder(tmp_path):
    world = World(tmp_path, tiny_model(tmp_path))
    for verb, key in product(("plan", "train"), ("train.rate_factors", "privacy.scales")):
        result = confide(verb, world.path, f"{key}={{embedding: 3.0}}")
        assert result.code != 0
        assert f"{key}: no tensor" in result.err
    assert confide("train", world.path).code == 0


@pytest.mark.parametrize("kind", small.FAMILIES)
def test_every_family_tells_its_token_embeddings(kind, tmp_path):
    task = "causal-lm" if kind not in ("bert", "roberta") else "masked-lm"
    folder = small.saved(tmp_path / kind, kind, task)
    raw = {"model": str(folder), "tokenizer": "bundled", "task": task, "privacy": {"epsilon": 8.0}}
    raw["data"] = {"train": "x", "unit": "u", "max_length": 32}
    model = load_model(check(raw))
    [name] = token_embeddings(model)
    assert model.get_parameter(name) is model.get_input_embeddings().weight
    adapted = load_model(check(raw | {"adapter": {"kind": "lora", "rank": 2}}))
    assert token_embeddings(adapted) == frozenset()


def test_a_model_that_does_not_tell_has_none():
    class Own(torch.nn.Linear):
        def get_input_embeddings(self):
            return None

    assert token_embeddings(torch.nn.Linear(2, 2)) == token_embeddings(Own(2, 2)) == frozenset()


def test_the_factors_of_a_config_reach_the_optimiser(tmp_path):
    settings = config(tmp_path / "run", train__rate_factors={EMBEDDINGS: 3.0})
    job = Job.of(Run(settings), Console(quiet=True))
    runner = job.phase_runner()
    runner(0)
    first, second = runner._steps[0].optimizer.param_groups
    assert (first[RATE_FACTOR], second[RATE_FACTOR]) == (3.0, 1.0)
    assert [id(each) for each in first["params"]] == [id(job.model.get_input_embeddings().weight)]
    assert first["lr"] == pytest.approx(3 * second["lr"])


def test_a_scheduler_that_sets_one_rate_for_all_is_refused():
    optimisation = Optimisation(
        steps=2,
        optimizer="sgd",
        rate_factors={"wte": 3.0},
        scheduler_of=lambda made: torch.optim.lr_scheduler.OneCycleLR(made, max_lr=1.0, total_steps=2),
    )
    parameters = {"wte.weight": torch.nn.Parameter(torch.zeros(1)), "b": torch.nn.Parameter(torch.zeros(1))}
    with pytest.raises(InputError, match="OneCycleLR gives all tensors one rate"):
        optimisation.scheduler(optimisation.build(parameters))


def test_a_programs_own_optimiser_and_scheduler_may_have_several_rates():
    def own(parameters):
        return torch.optim.SGD([{"params": parameters[:1], "lr": 1.0}, {"params": parameters[1:], "lr": 0.1}])

    optimisation = Optimisation(
        steps=2, optimizer_of=own, scheduler_of=lambda made: torch.optim.lr_scheduler.StepLR(made, 1)
    )
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in ("a", "b")}
    optimizer = optimisation.build(parameters)
    assert optimisation.scheduler(optimizer) is not None
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.1]
