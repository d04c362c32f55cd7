"""A rule for a kind of layer is one file and one line of the registry: with those, models that hold it train."""

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import confide
from confide.clipping import rules
from confide.clipping.rule import UnsupportedParameter
from confide.models.names import location
from tests.clipping.brute_force import UNITS, check
from tests.clipping.nets import EACH, IDS, TestNet, ids_loss
from tests.command import WORDS

LINE = "tests.clipping.gain:GAIN"


class Gain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, width))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.weight


class Other(Gain):
    """Of the same parameters, with another result."""

    def forward(self, values: Tensor) -> Tensor:
        return values * self.weight.square()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, "gain", LINE)


@pytest.mark.parametrize("unit", [EACH, torch.tensor(UNITS["ragged"])])
def test_its_sums_are_those_of_brute_force(line, unit) -> None:
    torch.manual_seed(0)
    check(TestNet(Gain(6)), ids_loss, IDS, unit, 0.05)


def test_a_layer_that_computes_something_else_is_refused(line) -> None:
    with pytest.raises(UnsupportedParameter, match=r"layer\.weight is trainable, but its layer \(Other\)"):
        rules.layers(TestNet(Other(6)))


def trained(folder, layer: type[Gain]) -> confide.Outcome:
    """A run of a language model with such a layer before its head."""
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, **sizes)
    )
    model.transformer.ln_f = nn.Sequential(model.transformer.ln_f, layer(16))
    config = confide.load_config(
        {
            "data": {"train": "made up", "unit": "user", "max_length": 16, "eval": None},
            "privacy": {"noise_multiplier": 1.0, "mechanism": "uls", "delta": 1e-3},
            "train": {"steps": 2, "batch": 4, "learning_rate": 0.1},
            "run": str(folder),
        }
    )
    documents = [{"user": f"u{number % 12}", "text": " ".join(WORDS[number % 5 :])} for number in range(24)]
    before = model.transformer.ln_f[1].weight.detach().clone()
    outcome = confide.train(config, model=model, tokenizer=tokenizer, documents=documents)
    assert not torch.equal(before, model.transformer.ln_f[1].weight)
    return outcome


def test_a_model_that_holds_it_trains(line, tmp_path) -> None:
    trained(tmp_path / "run", Gain)
    assert (tmp_path / "run" / "ledger.jsonl").exists()


def test_without_its_line_the_model_is_refused(tmp_path) -> None:
    with pytest.raises(confide.InputError, match=r"ln_f\.1\.weight is trainable, but its layer \(Gain\)"):
        trained(tmp_path / "run", Gain)


def test_a_model_whose_layer_computes_something_else_is_refused_with_it(line, tmp_path) -> None:
    with pytest.raises(confide.InputError, match=r"ln_f\.1\.weight is trainable, but its layer \(Other\)"):
        trained(tmp_path / "run", Other)
