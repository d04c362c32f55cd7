"""`confide init --model`: how a base is held so that a step fits, and what the first config says of it."""

import pytest
from transformers import BltConfig, GPT2Config

from confide.config.loading import check, load
from confide.models import loading as models
from confide.planning import what_fits as planning
from confide.planning.cost import Size, layers_and_width
from confide.planning.memory import memory
from confide.utils.errors import InputError
from tests.command import World, confide, refused, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path, model):
    return World(tmp_path, model)


def drafted(world, monkeypatch, free):
    monkeypatch.setattr(planning.machine, "free", lambda device: free)
    out = world.folder / "first.yaml"
    result = confide("init", world.text, "--out", out, "--yes", "--model", world.raw["model"])
    assert result.code == 0, result
    return load(out), out.read_text(), result


def adapted(model, way):
    """The config of a LoRA run with its base held in this way."""
    return check(
        {
            "model": str(model),
            "data": {"train": "-", "max_length": 16},
            "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0},
            "adapter": {"kind": "lora", "rank": 4},
            "base": way.base.model_dump(),
            "train": {"micro_tokens": 64},
        }
    )


def test_the_estimate_is_that_of_the_loaded_model(model):
    found = planning.what_fits(str(model), 16, 4)
    for way in found.ways:
        if way.base.quantise != "none":
            continue
        config = adapted(model, way)
        loaded = Size.of(models.load_model(config))
        theirs = memory(config, loaded)
        # A linear layer of GPT-2 is a Conv1D, and peft adapts it too.
        assert way.memory.trained == theirs.trained
        assert way.memory.weights == pytest.approx(theirs.weights, rel=0.001)
        assert way.bytes == pytest.approx(theirs.whole, rel=0.001)


def test_four_bits_take_what_the_loaded_layers_take(model):
    pytest.importorskip("bitsandbytes")
    way = next(each for each in planning.what_fits(str(model), 16, 4).ways if each.base.quantise == "nf4")
    config = adapted(model, way)
    loaded = Size.of(models.load_model(config))
    assert way.memory.weights == pytest.approx(memory(config, loaded).weights, rel=0.1)


def test_the_most_exact_way_that_fits_is_written(world, monkeypatch, model):
    ways = planning.what_fits(str(model), 128, 16).ways
    sizes = {(way.base.precision, way.base.quantise): way.bytes for way in ways}
    config, text, _ = drafted(world, monkeypatch, 1 << 40)
    assert (config.model, config.adapter.kind, config.base.quantise) == (str(model), "lora", "none")
    assert "Memory of a LoRA step" in text
    (world.folder / "first.yaml").unlink()
    share = planning.SHARE["cpu"]
    config, text, _ = drafted(world, monkeypatch, int((sizes["bf16", "nf4"] + 1) / share))
    assert (config.base.precision, config.base.quantise) == ("bf16", "nf4")
    assert "confide[quantise]" in text
    assert "WARNING: model" not in text


def test_a_model_that_does_not_fit_is_said_to(world, monkeypatch):
    config, text, result = drafted(world, monkeypatch, 1000)
    assert config.base.quantise == "nf4"
    assert "even in 4 bits" in result.err
    assert "# WARNING: model: a LoRA step of" in text


def test_a_model_that_is_none_is_refused_and_nothing_is_written(world):
    out = world.folder / "first.yaml"
    refused(
        confide("init", world.text, "--out", out, "--yes", "--model", world.folder / "absent"), "model:", 1
    )
    assert not out.exists()


def test_a_config_that_tells_no_layers_and_no_width_is_refused():
    assert layers_and_width(GPT2Config(n_layer=3, n_embd=12)) == (3, 12)
    with pytest.raises(InputError, match="nothing can be planned for blt models"):
        layers_and_width(BltConfig())
