"""Micro-batches that fit: what the choice rests on, and what happens when it was wrong."""

import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from confide.config.loading import check
from confide.distributed.ranks import Ranks
from confide.privacy.correlated_noise import INDEPENDENT, Banded, Buffered
from confide.privacy.mechanisms.values import Aggregation
from confide.randomness.noise_grid import step_of as step_of_grid
from confide.runs import job as jobs
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training import memory_fit as physical
from confide.training.optimisation import Optimisation
from confide.utils import memory
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.memory import ran_out
from tests import small
from tests.command import environment
from tests.test_resume import config
from tests.training.test_step import lifted, snapshot, some_draw, step_of

CPU = torch.device("cpu")
TELLS = memory.peak(CPU, lambda: None) is not None
MEGABYTE = 1 << 20


def fit(monkeypatch, peaks, free, later=0, width=16, local_size=1):
    left = list(peaks)
    monkeypatch.setattr(memory, "peak", lambda device, work: left.pop(0))
    monkeypatch.setattr(memory, "free", lambda device: free)
    return physical.fit(small.gpt2(), small.task(), width, Ranks(0, 1, local_size, CPU), later)


@pytest.mark.parametrize(
    ("free", "later", "local_size", "expected"),
    [
        (100 * MEGABYTE, 0, 1, 1024),  # 0.7 * 106 MB / 64 kB a token = 1,187 tokens
        (100 * MEGABYTE, 50 * MEGABYTE, 1, 256),  # 387 tokens
        (100 * MEGABYTE, 0, 2, 512),  # 627 tokens: the other rank on this machine needs as much
        (10_000 * MEGABYTE, 0, 1, 8192),  # more is no faster
        (1 * MEGABYTE, 0, 1, 64),  # 78 tokens
        (0, 6 * MEGABYTE, 1, 16),  # a row has to fit
    ],
)
def test_tokens_follow_from_two_peaks_and_what_is_free(monkeypatch, free, later, local_size, expected):
    each = 64 * 1024  # bytes a token: 2 and 8 rows of 16 tokens differ by 6 MB
    peaks = [0, 32 * each, 128 * each]
    assert fit(monkeypatch, peaks, free, later, local_size=local_size) == expected


@pytest.mark.parametrize("peaks", [[None] * 3, [5, 5, 5]], ids=["not told", "too little to see"])
def test_without_a_measurement_the_most_is_tried(monkeypatch, peaks):
    assert fit(monkeypatch, peaks, 10 * MEGABYTE) == physical.MOST["cpu"]


def test_logits_are_not_too_many_to_count(monkeypatch):
    monkeypatch.setattr(physical, "LOGITS", 100 * small.VOCABULARY)
    assert fit(monkeypatch, [5, 5, 5], 10 * MEGABYTE) == 64


def test_the_probes_are_training_passes(monkeypatch):
    """In eval mode transformers does without gradient checkpointing."""
    model, modes = small.gpt2().eval(), []
    monkeypatch.setattr(memory, "peak", lambda device, work: modes.append(model.training))
    physical.fit(model, small.task(), 16, Ranks(device=CPU), 0)
    assert modes == [True] * 3
    assert not model.training


def test_memory_that_does_not_suffice_for_the_probes_leaves_one_row(monkeypatch):
    def fail(device, work):
        raise MemoryError

    monkeypatch.setattr(memory, "peak", fail)
    assert physical.fit(small.gpt2(), small.task(), 16, Ranks(device=CPU), 0) == 16


_REAL = """
import json, sys, torch
from confide.runs import job as jobs
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.training import memory_fit as physical
from confide.utils import memory
from confide.utils.memory import ran_out
from confide.clipping import ClippedSum
from confide.config.loading import check
from confide.distributed.ranks import Ranks
from tests import small
from transformers import AutoModelForCausalLM
from confide.training.tasks.causal_lm import CausalLM

device, room = torch.device("cpu"), 200 << 20
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_config(small.family("gpt2"))
task = CausalLM(0, 1, small.TOKENS, (0, 1), frozenset({"position_ids"}), False, device)
memory.free = lambda device: room
found = physical.fit(model, task, 64, Ranks(device=device), 0)
clipped = ClippedSum(model, task.row_loss, 1.0)
before = memory.peak(device, lambda: None)
grown = []
for tokens in (found, 4 * found):
    batch = physical._made_up(task, tokens // 64, 64)
    grown.append(memory.peak(device, lambda: physical._pass(clipped, batch)) - before)
print(json.dumps([found, room, *grown]))
"""


@pytest.mark.skipif(not TELLS, reason="the system does not tell the peak of memory")
def test_what_was_chosen_fits_and_four_times_as_much_would_not():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _REAL],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found, room, small_peak, large_peak = json.loads(done.stdout.splitlines()[-1])
    assert small_peak < room < large_peak, (found, room, small_peak, large_peak)


_KNOWN = """
import torch
from confide.utils import memory

device, size = torch.device("cpu"), 64 << 20
torch.ones(1 << 17)  # threads and what else torch needs once
quiet = memory.peak(device, lambda: None)
print(memory.peak(device, lambda: torch.ones(size // 4)) - quiet, memory.free(device))
"""


@pytest.mark.skipif(not TELLS, reason="the system does not tell the peak of memory")
def test_peak_sees_what_work_takes_and_gives_back():
    """In a process of its own: another may have memory left that it takes again."""
    done = subprocess.run(
        [sys.executable, "-c", _KNOWN], env=environment(), capture_output=True, text=True, check=True
    )
    taken, free = map(int, done.stdout.split())
    assert 60 * MEGABYTE < taken < 70 * MEGABYTE
    assert free > 64 * MEGABYTE


# when memory does not suffice after all ------------------------------------------------------------------------
def scarce(step, most):
    """Let the losses of more than `most` tokens at a time run out of memory; counts the failures."""
    honest, failures = step.task.row_loss, []

    def row_loss(model, batch):
        if batch["input_ids"].numel() > most:
            failures.append(batch["input_ids"].numel())
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(model, batch)

    object.__setattr__(step.task, "row_loss", row_loss)
    return failures


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_same_draw_in_halves(noise):
    draw, aggregation = some_draw((1, 3, 2, 1, 1, 4)), Aggregation(0.5, noise, 0.25)
    plenty, little = small.gpt2(), small.gpt2()
    step_of(plenty, [draw], aggregation)(0)
    said: list[str] = []
    step = step_of(little, [draw], aggregation, micro_tokens=64, say=said.append)
    failures = scarce(step, 40)
    report = step(0)
    assert failures
    assert said == ["memory ran out: micro-batches of 32 tokens from now on, on the same draw"]
    assert report.rows == 12
    assert len(draw.rows) == 12
    expected, found = snapshot(plenty), snapshot(little)
    for name in expected:
        assert torch.allclose(expected[name], found[name], atol=1e-6 + lifted(0.5)), name


def test_units_added_before_memory_ran_out_are_not_added_twice():
    """The first micro-batches are small and fit; the sum that holds them already is dropped."""
    draw, aggregation = some_draw((1,) * 12), Aggregation(0.5, 0.0, 1.0)
    plenty, little = small.gpt2(), small.gpt2()
    start = snapshot(plenty)
    step_of(plenty, [draw], aggregation)(0)
    step = step_of(little, [draw], aggregation, micro_tokens=32)
    sizes: list[int] = []
    honest, used_up = step.task.row_loss, []

    def row_loss(model, batch):
        sizes.append(batch["input_ids"].numel())
        if len(sizes) == 3 and not used_up:
            used_up.append(True)
            raise MemoryError
        return honest(model, batch)

    object.__setattr__(step.task, "row_loss", row_loss)
    step(0)
    for name, before in start.items():
        assert torch.allclose(snapshot(plenty)[name] - before, snapshot(little)[name] - before, atol=1e-6), (
            name
        )


ONCE = {  # where memory runs out, once
    "optimiser": "confide.training.optimisation.Optimisation.allocate",
    "room for sums": "confide.clipping.sums.Sums.allocate",
    "sum of all ranks": "confide.clipping.sums.Sums.take",
    "noise": "confide.training.step.add_noise",
}


@contextmanager
def failing_once(place: str) -> Iterator[list[int]]:
    """Let memory run out at the end of the first call of a function."""
    room, _, name = place.rpartition(".")
    honest, failed = getattr(pkgutil.resolve_name(room), name), []

    def scarce(*arguments, **options):
        found = honest(*arguments, **options)
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    with mock.patch(place, scarce):
        yield failed


@pytest.mark.parametrize("correlation", [INDEPENDENT, Banded(3), Buffered(2)], ids=str)
@pytest.mark.parametrize("place", ONCE)
def test_a_draw_starts_over_wherever_memory_runs_out_before_weights_move(place, correlation):
    draws, aggregation = (
        [some_draw((1, 3, 2), 1), some_draw((2, 2), 2)],
        Aggregation(0.5, 1.0, 0.25, correlation=correlation),
    )
    how = Optimisation(steps=2, learning_rate=1.0, optimizer="sgd", momentum=0.9)
    plenty, little, said, heard = small.gpt2(), small.gpt2(), [], []
    expected = step_of(plenty, draws, aggregation, optimisation=how)
    step = step_of(little, draws, aggregation, optimisation=how, micro_tokens=64, say=said.append)
    for number in range(2):
        expected(number)
    with failing_once(ONCE[place]) as failed:
        for number in range(2):
            step(number, before_update=heard.append)
    assert (len(failed), len(said), len(heard)) == (1, 1, 2)
    assert step.gradients.micro_tokens == 32
    off = 1e-6 + lifted(0.5) + 2 * 0.25 * step_of_grid(1.0)  # sums round otherwise in other micro-batches
    for name, values in snapshot(plenty).items():
        assert torch.allclose(values, snapshot(little)[name], atol=off), name


@pytest.mark.parametrize(
    "how",
    [
        Optimisation(steps=3, learning_rate=0.01, optimizer="adamw", weight_decay=0.1),
        Optimisation(steps=3, learning_rate=0.01, optimizer="sgd", momentum=0.9, weight_decay=0.1),
        Optimisation(steps=3, learning_rate=0.01, optimizer="adafactor"),
    ],
    ids=lambda how: how.optimizer,
)
def test_an_optimiser_whose_state_was_allocated_first_moves_weights_as_torch_does(how):
    moved = []
    for early in (True, False):
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3))
        optimizer = how.build({"weight": parameter})
        if early:
            how.allocate(optimizer)
            assert optimizer.state or how.optimizer == "adafactor"
        for step in range(3):
            parameter.grad = torch.linspace(-step, 2, 12).view(4, 3)
            optimizer.step()
        moved.append(parameter.detach())
    assert torch.equal(*moved)


def test_not_even_one_row():
    step = step_of(small.gpt2(), [some_draw()], Aggregation(0.5, 1.0, 1.0), micro_tokens=32)
    scarce(step, 2)
    with pytest.raises(InputError, match="not even one row of 11 tokens fits"):
        step(0)


def test_another_error_is_not_taken_for_a_lack_of_memory():
    step = step_of(small.gpt2(), [some_draw()], Aggregation(0.5, 1.0, 1.0))
    object.__setattr__(
        step.task, "row_loss", lambda model, batch: (_ for _ in ()).throw(RuntimeError("shapes differ"))
    )
    with pytest.raises(RuntimeError, match="shapes differ"):
        step(0)


def test_a_real_refusal_of_the_allocator_is_known():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60)
    assert ran_out(refused.value)
    assert not ran_out(RuntimeError("shapes differ"))


def test_a_run_measures_what_fits_unless_it_is_told(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(jobs, "fit", lambda *given: measured.append(given) or physical.fit(*given))
    grown = [
        0,
        MEGABYTE,
        2 * MEGABYTE,
    ]  # a process whose heap has room for the passes shows no growth of its own
    monkeypatch.setattr(memory, "peak", lambda device, work: grown.pop(0))
    monkeypatch.setattr(memory, "free", lambda device: 0)
    scaled = {"wte": 2.0}
    made = Job.of(Run(config(tmp_path / "measured", privacy__scales=scaled)), Console(quiet=True))
    assert (made.micro_tokens, len(measured)) == (16, 1)  # a row's, as nothing is free
    weights = sum(p.numel() for p in made.model.parameters())
    assert measured[0][2:5] == (16, made.ranks, 4 * weights)  # TensorAdamW's one state
    assert {name for name, factor in measured[0][5].items() if factor != 1} == {"transformer.wte.weight"}
    made = Job.of(Run(config(tmp_path / "told", train__micro_tokens=64)), Console(quiet=True))
    assert (made.micro_tokens, len(measured)) == (64, 1)


@pytest.mark.parametrize(("before", "now", "taken"), [(32, 64, 32), (64, 32, 32), (64, 64, 64)])
def test_a_run_that_has_moved_takes_no_more_than_fits_where_it_is(before, now, taken):
    first = step_of(small.gpt2(), [some_draw()], Aggregation(0.5, 1.0, 1.0), micro_tokens=before)
    first(0)
    said: list[str] = []
    second = step_of(
        small.gpt2(), [some_draw()], Aggregation(0.5, 1.0, 1.0), micro_tokens=now, say=said.append
    )
    second.restore(first.state())
    assert second.gradients.micro_tokens == taken
    assert said == (["micro-batches of 32 tokens, as before"] if before < now else [])


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "could not create a primitive",
    ],
)
def test_memory_runs_out_in_the_words_of_a_library_too(words):
    assert ran_out(RuntimeError(words))


_LIMITED = """
import resource, sys, torch
from confide.utils import memory
from confide.utils.memory import ran_out

used = memory._line(memory.Path("/proc/self/status"), sys.argv[1])
limit = getattr(resource, sys.argv[2])
resource.setrlimit(limit, (used + (300 << 20), resource.RLIM_INFINITY))
free = memory.free(torch.device("cpu"))
assert 200 << 20 < free <= 300 << 20, free
try:
    torch.ones(100 << 20)
except RuntimeError as error:
    assert ran_out(error), error
else:
    raise AssertionError("no limit was felt")
"""


@pytest.mark.skipif(not TELLS, reason="the system does not tell what a process has taken")
@pytest.mark.parametrize(("line", "limit"), [("VmSize:", "RLIMIT_AS"), ("VmData:", "RLIMIT_DATA")])
def test_what_a_process_is_limited_to_is_all_that_is_free(line, limit):
    subprocess.run([sys.executable, "-c", _LIMITED, line, limit], env=environment(), check=True, timeout=120)


@pytest.mark.parametrize(
    ("mechanism", "privacy", "optimizer", "twin", "copies"),
    [
        ("dp-sgd", {"epsilon": 8.0}, "tensor-adamw", False, 1),
        ("dp-sgd", {"epsilon": 8.0}, "tensor-adamw", True, 2),
        ("dp-sgd", {"noise_multiplier": 0.0}, "tensor-adamw", False, 2),
        ("none", {}, "tensor-adamw", False, 2),
        ("selective", {"epsilon": 8.0}, "tensor-adamw", False, 2),
        ("dp-sgd", {"epsilon": 8.0}, "adamw", False, 2),
        ("dp-sgd", {"epsilon": 8.0}, "sgd", False, 0),
        ("dp-sgd", {"epsilon": 8.0, "bands": 8}, "sgd", False, 8),
        ("dp-sgd", {"epsilon": 8.0, "buffers": 3, "sampling": "bins"}, "sgd", False, 4),
    ],
)
def test_the_states_of_the_optimiser_are_counted(mechanism, privacy, optimizer, twin, copies):
    raw = {"data": {"train": "x", "unit": "u"}, "train": {"optimizer": optimizer}}
    raw["privacy"] = {"mechanism": mechanism, **privacy}
    if mechanism == "selective":
        raw["detector"] = {"patterns": "all"}
    assert physical.optimizer_copies(check(raw), twin) == copies


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_optimiser_keeps_as_much_as_is_counted(noise):
    model = small.gpt2()
    step = step_of(model, [some_draw()], Aggregation(1.0, noise, 1.0), optimisation=Optimisation(5, 1e-3))
    step(0)
    kept = sum(value.numel() for state in step.optimizer.state.values() for value in state.values())
    settings = check(
        {"data": {"train": "x", "unit": "u"}, "privacy": {"noise_multiplier": noise, "mechanism": "dp-sgd"}}
    )
    weights = sum(p.numel() for p in model.parameters())
    assert kept / weights == pytest.approx(physical.optimizer_copies(settings), rel=0.01)
