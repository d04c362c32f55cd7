"""Run by tests/two_ranks_all.py: what two ranks compute against what one process computes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from confide.clipping import NonFiniteGradient, sums
from confide.clipping.sums import Sums
from confide.config import registry
from confide.config.model_sections import Adapter
from confide.config.train_section import Average
from confide.data.unit_graph import UnitGraph
from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_split, part_of, shard, whole
from confide.models import adapters
from confide.models import loading as models
from confide.models.fast import onednn as products
from confide.models.fast.activations import install_fast_layers
from confide.privacy.correlated_noise import Banded
from confide.privacy.mechanisms.values import Aggregation
from confide.privacy.sampling import Draw
from confide.randomness.streams import RunKey
from confide.runs import job
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.training import evaluation, schedule
from confide.training.averaging import Averages
from confide.training.gradient_sum import GradientSum
from confide.training.optimisation import Optimisation
from confide.training.step import PrivateStep
from confide.training.tasks import Task
from tests import small
from tests.test_resume import config
from tests.training.test_memory_fit import ONCE, failing_once

# Noise of a secret key takes a branch of its own: each half of the models has one of the two.
PUBLISHED, SECRET = RunKey.from_text("two ranks"), RunKey(bytes(range(32)))
NOTHING = Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32))
schedule.EXCHANGE = 0  # units of these sizes would not be worth a message
ALL = "CONFIDE_TEST_ALL" in os.environ  # every family, before a release
RECEIVED: list[int] = []  # a mark for each tensor of a piece that this rank was sent
WIDE, NARROW = 4096, 20  # tokens a micro-batch: NARROW cuts the larger units into parts
LONGEST = 12
WHOLE = "fsdp, whole gradients"
SIZES = ((1, 3, 2, 5, 1), (7,), (1,) * 9)  # rows of each unit; of (7,) one rank has none


def drawn(sizes: tuple[int, ...], seed: int) -> Draw:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(2, 40, generator.integers(3, LONGEST)) for _ in range(sum(sizes))]
    group = np.repeat(np.arange(len(sizes)), sizes)
    return Draw(rows, group, (1 / np.array(sizes)[group]).astype(np.float32))


TAKEN: list[int] = []  # a mark for each product that oneDNN took


def counted(product):
    def taken(*factors):
        TAKEN.append(1)
        return product(*factors)

    return taken


class Fixed:
    """Draws what it is told."""

    def __init__(self, draws: list[Draw]):
        self.draws = draws

    def draw(self, step: int) -> Draw:
        return self.draws[step]


def model_of(family: str, adapter: str) -> torch.nn.Module:
    torch.manual_seed(0)
    task = "masked-lm" if family == "bert" else "causal-lm"
    auto = AutoModelForMaskedLM if family == "bert" else AutoModelForCausalLM
    model = auto.from_config(small.family(family, vocab_size=small.VOCABULARY))
    for module in model.modules():
        models.drop_nothing(module)
    if family == "llama":
        install_fast_layers(model)
    model = adapters.adapt(model, Adapter(kind=adapter, rank=4), task)
    with torch.no_grad():  # a LoRA factor starts at zero, and with it the gradient of its partner
        for parameter in models.trainable(model).values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def task_of(model: torch.nn.Module) -> Task:
    extra = frozenset(models.accepted(model))
    kind = "masked-lm" if model.config.model_type == "bert" else "causal-lm"
    return registry.task(kind)(0, 1, small.VOCABULARY, (0, 1), extra, False, torch.device("cpu"))


def steps(
    model, draws: list[Draw], clip: float | None, micro_tokens: int, ranks: Ranks, bands: int = 1
) -> tuple[PrivateStep, list]:
    # Positions count more in the norm than the rest, and move faster.
    has_positions = "transformer.wpe.weight" in models.trainable(model)
    scales = (("wpe", 3.0),) if clip and has_positions else ()
    aggregation = Aggregation(clip, 0.5 if clip else 0.0, 0.25, correlation=Banded(bands), scales=scales)
    # Without noise AdamW would blow up rounding where a gradient is zero, such as that of a key's bias.
    kind = "sgd" if not clip else "tensor-adamw" if bands == 1 else "adamw"
    # The optimiser then has its parameters in another order than the model.
    factors = {"wpe": 2.0} if has_positions else {}
    optimisation = Optimisation(len(draws), 0.01, optimizer=kind, rate_factors=factors)
    task = task_of(model)
    if task.facts.is_causal:  # one process, which they are compared with, has a line for each row
        task = replace(task, packs_rows=ranks.several)
    step = PrivateStep(
        model,
        task,
        Fixed(draws),
        aggregation,
        optimisation,
        PUBLISHED if model.config.model_type in ("llama", "bert") else SECRET,
        micro_tokens=micro_tokens,
        ranks=ranks,
    )
    return step, [step(i) for i in range(len(draws))]


def moved(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([whole(p.detach()).flatten() for p in models.trainable(model).values()])


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm())


DRAWS = [drawn(sizes, seed) for seed, sizes in enumerate(SIZES)] + [NOTHING]


def alone(
    family: str, adapter: str, clip: float | None, micro_tokens: int, bands: int
) -> tuple[torch.Tensor, list]:
    """How far a few steps of one process move the weights, and their reports."""
    model = model_of(family, adapter)
    start = moved(model)
    _, reports = steps(model, DRAWS, clip, micro_tokens, Ranks(), bands)
    return moved(model) - start, reports


@contextmanager
def held(kind: str) -> Iterator[None]:
    """Let each rank of a split model hold whole gradients if `kind` says so, however small the model is."""
    with mock.patch.object(sums, "_SHARE", 0 if kind == WHOLE else 8):
        yield


def trained(
    kind: str,
    family: str,
    adapter: str,
    clip: float | None,
    micro_tokens: int,
    bands: int,
    ranks: Ranks,
    of_one: tuple[torch.Tensor, list],
) -> dict:
    """How far a few steps of two ranks move the weights apart from those of one process."""
    expected, reports = of_one
    together = model_of(family, adapter)
    start = moved(together)
    if kind != "ddp":
        shard(together, ranks)
    TAKEN.clear()
    with held(kind):
        step, found = steps(together, DRAWS, clip, micro_tokens, ranks, bands)
    assert step.gradients.clipped.are_sums_spread == (kind == "fsdp")
    gaps = [
        abs((a.loss or 0) - (b.loss or 0)) + abs((a.clipped or 0) - (b.clipped or 0))
        for a, b in zip(reports, found, strict=True)
    ]
    if family == "llama" and products.exist():
        assert TAKEN, "no linear layer went through oneDNN"
    return {"weights": apart(moved(together) - start, expected), "reports": max(gaps)}


def averaged(kind: str, ranks: Ranks) -> dict:
    """The mean of the weights over the steps of two ranks beside that of one process; then again from its state."""

    def mean(model: torch.nn.Module, among: Ranks, again: bool) -> torch.Tensor:
        averages = Averages(models.trainable(model), Average(kind="ema", share=0.5), len(DRAWS))
        step, _ = steps(model, [], 0.5, WIDE, among)
        step.sampler = Fixed(DRAWS)
        for i in range(len(DRAWS)):
            step(i)
            averages.update(i)
            if again:  # as a resumed run has it
                state = averages.state()
                averages = Averages(models.trainable(model), Average(kind="ema", share=0.5), len(DRAWS))
                averages.restore(state)
        with averages.applied():
            return moved(model)

    alone, together = model_of("gpt2", "full"), model_of("gpt2", "full")
    start = moved(alone)
    expected = mean(alone, Ranks(), again=False)
    if kind == "fsdp":
        shard(together, ranks)
    found = mean(together, ranks, again=True)
    return {
        "weights": apart(found - start, expected - start),
        "moved": 0 if apart(expected, start) > 1e-4 else 1,
    }


def resumed(ranks: Ranks) -> dict:
    """Two ranks leave a state that one process goes on from, and the other way round."""
    draws = [drawn(sizes, seed) for seed, sizes in enumerate(SIZES)]
    straight = model_of("gpt2", "full")
    start = moved(straight)
    steps(straight, draws, 0.5, WIDE, Ranks())
    result = {}
    for name, (before, after) in {"split to alone": (True, False), "alone to split": (False, True)}.items():
        first, second = model_of("gpt2", "full"), model_of("gpt2", "full")
        for model, in_parts in ((first, before), (second, after)):
            if in_parts:
                shard(model, ranks)
        step, _ = steps(first, draws[:2], 0.5, WIDE, ranks if before else Ranks())
        kept = [step.state()]
        torch.distributed.broadcast_object_list(kept)
        step, _ = steps(second, [], 0.5, WIDE, ranks if after else Ranks())
        step.restore(kept[0])
        step.sampler = Fixed(draws)
        step(2)
        result[name] = apart(moved(second) - start, moved(straight) - start)
    return result


def evaluated(folder: Path, ranks: Ranks) -> dict:
    """Held-out losses of two ranks, the model whole and split, with more and with fewer batches than ranks."""
    with ranks.first_ahead():
        graph = small.graph(folder, [3, 4, 2]) if ranks.first else UnitGraph.open(folder)
    model, split = small.gpt2(), small.gpt2()
    shard(split, ranks)
    expected = evaluation.row_losses(model, small.task(), graph)
    result = {}
    for micro_tokens in (16, WIDE):
        for name, one in (("whole", model), ("split", split)):
            found = evaluation.row_losses(one, small.task(), graph, micro_tokens, ranks=ranks)
            gaps = [float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)]
            result[f"{name} {micro_tokens}"] = max(gaps)
    left_whole = [name for name, p in split.named_parameters() if not is_split(p)]
    return result | {"parameters left whole by a forward pass": len(left_whole)}


def memory(ranks: Ranks) -> dict:
    """The second rank's memory does not suffice for large micro-batches: both start over, the result is the same."""
    draws = [drawn(sizes, seed) for seed, sizes in enumerate(SIZES)]
    alone, together = model_of("gpt2", "full"), model_of("gpt2", "full")
    start = moved(alone)
    steps(alone, draws, 0.5, WIDE, Ranks())
    said: list[str] = []
    step, _ = steps(together, [], 0.5, 128, ranks)
    step.sampler, step.gradients.say, honest = Fixed(draws), said.append, step.task.row_loss

    def scarce(model, batch):
        if ranks.number == 1 and batch["input_ids"].numel() > 40:
            raise torch.OutOfMemoryError("out of memory")
        return honest(model, batch)

    object.__setattr__(step.task, "row_loss", scarce)
    for i in range(len(draws)):
        step(i)
    return {
        "weights": apart(moved(together) - start, moved(alone) - start),
        "halved": step.gradients.micro_tokens,
        "said": len(said),
    }


def memory_of_sums(ranks: Ranks) -> dict:
    """The first rank's memory does not suffice for the sum of a unit that is larger than a micro-batch."""
    draws = [drawn((12, 12, 12), 1)]
    alone, together = model_of("gpt2", "full"), model_of("gpt2", "full")
    start = moved(alone)
    steps(alone, draws, 0.5, WIDE, Ranks())
    step, _ = steps(together, [], 0.5, 96, ranks)
    step.sampler, honest, failed = Fixed(draws), Sums.allocate, []

    def scarce(self):
        if ranks.first and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("out of memory")
        honest(self)

    with mock.patch.object(Sums, "allocate", scarce):
        step(0)
    return {
        "weights": apart(moved(together) - start, moved(alone) - start),
        "failed": len(failed),
        "halved": step.gradients.micro_tokens,
    }


def memory_after_passes(kind: str, ranks: Ranks) -> dict:
    """The second rank's memory does not suffice at four places, one a step, before the weights move."""
    draws, said = [drawn(sizes, seed) for seed, sizes in enumerate((*SIZES, (2, 4)))], []
    alone, together = model_of("gpt2", "full"), model_of("gpt2", "full")
    start = moved(alone)
    steps(alone, draws, 0.5, WIDE, Ranks())
    if kind != "ddp":
        shard(together, ranks)
    with held(kind):
        step, _ = steps(together, [], 0.5, WIDE, ranks)
    step.sampler, step.gradients.say = Fixed(draws), said.append
    for number, place in enumerate(ONCE.values()):
        with nullcontext() if ranks.first else failing_once(place):
            step(number)
    return {
        "weights": apart(moved(together) - start, moved(alone) - start),
        "halved": step.gradients.micro_tokens,
        "said": len(said),
    }


def parts(ranks: Ranks) -> dict:
    """Every element of a split parameter lies in one part, where `first_index` says."""
    model = model_of("gpt2", "full")
    shapes = {name: p.numel() for name, p in model.named_parameters()}
    values = {name: torch.arange(n, dtype=torch.float32) for name, n in shapes.items()}
    shard(model, ranks)
    wrong = 0
    for name, parameter in model.named_parameters():
        given = values[name].view(parameter.shape)
        wrong += int(not torch.equal(whole(part_of(given, parameter)), given))
    return {"wrong": wrong, "parameters": len(shapes)}


def pieces(kind: str, ranks: Ranks) -> dict:
    """Units cut into pieces on both ranks: of several, and of one alone; twice, as memory does not suffice at first."""
    RECEIVED.clear()
    draws = [drawn((40, 30, 35), 1), drawn((50,), 2)]
    alone, together = model_of("gpt2", "full"), model_of("gpt2", "full")
    start, honest, failed = moved(alone), GradientSum._allocate, []
    _, reports = steps(alone, draws, 0.5, WIDE, Ranks())

    def scarce(self):
        honest(self)
        if not ranks.first and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("out of memory")

    def counted(self, into, sender):
        RECEIVED.append(sender)
        receive(self, into, sender)

    receive = Ranks.receive
    if kind == WHOLE:
        shard(together, ranks)
    with (
        held(kind),
        mock.patch.object(GradientSum, "_allocate", scarce),
        mock.patch.object(Ranks, "receive", counted),
    ):
        step, found = steps(together, draws, 0.5, 1024, ranks)
    received = torch.tensor([len(RECEIVED)])
    torch.distributed.all_reduce(received)
    names = len(models.trainable(together))
    return {
        "weights": apart(moved(together) - start, moved(alone) - start),
        "clipped": max(abs(a.clipped - b.clipped) for a, b in zip(reports, found, strict=True)),
        "units": [report.units for report in found],
        "received": int(received) // names,
        "left": len(step.gradients._pieces) + len(step.gradients._begun),
        "halved": step.gradients.micro_tokens,
    }


def not_finite(ranks: Ranks) -> dict:
    """Without a clip norm, a sum that is not finite on one rank's part of a split model ends both ranks."""
    model = model_of("gpt2", "full")
    shard(model, ranks)
    step, _ = steps(model, [], None, WIDE, ranks)
    clipped = step.gradients.clipped
    name = clipped.trainable[0]
    if not ranks.first:
        clipped._sums[name].fill_(torch.nan)
    try:
        clipped.take()
        ended = False
    except NonFiniteGradient:
        ended = True
    return {"all ended": ranks.least(int(ended)), "spread": clipped.are_sums_spread}


def agreed(ranks: Ranks) -> dict:
    """What the ranks say to each other, and what is split of a model."""
    model = model_of("gpt2", "full")
    shard(model, ranks)
    return {
        "least": ranks.least(4 - ranks.number),
        "alike": [ranks.alike("the same"), ranks.alike(f"rank {ranks.number}")],
        "split blocks": sum(isinstance(part, FSDPModule) for part in model.transformer.h),
        "blocks": len(model.transformer.h),
    }


def interrupted(folder: Path, ranks: Ranks) -> dict:
    """A run of which only the second rank is told to stop, in its third step: both stop after the same one."""
    run = Run(config(folder, train__steps=6))

    class Told(PrivateStep):
        def __call__(self, step, before_update=None):
            if step == 2 and not ranks.first:
                signal.raise_signal(signal.SIGINT)
            return super().__call__(step, before_update)

    with mock.patch.object(job, "PrivateStep", Told):
        outcome = fine_tune(run, ranks=ranks)
    return {"steps": outcome.steps, "finished": outcome.finished}


def combinations() -> Iterator[tuple]:
    """Yield what `trained` is asked: a name, the kind of ranks, family, adapter, clip norm, tokens, bands."""
    few = (("gpt2", "full"), ("bert", "lora"), *((("gemma2", "lora"),) if ALL else ()))
    more = (("gpt2", "lora"), ("llama", "full"), ("gemma2", "full"), ("bert", "full")) if ALL else ()
    for kind, those in (dict.fromkeys(("ddp", "fsdp"), few + more) | {WHOLE: few}).items():
        for family, adapter in those:
            # What sums without clipping is one for all.
            plain = [(None, NARROW)] if family == "gpt2" else []
            for clip, micro_tokens in ((0.5, WIDE), (0.5, NARROW), *plain):
                name = f"{kind} {family} {adapter} clip {clip} tokens {micro_tokens}"
                yield name, kind, family, adapter, clip, micro_tokens, 1
        if kind != WHOLE:
            yield f"{kind} with noise correlated over 3 steps", kind, "gpt2", "full", 0.5, WIDE, 3


def each_alone(keys: list[tuple], ranks: Ranks) -> dict[tuple, tuple[torch.Tensor, list]]:
    """What one process computes: each rank takes its share of the keys, and tells the others."""
    told: list = [None] * ranks.size
    own = {key: alone(*key) for at, key in enumerate(keys) if at % ranks.size == ranks.number}
    torch.distributed.all_gather_object(told, own)
    return {key: found for those in told for key, found in those.items()}


def find(folder: Path, ranks: Ranks) -> dict:
    if products.exist():
        products.are_faster, products._NARROW, products._FEW = lambda: True, 1, 1
        products.product = counted(products.product)
    found: dict[str, dict] = {}
    asked = list(combinations())
    expected = each_alone(list(dict.fromkeys(tuple(key) for _, _, *key in asked)), ranks)
    for name, kind, *key in asked:
        found[name] = trained(kind, *key, ranks, expected[tuple(key)])
    for kind in ("ddp", "fsdp"):
        found[f"{kind} averaged"] = averaged(kind, ranks)
    found["resumed"] = resumed(ranks)
    found["evaluated"] = evaluated(folder / "graph", ranks)
    found["memory"] = memory(ranks)
    found["memory of sums"] = memory_of_sums(ranks)
    for kind in ("ddp", "fsdp", WHOLE):
        found[f"memory after passes, {kind}"] = memory_after_passes(kind, ranks)
    found["parts"] = parts(ranks)
    found["agreed"] = agreed(ranks)
    found["not finite"] = not_finite(ranks)
    found["interrupted"] = interrupted(folder, ranks)
    for kind in ("ddp", WHOLE):
        found[f"pieces, {kind}"] = pieces(kind, ranks)
    return found
