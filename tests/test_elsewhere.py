"""On a device of its own, as a GPU is, no tensor of confide's meets one that was left on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.command import Result, World, environment, tiny_model
from tests.places import ROOT

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch takes no device written in Python", allow_module_level=True)

RUN = "import json, sys; from tests import elsewhere; device = elsewhere.install(); import torch; "


def apart(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment(), timeout=500, cwd=ROOT
    )


def elsewhere(*commands: tuple[object, ...]) -> list[Result]:
    """What confide says to each command on a device that is pretended."""
    done = apart("-m", "tests.elsewhere", json.dumps([[str(a) for a in command] for command in commands]))
    assert done.returncode == 0, done.stderr[-2000:]
    return [Result(*found) for found in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"adapter": {"kind": "lora", "rank": 2}, "privacy__mechanism": "els", "train__micro_tokens": 20},
        {"adapter": {"kind": "bias"}, "train__gradient_checkpointing": True, "privacy__bands": 2},
        {"privacy__selection": "highest-ppl", "train__average": {"kind": "ema"}},
    ],
    ids=["full", "lora", "bias", "selection"],
)
def test_every_verb_on_another_device(tmp_path, model, changes):
    world = World(tmp_path, model).set(**changes)
    verify, train, scored, audit = elsewhere(
        ("verify", world.path),
        ("train", world.path),
        ("eval", world.run),
        ("audit", world.run, "--attacks", "claim,membership,extraction"),
    )
    assert (verify.code, train.code, scored.code) == (0, 0, 0), (verify, train, scored)
    assert audit.code == 0, audit


def test_the_device_refuses_what_was_left_here():
    program = RUN + (
        "import torch\n"
        "with elsewhere.Device():\n"
        "  there, here = torch.ones(3, device=device), torch.ones(3)\n"
        "  places = torch.tensor([2, 0])\n"
        "  assert (there.cpu() + here).tolist() == [2, 2, 2] and there[places].device == device\n"
        "  assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]\n"
        "  for mix in (lambda: there + here, lambda: here[places.to(device)], lambda: torch.cat([there, here]),\n"
        "              there.numpy, lambda: there.index_put_([places], here[:2])):\n"
        "    try: mix()\n"
        "    except (RuntimeError, TypeError): continue\n"
        "    raise SystemExit('a mix went through')\n"
    )
    done = apart("-c", program)
    assert done.returncode == 0, done.stderr[-1000:]


COUNT = """
import sys
from collections import Counter
from tests import elsewhere
device = elsewhere.install()
import torch
from torch import nn
from transformers import GPT2LMHeadModel
from confide.clipping import ClippedSum
from tests import small

def add(n_layer, adapter):
    model = GPT2LMHeadModel(small.family("gpt2", n_layer=n_layer))
    if adapter:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    model.to(device)
    ids = torch.randint(2, 99, (6, 3)).to(device)
    batch = {"input_ids": ids, "position_ids": torch.arange(3).expand(6, 3).to(device)}
    def loss(model, batch):
        logits, ids = model(**batch, use_cache=False).logits, batch["input_ids"]
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        return losses.view(ids.shape).sum(1)
    clipped = ClippedSum(model, loss, 1.0)
    unit = torch.tensor([2, 0, 1, 0, 1, 0])
    clipped.add(batch, unit, torch.ones(6))
    elsewhere.waits.clear()
    clipped.add(batch, unit, torch.ones(6))
    return Counter(elsewhere.waits)

with elsewhere.Device():
    for adapter in (False, True):
        few, many = add(1, adapter), add(4, adapter)
        assert few == many, (few, many)
"""


def test_more_layers_keep_the_host_waiting_no_oftener():
    done = apart("-c", COUNT)
    assert done.returncode == 0, done.stderr[-1000:]


def test_a_tensor_of_ours_left_on_the_cpu_is_seen(tmp_path, model):
    """The fault that the tests above are for, put in."""
    world = World(tmp_path, model)
    program = RUN + (
        "from dataclasses import replace; from confide.training.tasks import Task; from tests.command import confide\n"
        "own = Task.of.__func__\n"
        "Task.of = classmethod(lambda *a: replace(own(*a), device=torch.device('cpu')))\n"
        "with elsewhere.Device(): found = confide('train', sys.argv[1])\n"
        "print(found.code, found.err)"
    )
    done = apart("-c", program, str(world.path))
    assert "all tensors must be on one device: aten.embedding" in done.stdout, done
