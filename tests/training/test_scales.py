"""`privacy.scales` from the config to the step, the twin, the claim and the audit."""

from dataclasses import replace

import pytest
import torch

import confide
from confide.config.loading import check
from confide.config.train_section import EMBEDDINGS
from confide.privacy.mechanisms.values import Aggregation
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training.optimisation import RATE_FACTOR, Optimisation
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import config

SCALES = {EMBEDDINGS: 3.0, "h.0": 0.5}


def job(folder, twin=False, **changes):
    return Job.of(Run(config(folder, privacy__scales=SCALES, **changes), twin), Console(quiet=True))


def test_a_scaled_tensor_moves_faster_by_its_scale(tmp_path):
    made = job(tmp_path / "run", train__rate_factors={EMBEDDINGS: 0.5})
    runner = made.phase_runner()
    runner(0)
    factors = {
        id(each): group[RATE_FACTOR]
        for group in runner._steps[0].optimizer.param_groups
        for each in group["params"]
    }
    parameters = dict(made.model.named_parameters())
    assert factors[id(parameters["transformer.wte.weight"])] == 1.5
    assert factors[id(parameters["transformer.h.0.mlp.c_fc.weight"])] == 0.5
    assert factors[id(parameters["transformer.ln_f.weight"])] == 1.0


def test_a_step_is_that_of_a_model_written_with_the_scale_in_front(tmp_path):
    """W = W_0 + s U: the step of U by plain SGD, with U's gradients clipped, moves W as the scale does."""
    plain = {"train__optimizer": "sgd", "train__learning_rate": 100.0, "privacy__noise_multiplier": 0.0}
    scaled, alone = (
        job(tmp_path / "a", **plain),
        Job.of(Run(config(tmp_path / "b", **plain)), Console(quiet=True)),
    )
    before = {name: p.detach().clone() for name, p in scaled.model.named_parameters()}
    once = alone.model
    scale = {name: 3.0 if "wte" in name else 0.5 if ".h.0." in name else 1.0 for name in before}
    runner = scaled.phase_runner()
    runner(0)
    step = runner._steps[0]
    draw, aggregation = step.sampler.draw(0), step.aggregation
    expected = {name: torch.zeros_like(p) for name, p in before.items()}
    once.train()
    for unit in range(draw.groups):
        once.zero_grad()
        for row in [i for i in range(len(draw.rows)) if draw.group[i] == unit]:
            ids = torch.tensor(draw.rows[row].astype("int64"))[None]
            loss = torch.nn.functional.cross_entropy(once(input_ids=ids).logits[0, :-1], ids[0, 1:])
            (float(draw.weight[row]) * loss).backward()
        of_u = {name: scale[name] * p.grad for name, p in once.named_parameters() if p.grad is not None}
        norm = sum(float(g.double().square().sum()) for g in of_u.values()) ** 0.5
        for name, g in of_u.items():
            expected[name] += min(1.0, aggregation.clip_norm / norm) * g
    rate = step.optimisation.rate(0)
    for name, p in scaled.model.named_parameters():
        moved = (p.detach() - before[name]).double()
        wanted = -rate * scale[name] * aggregation.scale * expected[name].double()
        assert (moved - wanted).norm() <= 1e-3 * wanted.norm() + 1e-9, name


def test_the_twin_has_none(tmp_path):
    made = job(tmp_path / "run", twin=True)
    [phase] = made.phases()
    assert phase.mechanism.aggregation(made.setting.parameters, 0.0).scales == ()
    assert Run(made.run.config).config.privacy.scales == SCALES
    assert not any("multiplied" in fact for fact in made.guarantee(24).public_facts)


def test_the_claim_says_what_is_multiplied(tmp_path):
    facts = job(tmp_path / "run").guarantee(24).public_facts
    said = "in steps that clip, gradients are multiplied before that, in every row alike: of the token embeddings "
    assert said + "by 3.0, of tensors named h.0 by 0.5; where several fit, by their product" in facts
    without = Job.of(Run(config(tmp_path / "plain")), Console(quiet=True)).guarantee(24).public_facts
    assert not any("multiplied" in fact for fact in without)


def test_an_observer_of_the_sums_multiplies_the_canaries_too(tmp_path):
    raw = config(tmp_path / "run", privacy__scales=SCALES).model_dump(mode="json", exclude={"canaries"})
    made = Job.of(Run(check(raw | {"canaries": {"count": 2, "white_box": True}})), Console(quiet=True))
    [phase] = made.phases()
    scales = made.readings(phase).scales
    assert scales["transformer.wte.weight"] == 3.0
    assert scales["transformer.ln_f.weight"] == 1.0


def test_other_scales_have_other_noise():
    plain = Aggregation(1.0, 1.0, 0.1)
    scaled, other = (replace(plain, scales=((EMBEDDINGS, by),)) for by in (2.0, 3.0))
    assert len({each.binding() for each in (plain, scaled, other)}) == 3


def test_a_run_goes_on_with_the_same_noise_whatever_the_order_of_its_scales(tmp_path):
    """Another order is no other config, so the run goes on; a step that is taken again must have its own noise."""
    first, again = (
        Job.of(Run(config(tmp_path / "run", secret=True, privacy__scales=dict(items))), Console(quiet=True))
        for items in (SCALES.items(), reversed(SCALES.items()))
    )
    noise = []
    for made in (first, again):
        runner = made.phase_runner()
        runner(0)
        noise.append({name: p.detach().clone() for name, p in made.model.named_parameters()})
    assert all(torch.equal(noise[0][name], noise[1][name]) for name in noise[0])


def test_a_scheduler_that_sets_one_rate_for_all_is_refused():
    optimisation = Optimisation(
        steps=2,
        optimizer="sgd",
        scheduler_of=lambda made: torch.optim.lr_scheduler.OneCycleLR(made, max_lr=1.0, total_steps=2),
    )
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in ("a", "b")}
    with pytest.raises(InputError, match=r"OneCycleLR gives all tensors one rate, and privacy\.scales"):
        optimisation.scheduler(optimisation.build(parameters, scales={"a": 4.0}))


def test_a_programs_own_optimiser_is_refused_before_the_folder_is_bound(tmp_path):
    settings = config(tmp_path / "run", privacy__scales=SCALES)
    with pytest.raises(InputError, match=r"privacy\.scales: the program's own optimizer"):
        confide.train(settings, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert not (tmp_path / "run" / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize("mechanism", ["none", "redacted", "concentration"])
def test_where_nothing_is_clipped_no_tensor_can_count_more(tmp_path, mechanism):
    raw = config(tmp_path / "run").model_dump(mode="json")
    raw["privacy"] |= {"mechanism": mechanism, "scales": SCALES}
    with pytest.raises(InputError, match=f"privacy.scales: mechanism {mechanism} clips nothing"):
        check(raw)


@pytest.mark.parametrize("scales", [{"wte": 1e39}, {"wte": 1e4, EMBEDDINGS: 1e4}, {"h.0": 1e-7}])
def test_a_scale_that_numbers_cannot_hold_is_refused(tmp_path, scales):
    """Each gradient would be infinite, and so count as nothing; or a tensor would not move."""
    with pytest.raises(InputError, match=r"privacy\.scales: .* possible are 1e-06 to 1000000\.0"):
        Job.of(Run(config(tmp_path / "run", privacy__scales=scales)), Console(quiet=True))
    assert not (tmp_path / "run" / "run" / "ledger.jsonl").exists()


def test_a_factor_must_be_positive(tmp_path):
    raw = {"model": str(small.config_file(tmp_path)), "tokenizer": "bundled"}
    raw |= {"data": {"train": "x", "unit": "u"}, "privacy": {"epsilon": 8.0, "scales": {EMBEDDINGS: 0.0}}}
    with pytest.raises(InputError, match=r"privacy\.scales: 0\.0 is not valid"):
        check(raw)
