"""Any model in the format of the hub: loaded, adapted, saved, and refused where it would mislead."""

import json
import re
import time

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    CanineConfig,
    CanineForSequenceClassification,
    PreTrainedTokenizerFast,
)

from confide.clipping import ClippedSum
from confide.config import registry
from confide.config.loading import check
from confide.models import adapters
from confide.models import files as model_files
from confide.models import loading as models
from confide.models.fast.activations import install_fast_layers
from confide.models.names import public_name
from confide.randomness.streams import RunKey
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError
from tests import small

ROWS = [torch.arange(2, 2 + n).numpy() * 7 for n in (9, 4, 12)]
TASKS = {"bert": "masked-lm", "roberta": "classification"}
KEY = RunKey.from_text("test")


def config(model, task="causal-lm", tokenizer="bundled", adapter=None, **train):
    data = {"train": "x", "unit": "user", "max_length": 32}
    if task == "classification":
        data["label"] = "label"
    raw = {"model": str(model), "tokenizer": tokenizer, "task": task, "adapter": adapter or {}, "data": data}
    return check(raw | {"privacy": {"epsilon": 4.0}, "train": train})


def loaded(folder, kind, task=None, adapter=None, classes=3, changes=None, **train):
    task = task or TASKS.get(kind, "causal-lm")
    path = small.saved(folder / f"{kind}-{task}", kind, task, **(changes or {}))
    settings = config(path, task, adapter=adapter, **train)
    return models.load_model(settings, classes if task == "classification" else None)


def task_of(model, kind="causal-lm", precision="float32"):
    return registry.task(kind).of(model, models.load_tokenizer(config("bundled")), precision)


def batch_of(task):
    labels = torch.tensor([0, 2, 1]).numpy() if task.facts.has_classes else None
    hide = [KEY.stream("test", "hide", i) for i in range(3)] if task.facts.hides_tokens else None
    return task.collate(ROWS, labels, hide)


def gradients(model, task):
    clipped = ClippedSum(model, task.row_loss, 0.5)
    clipped.add(batch_of(task), torch.arange(3), torch.ones(3))
    return clipped.take()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("kind", small.FAMILIES)
@pytest.mark.parametrize("precise", [False, True])
def test_every_family_loads_in_float32_and_equals_what_was_saved(root, kind, precise):
    task = TASKS.get(kind, "causal-lm")
    path = small.saved(root / f"{kind}-{precise}", kind, task, num_labels=3)
    if not precise:  # as most checkpoints on the hub are
        half = small._HEADS[task].from_pretrained(path, dtype=torch.float16)
        half.save_pretrained(path)
        assert load_file(path / "model.safetensors").popitem()[1].dtype == torch.float16
    model = models.load_model(config(path, task), 3 if task == "classification" else None)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    saved = load_file(path / "model.safetensors")
    for name, value in model.state_dict().items():
        if name in saved:
            assert torch.equal(value, saved[name].float()), name


@pytest.mark.parametrize("kind", small.FAMILIES)
@pytest.mark.parametrize("adapter", [{}, {"kind": "lora", "rank": 2}])
def test_no_dropout_is_left(root, kind, adapter):
    """Two forward passes in train mode agree, though each family's config asks for dropout."""
    rates = {
        "gpt2": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
        "bert": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5},
    }
    rates["roberta"] = rates["bert"] | {"classifier_dropout": 0.5}
    changes = rates.get(kind, {"attention_dropout": 0.5})
    model = loaded(root, kind, adapter=adapter, changes=changes).train()
    task = task_of(model, TASKS.get(kind, "causal-lm"))
    with torch.no_grad():
        first, second = (task.row_loss(model, batch_of(task)) for _ in range(2))
    assert torch.equal(first, second)
    assert all(m.p == 0 for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))


def test_dropout_of_any_shape_is_found():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop_path_rate = 0.3
            self.inner = nn.Dropout1d(0.4)

    odd = Odd()
    for module in odd.modules():
        models.drop_nothing(module)
    assert (odd.drop_path_rate, odd.inner.p) == (0.0, 0.0)


def test_from_scratch_the_seed_decides(tmp_path):
    path = small.config_file(tmp_path)
    first, same, other = (models.load_model(config(path, seed=seed)) for seed in (1, 1, 2))
    for a, b in zip(first.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)
    torch.manual_seed(99)
    KEY.stream("main", "draw").uniform(10)
    again = models.load_model(config(path, seed=1))
    assert torch.equal(first.transformer.wte.weight, again.transformer.wte.weight)


@pytest.mark.parametrize(
    ("kind", "targets", "modules"),
    [
        ("gpt2", "all-linear", {"c_attn", "c_proj", "c_fc"}),
        ("gpt2", ["c_attn"], {"c_attn"}),
        (
            "llama",
            "all-linear",
            {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        ),
        ("llama", ["q_proj", "v_proj"], {"q_proj", "v_proj"}),
    ],
)
@pytest.mark.parametrize(("rank", "alpha", "scale"), [(4, None, 2.0), (4, 2.0, 0.5), (2, 1.5, 0.75)])
def test_lora_adapts_what_it_is_told_at_the_scale_it_is_told(
    root, kind, targets, modules, rank, alpha, scale
):
    model = loaded(root, kind, adapter={"kind": "lora", "rank": rank, "alpha": alpha, "targets": targets})
    names = models.trainable(model)
    assert {name.split(".lora_")[0].split(".")[-1] for name in names} == modules
    assert set(names) == adapters.wanted(model, config("x", adapter={"kind": "lora"}).adapter, "causal-lm")
    for module in model.modules():
        if hasattr(module, "lora_A") and hasattr(module, "scaling"):
            assert module.scaling["default"] == scale
            assert module.lora_A["default"].weight.shape[0] == rank
            assert not module.lora_B["default"].weight.any()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_fresh_lora_changes_nothing_and_seeds_alike(root, kind):
    plain = loaded(root, kind)
    adapted = loaded(root, kind, adapter={"kind": "lora", "rank": 2})
    task = task_of(plain)
    with torch.no_grad():
        a, b = (task.row_loss(model, batch_of(task)) for model in (plain, adapted))
    assert torch.allclose(a, b, atol=1e-6)
    again = loaded(root, kind, adapter={"kind": "lora", "rank": 2})
    for x, y in zip(adapted.parameters(), again.parameters(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("kind", "adapter", "trains"),
    [
        ("gpt2", {"kind": "bias"}, lambda n: n.endswith("bias")),
        ("bert", {"kind": "bias"}, lambda n: n.endswith("bias")),
        ("gpt2", {"kind": "matrices"}, lambda n: n.endswith("weight") and "ln_" not in n and "wpe" not in n),
        (
            "bert",
            {"kind": "matrices"},
            lambda n: n.endswith("weight") and not re.search("LayerNorm|_type_|position", n),
        ),
        ("llama", {"kind": "matrices"}, lambda n: "norm" not in n),
        ("gpt2", {"kind": "modules", "targets": ["ln_f"]}, lambda n: ".ln_f." in n),
        ("gpt2", {"kind": "modules", "targets": ["h.1", "wpe"]}, lambda n: ".h.1." in n or ".wpe." in n),
        ("gpt2", {"kind": "modules", "targets": "transformer"}, lambda n: True),
        ("llama", {"kind": "modules", "targets": ["mlp.up_proj"]}, lambda n: ".mlp.up_proj." in n),
        ("llama", {"kind": "modules", "targets": ["layers.1"]}, lambda n: ".layers.1." in n),
    ],
)
def test_each_kind_trains_exactly_what_it_names(root, kind, adapter, trains):
    model = loaded(root, kind, adapter=adapter)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == trains(name), name


@pytest.mark.parametrize(
    ("kind", "adapter", "message"),
    [
        ("llama", {"kind": "bias"}, "bias leaves nothing to train"),
        ("gpt2", {"kind": "modules", "targets": ["ln"]}, "no module named ln"),  # a part of a name is no name
        ("gpt2", {"kind": "lora", "targets": ["q_proj"]}, "adapter.targets.*q_proj"),
    ],
)
def test_an_adapter_that_names_nothing_is_refused(root, kind, adapter, message):
    with pytest.raises(InputError, match=message):
        loaded(root, kind, adapter=adapter)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "roberta"])
@pytest.mark.parametrize(
    "adapter",
    [
        {},
        {"kind": "matrices"},
        {"kind": "lora", "rank": 2},
        {"kind": "bias"},
        {"kind": "modules", "targets": ["0"]},
    ],
)
def test_a_classification_head_trains_under_every_adapter(root, kind, adapter):
    """Fresh, with a number of classes that the checkpoint did not have."""
    model = loaded(root, kind, "classification", adapter, changes={"num_labels": 2})
    head = [n for n in models.trainable(model) if "score" in n or "classifier" in n]
    assert head
    found = gradients(model, task_of(model, "classification"))
    assert all(bool(found[name].any()) for name in head)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    assert inner.config.num_labels == 3


@pytest.mark.parametrize(("kind", "task"), [("bert", "masked-lm"), ("roberta", "masked-lm")])
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_that_trains_gets_a_gradient(root, kind, task, tied):
    """An untied masked-LM head keeps a bias that nothing uses: it is left out, and all else is covered."""
    path = small.saved(root / f"{kind}-{tied}", kind, task, tie_word_embeddings=tied)
    model = models.load_model(config(path, task))
    found = gradients(model, task_of(model, task))
    assert [name for name, value in found.items() if not value.any()] == []
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert all(name.endswith("bias") and "decoder" not in name for name in frozen)
    assert len(frozen) <= (0 if tied else 1)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "gemma2"])
def test_gradient_checkpointing_gives_the_same_step(root, kind):
    """Pitfall 21."""
    task_kind = TASKS.get(kind, "causal-lm")
    found = []
    for checkpointing in (False, True):
        model = loaded(root, kind, gradient_checkpointing=checkpointing).train()
        found.append(gradients(model, task_of(model, task_kind)))
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], atol=1e-7), name


def stirred(model):
    with torch.no_grad():
        for parameter in models.trainable(model).values():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "task"), [("gpt2", "causal-lm"), ("llama", "causal-lm"), ("bert", "masked-lm")]
)
def test_saved_whole_and_loaded_it_is_the_same_model(root, tmp_path, kind, task):
    model = stirred(loaded(root, kind, task))
    models.save(model, models.load_tokenizer(config("bundled")), tmp_path / "out", str(root))
    auto = {"causal-lm": AutoModelForCausalLM, "masked-lm": AutoModelForMaskedLM}[task]
    again = auto.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.allclose(model(ids).logits, again(ids).logits, rtol=0, atol=1e-6)
    install_fast_layers(again)  # all that they differ by
    assert torch.equal(model(ids).logits, again(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("a b c")["input_ids"]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "roberta"])
def test_a_saved_adapter_on_its_base_is_the_same_model(root, tmp_path, kind):
    from peft import PeftModel

    task = TASKS.get(kind, "causal-lm")
    changes = {"num_labels": 3}
    model = stirred(loaded(root, kind, task, {"kind": "lora", "rank": 2}, changes=changes))
    models.save(model, models.load_tokenizer(config("bundled")), tmp_path / "out", str(root))
    again = PeftModel.from_pretrained(loaded(root, kind, task, changes=changes), tmp_path / "out").eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(model(ids).logits, again(ids).logits)


@pytest.mark.parametrize("adapter", [{}, {"kind": "lora", "rank": 2}])
def test_a_release_carries_no_path_of_this_machine(root, tmp_path, adapter):
    model = loaded(root, "gpt2", adapter=adapter)
    models.save(
        model, models.load_tokenizer(config("bundled")), tmp_path / "out", str(root / "gpt2-causal-lm")
    )
    for path in (tmp_path / "out").iterdir():
        if path.name != "README.md":  # which the model card replaces
            assert str(root).encode() not in path.read_bytes(), path.name
    if adapter:
        settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == "gpt2-causal-lm"


@pytest.mark.parametrize(
    ("name", "public"),
    [("bundled", "bundled"), ("someone/model", "someone/model"), ("{0}/m/config.json", "m"), ("{0}/m/", "m")],
)
def test_public_names(tmp_path, name, public):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert public_name(name.format(tmp_path)) == public


@pytest.mark.parametrize(
    "is_looked_at", [True, False], ids=["in a folder", "where nobody looks first, as in a hub"]
)
def test_pickled_weights_are_refused(root, tmp_path, monkeypatch, is_looked_at):
    path = small.saved(tmp_path / "m", "gpt2")
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    if not is_looked_at:
        monkeypatch.setattr(model_files, "check_model", lambda *arguments: set())
    with pytest.raises(InputError, match="safetensors only"):
        models.load_model(config(path))


def test_code_of_a_repository_does_not_run_unless_allowed(tmp_path):
    path = small.saved(tmp_path / "m", "gpt2")
    settings = json.loads((path / "config.json").read_text())
    settings |= {
        "model_type": "theirs",
        "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
    }
    (path / "config.json").write_text(json.dumps(settings))
    (path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="trust_remote_code: true"):
        models.load_model(config(path))
    assert not (tmp_path / "ran").exists()


def test_an_unknown_name_is_one_clear_sentence_at_once():
    for load in (models.load_model, models.load_tokenizer):
        began = time.monotonic()
        with pytest.raises(
            InputError, match=r"^model: 'nobody/nothing': no such folder here, and no (hub|such model)"
        ) as caught:
            load(config("nobody/nothing", tokenizer=None))
        assert "\n" not in str(caught.value)
        assert time.monotonic() - began < 15  # asking a hub that is away again and again takes 24 s and more


@pytest.mark.parametrize(("kind", "task"), [("roberta", "causal-lm"), ("gpt2", "masked-lm")])
def test_a_model_of_another_kind_is_refused(tmp_path, kind, task):
    """A classifier as a language model would start with a head of chance, and nobody would know."""
    path = small.saved(tmp_path / kind, kind, "classification")
    with pytest.raises(InputError, match=r"^model: "):
        models.load_model(config(path, task))


def test_weights_of_another_size_are_refused(tmp_path):
    path = small.saved(tmp_path / "m", "gpt2")
    settings = json.loads((path / "config.json").read_text()) | {"n_embd": 32}
    (path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="no fitting weights"):
        models.load_model(config(path))


@pytest.mark.parametrize(("kind", "room"), [("gpt2", 64), ("bert", 66), ("roberta", 64)])
def test_rows_longer_than_the_model_are_refused_and_the_longest_runs(root, kind, room):
    """RoBERTa counts positions from its padding id on, and has room for fewer than its config says."""
    path = small.saved(root / f"{kind}-long", kind, "classification")
    settings = config(path, "classification")

    def load(length):
        data = settings.data.model_copy(update={"max_length": length})
        return models.load_model(settings.model_copy(update={"data": data}), 2)

    with pytest.raises(InputError, match=r"data\.max_length"):
        load(room + 1)
    model = load(room)
    task = task_of(model, "classification")
    row = [torch.arange(5, 5 + room).numpy()]
    assert torch.isfinite(task.row_loss(model, task.collate(row, torch.tensor([1]).numpy()))).all()


def test_a_vocabulary_larger_than_the_embeddings_is_refused(root):
    path = small.saved(root / "narrow", "gpt2", vocab_size=100)
    with pytest.raises(InputError, match="8192 entries"):
        models.load_model(config(path), vocabulary=8192)


def llama_tokenizer(shared, folder):
    """A folder that a user can make of a model that came with bare pieces: a tokenizer.json beside the weights."""
    from studies.runner.corpora import stories

    return stories(shared / "data", folder)


def test_a_real_llama_without_a_tokenizer_says_so_and_with_one_knows_its_stories(shared, tmp_path):
    with pytest.raises(InputError, match=r"^model: "):
        models.load_tokenizer(config(shared / "models/stories260K/hf", tokenizer=None))
    settings = config(llama_tokenizer(shared, tmp_path / "llama"), tokenizer=None)
    tokenizer = models.load_tokenizer(settings)
    assert tokenizer.pad_token == "</s>"
    model = models.load_model(settings, None, len(tokenizer))
    task = CausalLM.of(model, tokenizer)
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    shuffled = "park the in play outside loved Lily. to named girl She little a was there time, upon a Once"
    rows = [
        torch.tensor([1, *tokenizer(t, add_special_tokens=False)["input_ids"]]).numpy()
        for t in (story, shuffled)
    ]
    with torch.no_grad():
        known, strange = task.row_loss(model, task.collate(rows)).tolist()
    assert known < 1.5 < 3 < strange


def test_a_tokenizer_that_encodes_all_to_one_kind_is_refused(tmp_path):
    """Pitfall 26: rows of nothing but unknown words train as well as any."""
    one = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
    one.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=one, pad_token="<pad>", unk_token="<unk>").save_pretrained(
        tmp_path
    )
    with pytest.raises(InputError, match=r"tokenizer: the tokenizer of .* to 10 tokens of one kind"):
        models.load_tokenizer(config("bundled", tokenizer=str(tmp_path)))


def test_a_model_that_does_not_tell_its_vocabulary_is_refused_by_name(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    canine = CanineConfig(**sizes, num_hash_buckets=16, upsampling_kernel_size=2, max_position_embeddings=32)
    CanineForSequenceClassification(canine).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"^model: canine models do not say how many tokens"):
        models.load_model(config(tmp_path, "classification"), 2, 10)
