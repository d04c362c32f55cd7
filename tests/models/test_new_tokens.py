"""Tokens that a vocabulary lacks: a mask, and those that a config names; how they start, and that they are released."""

import itertools
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from confide.config.schema import Policy
from confide.models import loading as models
from confide.models.fast.activations import install_fast_layers
from confide.models.names import location
from confide.utils.errors import InputError
from tests import small
from tests.models.test_loading import (
    config,
    loaded,
    root,
    stirred,
)

__all__ = ["root"]


def with_tokens(path, *tokens, detector=None, task="causal-lm", adapter=None, tokenizer="bundled"):
    settings = config(path, task, tokenizer=tokenizer, adapter=adapter)
    return settings.model_copy(
        update={
            "special_tokens": list(tokens),
            "detector": detector
            if isinstance(detector, Policy)
            else Policy(patterns=["EMAIL_ADDRESS"] if detector else None),
        }
    )


def maskless(folder):
    """The bundled tokenizer without a mask token, and without the entry that it had."""
    shutil.copytree(location("bundled"), folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text(
            (folder / name).read_text().replace("<mask>", "<spare>").replace("mask_token", "x")
        )
    return folder


def test_a_mask_is_added_where_text_is_redacted_and_there_is_none(tmp_path):
    bare = str(maskless(tmp_path / "bare"))
    for settings, size, mask in (
        (with_tokens(bare, tokenizer=bare), 8192, None),
        (with_tokens(bare, tokenizer=bare, detector=True), 8193, 8192),
        (with_tokens(bare, "<mask>", tokenizer=bare), 8193, 8192),
        (with_tokens(bare, "<mask>", tokenizer=bare, detector=True), 8193, 8192),
        (with_tokens(bare, "USR:", "SYS:", "USR:", tokenizer=bare, detector=True), 8195, 8192),
        (with_tokens("bundled", detector=True), 8192, 2),  # its own
        (with_tokens("bundled", "<mask>", "USR:", " the"), 8194, 2),
    ):
        tokenizer = models.load_tokenizer(settings)
        assert (len(tokenizer), tokenizer.mask_token_id) == (size, mask)
        assert tokenizer.pad_token_id == 1
        if mask is not None:
            ids = tokenizer("my name is <mask> and<mask>", add_special_tokens=False)["input_ids"]
            assert ids.count(mask) == 2
        for token in settings.special_tokens:
            ids = tokenizer(f"hi {token} yes", add_special_tokens=False)["input_ids"]
            assert tokenizer.convert_tokens_to_ids(token) in ids
            assert tokenizer.convert_tokens_to_ids(token) in tokenizer.all_special_ids


def test_a_blank_special_token_is_refused():
    with pytest.raises(InputError, match=r"^special_tokens: one of them is blank"):
        models.load_tokenizer(with_tokens("bundled", "USR:", " "))


FAMILIES_AND_TASKS = [
    ("gpt2", "causal-lm"),
    ("llama", "causal-lm"),
    ("gemma2", "causal-lm"),
    ("bert", "masked-lm"),
    ("roberta", "masked-lm"),
    ("roberta", "classification"),
]
LORA = {"kind": "lora", "rank": 2}


def each_value_once(usual, *values):
    """Return all combinations of the values; those that are not the usual ones are exhaustive."""
    assert all(
        set(map(str, column)) == set(map(str, of))
        for column, of in zip(zip(*usual, strict=True), values, strict=True)
    )
    others = [each for each in itertools.product(*values) if each not in usual]
    return [*usual, *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in others)]


@pytest.mark.parametrize(("kind", "task"), FAMILIES_AND_TASKS)
@pytest.mark.parametrize(
    ("tied", "room"), each_value_once([(True, 0), (False, 1), (True, 60)], [True, False], [0, 1, 60])
)
def test_new_tokens_start_as_the_mean_of_the_real_ones(tmp_path, kind, task, tied, room):
    """And all else of the model stays as it was; the vocabulary grows only where it has no room."""
    path = small.saved(tmp_path / "m", kind, task, tie_word_embeddings=tied, vocab_size=small.TOKENS + room)
    classes = 2 if task == "classification" else None
    plain = models.load_model(config(path, task), classes)
    grown = models.load_model(with_tokens(path, "USR:", "SYS:", task=task), classes, small.TOKENS + 2)
    assert models.added_tokens(plain) == ()
    assert models.added_tokens(grown) == (small.TOKENS, small.TOKENS + 1)
    size = small.TOKENS + max(room, 2)
    assert grown.config.vocab_size == grown.get_input_embeddings().num_embeddings == size
    assert grown.get_input_embeddings().padding_idx == plain.get_input_embeddings().padding_idx
    before, after = plain.state_dict(), grown.state_dict()
    compared = 0
    for name, values in after.items():
        old = before[name]
        if values.shape == old.shape and not (room and values.shape[:1] == (size,)):
            if ".classifier." not in f".{name}":  # the head is drawn anew
                assert torch.equal(values, old), name
            continue
        compared += 1
        assert values.shape[0] == size, name
        assert torch.equal(values[: small.TOKENS], old[: small.TOKENS]), name
        mean = old[: small.TOKENS].double().mean(0)
        for new in models.added_tokens(grown):
            assert torch.allclose(values[new].double(), mean, atol=1e-6), name
        assert torch.equal(values[small.TOKENS + 2 :], old[small.TOKENS + 2 :]), name
    assert (
        compared
        >= (1 if task == "classification" or (tied and kind in ("gpt2", "llama", "gemma2")) else 2) - tied
    )
    output, inputs = grown.get_output_embeddings(), grown.get_input_embeddings()
    if output is not None:
        assert (output.weight is inputs.weight) == tied
        if getattr(output, "bias", None) is not None:
            assert output.bias.shape == (size,)
    again = models.load_model(with_tokens(path, "USR:", "SYS:", task=task), classes, small.TOKENS + 2)
    assert torch.equal(inputs.weight, again.get_input_embeddings().weight)
    names = {name for name, p in grown.named_parameters() if p.requires_grad}
    assert names == {name for name, p in plain.named_parameters() if p.requires_grad}


def test_with_new_tokens_a_larger_vocabulary_is_still_refused(root):
    path = small.saved(root / "narrower", "gpt2", vocab_size=100)
    with pytest.raises(InputError, match=r"has 8192 entries, and .* has embeddings for 100"):
        models.load_model(with_tokens(path, "USR:"), vocabulary=8193)


@pytest.mark.parametrize(("kind", "task"), FAMILIES_AND_TASKS)
@pytest.mark.parametrize(
    ("tied", "room", "adapter"),
    each_value_once([(True, 0, {}), (False, 60, LORA)], [True, False], [0, 60], [{}, LORA]),
)
def test_a_release_with_new_tokens_loads_by_itself(tmp_path, kind, task, tied, room, adapter):
    """With transformers and peft alone, as the model card says, to the same logits."""
    from peft import PeftModel

    changes = {"tie_word_embeddings": tied, "vocab_size": small.TOKENS + room, "num_labels": 2}
    path = small.saved(tmp_path / "m", kind, task, **changes)
    settings = with_tokens(path, "USR:", "SYS:", task=task, adapter=adapter)
    tokenizer = models.load_tokenizer(settings)
    model = models.load_model(settings, 2 if task == "classification" else None, len(tokenizer))
    model = stirred(model)
    models.save(model, tokenizer, tmp_path / "out", str(path))
    auto = small._HEADS[task]
    if adapter:
        base = auto.from_pretrained(path)
        base.resize_token_embeddings(model.get_base_model().get_input_embeddings().num_embeddings)
        again = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    else:
        again = auto.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "out")("USR: hello SYS: yes")["input_ids"]])
    assert {small.TOKENS, small.TOKENS + 1} <= set(ids[0].tolist())
    assert torch.allclose(model(ids).logits, again(ids).logits, rtol=0, atol=1e-6)
    install_fast_layers(again)  # all that they differ by
    assert torch.equal(model(ids).logits, again(ids).logits)


def test_an_adapter_with_masks_of_kinds_loads_by_itself(tmp_path):
    """Beside a mask and a prompt, each of which is new as well."""
    from peft import PeftModel

    bare = str(maskless(tmp_path / "bare"))
    path = small.saved(tmp_path / "m", "llama", vocab_size=small.TOKENS)
    masks = {"NAME": "<NAME>", "PERSON": "<NAME>", "DATE": "<DATE>"}
    policy = Policy(expressions={"NAME": "Ann", "DATE": "May"}, masks=masks)
    settings = with_tokens(path, "USR:", detector=policy, adapter=LORA, tokenizer=bare)
    tokenizer = models.load_tokenizer(settings)
    model = stirred(models.load_model(settings, vocabulary=len(tokenizer)))
    assert models.added_tokens(model) == tuple(range(small.TOKENS, small.TOKENS + 4))
    models.save(model, tokenizer, tmp_path / "out", str(path))
    kept = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = torch.tensor(
        [kept("USR: <NAME> came on <DATE> with <mask>", add_special_tokens=False)["input_ids"]]
    )
    assert set(models.added_tokens(model)) <= set(ids[0].tolist())
    base = small._HEADS["causal-lm"].from_pretrained(path)
    base.resize_token_embeddings(len(kept))
    again = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    assert torch.allclose(model(ids).logits, again(ids).logits, rtol=0, atol=1e-6)


def test_an_adapter_without_new_tokens_holds_no_embeddings(root, tmp_path):
    model = loaded(root, "gpt2", adapter={"kind": "lora", "rank": 2})
    models.save(model, models.load_tokenizer(config("bundled")), tmp_path / "out", str(root))
    assert not any("wte" in name for name in load_file(tmp_path / "out" / "adapter_model.safetensors"))
