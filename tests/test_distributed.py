"""Several processes under torchrun compute what one does, end cleanly, and go on in another number. Pitfall 8."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from confide.distributed import sharding
from confide.distributed.ranks import Ranks
from confide.randomness.seal import Seal
from confide.runs import loop as finetuning
from confide.runs.folder import Run
from confide.utils.errors import InputError
from tests import command
from tests.command import environment
from tests.models.bases import NEEDS
from tests.places import ROOT
from tests.test_resume import config
from tests.two_ranks_all import MODULES
from tests.two_ranks_loading import CASES

TOLERANCE = 2e-4  # of how far the weights moved, which the grid of the noise coarsens


def torchrun(*arguments: object) -> list[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launch, *map(str, arguments)]


def found_by_two_ranks(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> dict:
    """What a module of the tests finds that two ranks run, by a fixture of its name.

    One launch finds it for all fixtures that the session asks for, and for all workers of the tests.
    """
    several = "PYTEST_XDIST_WORKER" in os.environ
    folder = (folders.getbasetemp().parent if several else folders.getbasetemp()) / "two ranks"
    folder.mkdir(exist_ok=True)
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "launched").exists():
            (folder / "launched").touch()  # who failed once would fail again
            more = {"CONFIDE_TEST_ALL": "1"} if request.config.getoption("--all") else {}
            run_two_ranks(folder, [name for name in MODULES if name in asked], more)
    return json.loads((folder / f"{request.fixturename}.json").read_text())


def run_two_ranks(folder: Path, names: list[str], more: dict[str, str]) -> None:
    done = subprocess.run(
        torchrun("-m", "tests.two_ranks_all", folder, *names),
        cwd=ROOT,
        env=environment() | more,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def two_ranks(request, tmp_path_factory) -> dict:
    """What two ranks compute, against what one process does."""
    return found_by_two_ranks(request, tmp_path_factory)


@pytest.fixture(scope="module")
def two_ranks_loading(request, tmp_path_factory) -> dict:
    """What two ranks find that each load their own part of a model."""
    return found_by_two_ranks(request, tmp_path_factory)


@pytest.fixture(scope="module")
def two_ranks_coarse(request, tmp_path_factory) -> dict:
    """What two ranks find that compute in bf16, or hold a quantised base."""
    return found_by_two_ranks(request, tmp_path_factory)


def test_two_ranks_compute_what_one_process_does(two_ranks, request):
    found = dict(two_ranks)
    assert found.pop("parts") == {"wrong": 0, "parameters": 28}
    assert found.pop("agreed") == {"least": 3, "alike": [True, False], "split blocks": 2, "blocks": 2}
    assert found.pop("not finite") == {"all ended": 1, "spread": True}
    assert found.pop("interrupted") == {"steps": 3, "finished": False}
    for kind in ("ddp", "fsdp, whole gradients"):
        pieces = found.pop(f"pieces, {kind}")
        assert (pieces["units"], pieces["left"], pieces["halved"]) == ([3, 1], 0, 512), pieces
        assert pieces["received"] == 2, pieces  # a unit of each draw was cut in two
        assert max(pieces["weights"], pieces["clipped"]) < TOLERANCE, pieces
    memory = found.pop("memory")
    assert memory["halved"] < 128, memory
    assert memory["said"] >= 1, memory
    for kind in ("ddp", "fsdp", "fsdp, whole gradients"):
        after = found.pop(f"memory after passes, {kind}")
        assert (after["said"], after["halved"]) == (4, 4096 // 2**4), after
        assert after["weights"] < TOLERANCE, after
    of_sums = found.pop("memory of sums")
    assert (of_sums["failed"], of_sums["halved"]) == (1, 48), of_sums
    far = {
        f"{name}, {what}": gap
        for name, gaps in found.items()
        for what, gap in gaps.items()
        if gap > TOLERANCE
    }
    assert not far
    assert max(memory["weights"], of_sums["weights"]) < TOLERANCE
    families, of_gpt2, with_whole = (7, 2, 3) if request.config.getoption("--all") else (2, 1, 2)
    assert len(found) == 2 * (families * 2 + of_gpt2 + 1 + 1) + 2 * with_whole + 1 + 2


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 7, 8, 9])
def test_a_ranks_part_begins_where_torch_cuts(rows, ranks, monkeypatch):
    """Where rows do not divide by ranks, the first take one more, and the last may have none: FSDP2 cuts as `chunk`."""
    monkeypatch.setattr(sharding, "is_split", lambda tensor: True)
    parts = torch.arange(rows * 3).view(rows, 3).chunk(ranks)
    for rank in range(ranks):
        mesh = SimpleNamespace(size=lambda: ranks, get_local_rank=lambda rank=rank: rank)
        whole = SimpleNamespace(shape=torch.Size([rows, 3]), device_mesh=mesh, numel=lambda: rows * 3)
        expected = int(parts[rank][0, 0]) if rank < len(parts) else rows * 3
        assert sharding.first_index(whole) == expected


def train(path: Path, *changes: str) -> list[str]:
    return torchrun("-m", "confide", "train", path, *changes)


def wait_for_steps(ledger: Path, steps: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + 120
    while not ledger.exists() or ledger.read_bytes().count(b"\n") <= steps:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until, "it takes no steps"
        time.sleep(0.01)


def children(process: subprocess.Popen) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in listed.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are found through /proc")
def test_a_rank_dies_and_another_number_of_ranks_goes_on(tmp_path):
    whole, cut = (config(tmp_path / name, secret=True, train__steps=60) for name in "ab")
    paths = []
    for settings in (whole, cut):
        path = Path(settings.run).parent / "config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(settings.to_yaml())
        paths.append(path)
    assert command.confide("train", paths[0]).code == 0

    ledger = Path(cut.run) / "ledger.jsonl"
    with open(tmp_path / "log", "w") as log:
        options = {"env": environment(), "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(train(paths[1]), **options)
        wait_for_steps(ledger, 5, process)
        ranks = children(process)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert process.wait(timeout=60) != 0
        assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)

        process = subprocess.Popen(train(paths[1], "train.distributed=fsdp"), **options)
        wait_for_steps(ledger, 14, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
    assert "the same command resumes" in (tmp_path / "log").read_text()

    assert command.confide("train", paths[1]).code == 0
    assert ledger.read_text() == (Path(whole.run) / "ledger.jsonl").read_text()
    expected, found = (load_file(Path(s.run) / "release" / "model.safetensors") for s in (whole, cut))
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert float((values - found[name]).norm()) <= 1e-5 * float(values.norm())


def test_memory_that_runs_out_between_ranks_ends_the_run(monkeypatch):
    """A new start would pair this rank's next message with another one of the others."""

    def failing(tensor, async_op):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch.distributed, "all_reduce", failing)
    with pytest.raises(InputError, match="memory ran out while the ranks added up"):
        Ranks(0, 2).add_up([torch.zeros(2)])


@pytest.mark.parametrize("verb", ["plan", "prepare", "verify"])
def test_other_verbs_run_by_themselves(verb, monkeypatch):
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    result = command.confide(verb, "nothing.yaml")
    assert result.code == 2
    assert f"confide {verb} runs by itself, without torchrun" in result.err


def test_ranks_that_would_go_on_from_different_steps_do_not(tmp_path, monkeypatch):
    """A run folder that is not shared has no checkpoint on the second machine."""
    settings = config(tmp_path / "a", train__steps=6)
    finetuning.fine_tune(Run(settings), until=3)
    monkeypatch.setattr(Ranks, "alike", lambda self, text: not text.endswith(", 3]"))
    with pytest.raises(InputError, match="different data, keys, models or checkpoints"):
        finetuning.fine_tune(Run(settings))


def test_what_a_selection_rests_on_is_computed_once(tmp_path):
    run = Run(config(tmp_path / "a"))
    run.bind()
    first, again = (
        [run.once("numbers", lambda value=value: np.array([value]), Ranks(), Seal(run.key()))[0]]
        for value in (1.5, 2.5)
    )
    assert first == again == [1.5]


def test_ranks_that_load_their_own_part_have_the_weights_of_a_whole_load(two_ranks_loading):
    for name in CASES:
        found = two_ranks_loading[name]
        assert not found["wrong"], name
        assert found["stored"] >= 7, name  # nothing was loaded whole instead
        assert (found["split"], found["meta"]) == (True, 0), name
        assert found["share"] == pytest.approx(0.5, abs=2e-3), name
        assert found["digest"], name


def test_a_run_of_ranks_that_load_their_own_part_is_that_of_one_process(two_ranks_loading):
    for name in ("trained", "trained, bf16"):
        assert two_ranks_loading[name]["ledgers"] == 1
    assert two_ranks_loading["trained"]["fsdp"] < TOLERANCE
    # Products in bf16 round by the shape of a batch, which the number of ranks decides under ddp too.
    assert (
        two_ranks_loading["trained, bf16"]["fsdp"] < 2 * two_ranks_loading["trained, bf16"]["ddp"] + TOLERANCE
    )


def test_damage_that_one_rank_meets_is_told_by_all(two_ranks_loading):
    first, second = two_ranks_loading["refused"]
    assert first["not finite"] == second["not finite"]
    assert "damaged, model.layers.1.mlp.up_proj.weight holds values that are infinite" in first["not finite"]
    assert "cannot be read by another rank" in first["unreadable"]
    assert "model.safetensors cannot be read: [Errno 5]" in second["unreadable"]


def test_a_model_that_mixes_rows_is_refused_by_all_ranks_once_it_is_split(two_ranks_loading):
    first, second = two_ranks_loading["refused"]
    assert first["mixing was split"]
    assert first["mixing"] == second["mixing"]
    assert "model: what BertLMHeadModel says of a row depends on the padding" in first["mixing"]


def test_weights_borrowed_in_bf16_give_what_autocast_makes_of_whole_ones(two_ranks_coarse):
    for name, found in two_ranks_coarse["bf16"].items():
        # The order in which three gradients of a norm are added up may differ, and nothing else.
        assert found["as float32"] < 1e-6, name
        assert found["losses"] < 1e-6, name
        assert max(found["fsdp"], found["ddp"]) < 2e-3, name  # half a unit in the last place of bf16 is 2e-3
        assert found["held"] == ["torch.float32"], name


def test_linear_layers_are_borrowed_in_bf16_and_all_others_as_they_are_held(two_ranks_coarse):
    for name, found in two_ranks_coarse["bf16"].items():
        of = found["dtypes"]
        inner = {layer: dtype for layer, dtype in of.items() if ".layers." in layer or ".h." in layer}
        norms = {layer for layer in inner if "norm" in layer or ".ln_" in layer}
        assert len(norms) >= 4, name
        assert {of[layer] for layer in norms} == {"float32"}, name
        assert {of[layer] for layer in inner.keys() - norms} == {"bfloat16"}, name
        outside = {layer: of[layer] for layer in of.keys() - inner.keys()}
        assert {layer for layer, dtype in outside.items() if dtype == "bfloat16"} == (
            {"lm_head"} if name == "llama full" else set()  # the others' is tied to the embeddings
        ), name


def test_where_autocast_is_off_borrowed_weights_are_converted(two_ranks_coarse):
    assert two_ranks_coarse["without autocast"] < 1e-6


def test_a_quantised_base_is_split_and_computes_what_it_does_whole(two_ranks_coarse):
    for name, found in two_ranks_coarse["packed"].items():
        assert (found["layers"], found["wrong"], found["split"]) == (14, 0, True), name
        assert 0.5 <= found["held"] < 0.52, name  # with its scales
        assert found["same"], name
        assert found["apart"] < 1e-6, name
    assert two_ranks_coarse["packed"]["by hand"]["bits"] == [8]


@NEEDS
def test_a_run_beside_a_split_quantised_base_is_that_of_one_process(two_ranks_coarse):
    found = two_ranks_coarse["trained"]
    assert found["ledgers"] == 1
    assert found["borrowed in"] == ["torch.bfloat16"]
    assert found["fsdp"] < 2e-3  # in bf16, as above; packed weights alone are compared to the bit
