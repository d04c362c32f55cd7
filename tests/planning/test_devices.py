"""`plan --devices`: a run on GPUs that are not here, by the data's real shape."""

import json

import pytest

from confide.config.loading import check
from confide.planning import devices
from confide.planning.cost import Size
from confide.planning.devices import DEVICES, REACHED, on_devices, parsed
from confide.planning.memory import Memory
from confide.utils.errors import InputError
from tests.command import World, confide, refused, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model):
    made = World(tmp_path, model)
    made.rows(made.text, users=200)
    return made.set(train__batch=50.0, train__steps=1000)


def planned(world, devices, *more):
    done = confide("plan", world.path, "--devices", devices, "--json", *more)
    assert done.code == 0, done.err
    return json.loads(done.out)["devices"]


def test_time_is_operations_over_what_a_device_reaches(world):
    found = planned(world, "H200")
    whole = json.loads(confide("plan", world.path, "--json").out)
    # Operations of a step with padding and passes are more than those of its tokens alone, but not by far.
    least = whole["chosen"]["operations"] / 1000 / (REACHED * DEVICES["h200"].operations)
    assert least < found["seconds_per_step"] < 3 * least
    assert found["hours"] == pytest.approx(found["seconds_per_step"] * 1000 / 3600)
    assert (found["way"], found["utilisation"], found["fits"]) == ("one", [1.0, 1.0], True)
    slower = planned(world, "1xA100")
    assert slower["seconds_per_step"] == pytest.approx(found["seconds_per_step"] * 989 / 312, rel=1e-6)


def test_more_devices_are_faster_and_less_busy(world):
    one, four = planned(world, "H100"), planned(world, "4xH100")
    assert one["seconds_per_step"] / 4 < four["seconds_per_step"] < one["seconds_per_step"]
    mean, least = four["utilisation"]
    assert 0 < least <= mean < 1
    assert four["seconds_per_step"] == pytest.approx(one["seconds_per_step"] / (4 * mean), rel=0.2)


def test_a_split_model_takes_a_part_of_the_memory(world):
    whole, split = planned(world, "4xL4"), planned(world, "4xL4", "train.distributed=fsdp")
    assert (whole["way"], split["way"]) == ("ddp", "fsdp")
    assert split["memory"][0] < whole["memory"][0]


def test_logits_in_chunks_take_as_much_for_any_micro_batch(monkeypatch):
    monkeypatch.setattr(devices, "_simulated", lambda *arguments: ([1.0], 1e6))
    config = check({"data": {"train": "x", "unit": "u", "max_length": 10}, "privacy": {"epsilon": 1.0}})
    step = Memory(0, 0, activations=100 * 8192, logits=1000 * 8192)  # of 8192 tokens
    size = Size(1000, 10, 2, 16, 100)
    found = [
        on_devices(config, None, size, step, 1, DEVICES["l4"], is_chunked).memory[0]
        for is_chunked in (False, True)
    ]
    assert found == [1100 * 65536, 100 * 65536 + 1000 * 8192]


def test_what_is_shown(world):
    shown = confide("plan", world.path, "--devices", "8 x h200").out
    assert "on 8 x H200 (estimate, at a fifth of the peak in bf16):" in shown
    assert "they are busy" in shown


@pytest.mark.parametrize("text", ["8xH2000", "0xH200", "x", "", "H200x8", "99999xH100", "-1xH100"])
def test_what_is_no_device_is_refused_before_anything_is_read(world, text):
    with pytest.raises(InputError, match="as in 8xH200; the kinds are A100"):
        parsed(text)
    refused(confide("plan", world.path, "--devices", text), "--devices: give a number and a kind")


def test_it_is_not_of_suggest(world):
    refused(confide("plan", world.path, "--suggest", "--devices", "H200"), "--devices: is of a plan")
