"""Learning rates of single tensors: which have a factor, and where the default applies."""

import pytest
import torch
import yaml

from confide.config.loading import check
from confide.models.loading import load_model, token_embeddings
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.training.optimisation import EMBEDDINGS, LONGER, RATE_FACTOR, factors_of, rate_factors_of
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config

NAMES = ["transformer.wte.weight", "transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_fc.weight"]
DEFAULT = {EMBEDDINGS: LONGER}


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


@pytest.mark.parametrize(
    ("changes", "noised", "is_own", "factors"),
    [
        ({}, True, False, DEFAULT),
        ({}, False, False, {}),
        ({}, True, True, {}),
        ({"train": {"optimizer": "adamw"}}, True, False, {}),
        ({"train": {"rate_factors": {}}}, True, False, {}),
        ({"train": {"rate_factors": {"wte": 2.0}}}, False, False, {"wte": 2.0}),
        ({"adapter": {"kind": "lora"}}, True, False, {}),
        ({"task": "masked-lm"}, True, False, {}),
    ],
)
def test_the_default_is_of_what_was_measured(changes, noised, is_own, factors):
    raw = {"data": {"train": "x", "unit": "u"}, "privacy": {"epsilon": 8.0}} | changes
    assert rate_factors_of(check(raw), noised, is_own) == factors


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
    assert token_embeddings(torch.nn.Linear(2, 2)) == frozenset()


def groups(run: Run) -> list[tuple[float, int]]:
    """The factor of each group of a run's optimiser, and how many weights it has."""
    runner = Job.of(run, Console(quiet=True)).phase_runner()
    runner(0)
    found = runner._steps[0].optimizer.param_groups
    return [(group[RATE_FACTOR], sum(each.numel() for each in group["params"])) for group in found]


def test_a_private_run_moves_its_embeddings_faster_and_its_twin_does_not(tmp_path):
    settings = config(tmp_path / "a", train__optimizer="tensor-adamw")
    (factor, many), (other, _) = groups(Run(settings))
    wte = Job.of(Run(settings), Console(quiet=True)).model.get_input_embeddings().weight
    assert (factor, many, other) == (LONGER, wte.numel(), 1.0)
    plain = config(tmp_path / "b", train__optimizer="tensor-adamw", privacy__noise_multiplier=0.0)
    assert [factor for factor, _ in groups(Run(plain))] == [1.0]


def test_a_run_that_an_older_version_began_goes_on_with_one_rate(tmp_path):
    settings = config(tmp_path / "old", train__optimizer="tensor-adamw", train__rate_factors={})
    run = Run(settings)
    fine_tune(run, Console(quiet=True))
    path = run.config_path
    written = yaml.safe_load(path.read_text("utf-8"))
    del written["train"]["rate_factors"]
    path.write_text(yaml.safe_dump(written), "utf-8")
    assert Run.load(run.root).config.train.rate_factors == {}
    with pytest.raises(InputError, match=r"differs in train\.rate_factors"):
        fine_tune(Run(config(tmp_path / "old", train__optimizer="tensor-adamw")), Console(quiet=True))
