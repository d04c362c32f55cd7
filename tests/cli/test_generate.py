"""`confide generate`: what a released model says, as transformers itself would have it."""

import builtins
import io
import json
import re
import shutil
import socket
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_outputs import CausalLMOutput

from confide.data.chat import CHATML
from confide.models.names import location
from confide.runs.generate import Options, Prompter, Voice, _streamer, writer
from confide.utils.console import plain
from confide.utils.errors import InputError
from tests.command import World, confide, refused

PROMPT = "the printer on floor"
GREEDY = ("--temperature", "0", "--max-new-tokens", "8")


def said(world: World, *options, prompt: str = PROMPT) -> dict:
    found = confide("generate", world.run, prompt, "--json", *options)
    assert found.code == 0, found
    return json.loads(found.out)


def of_transformers(world: World, folder: str, prompt: str = PROMPT, steps: int = 8) -> str:
    """What the likeliest tokens are, by plain passes, of `release`, `twin/release` or the base."""
    tokenizer = AutoTokenizer.from_pretrained(world.run / "release")
    if folder == "base":
        model = AutoModelForCausalLM.from_pretrained(location(world.raw["model"]), dtype="float32")
    elif (world.run / folder / "adapter_config.json").exists():
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(location(world.raw["model"]), dtype="float32")
        if "special_tokens" in world.raw:
            base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        model = PeftModel.from_pretrained(base, world.run / folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(world.run / folder)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = [first, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    begun = len(ids)
    for _ in range(steps):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    return tokenizer.decode(ids[begun:], skip_special_tokens=True)


def test_the_likeliest_tokens_are_those_of_plain_passes(each):
    found = said(each, *GREEDY)["said"]
    assert list(found) == ["release"]
    assert found["release"]["text"] == of_transformers(each, "release")
    assert found["release"]["tokens"] <= 8
    longer = [of_transformers(each, folder, steps=40) for folder in ("release", "base")]
    assert longer[0] != longer[1]  # else nothing is shown


def test_base_and_twin_answer_beside_it(whole):
    found = said(whole, *GREEDY, "--beside", "base,twin")["said"]
    wanted = {"release": "release", "base": "base", "twin": "twin/release"}
    assert {name: answer["text"] for name, answer in found.items()} == {
        name: of_transformers(whole, folder) for name, folder in wanted.items()
    }


def test_without_a_twin_the_others_answer(bundled):
    found = confide("generate", bundled.run, PROMPT, *GREEDY, "--beside", "twin,base")
    assert found.code == 0
    assert "no twin beside it" in found.err
    assert "confide train" in found.err
    titles = re.findall(r"^--- (.*)$", found.out, re.MULTILINE)
    assert [title.split(" (")[0] for title in titles] == ["the released model", "the base model, bundled"]
    assert re.search(r"user-level DP, epsilon [\d.]+", titles[0])


def test_the_stream_is_the_text_and_nothing_else(whole):
    found = confide("generate", whole.run, PROMPT, *GREEDY)
    assert found.out == plain(said(whole, *GREEDY)["said"]["release"]["text"]) + "\n"


def test_words_are_handed_on_as_they_come(tokenizer):
    pieces = []
    stream = _streamer(tokenizer, pieces.append)
    stream.put(torch.tensor([[0, 5, 6]]))  # the prompt
    for token in tokenizer(" the printer on floor three")["input_ids"]:
        stream.put(torch.tensor([token]))
    assert len(pieces) > 3
    stream.end()
    assert "".join(pieces) == " the printer on floor three"


def test_a_seed_gives_the_same_again(whole):
    draws = ("--max-new-tokens", "12", "--temperature", "20", "--top-p", "1")
    texts = [said(whole, *draws, "--seed", seed)["said"] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    one, other = (said(whole, *draws) for _ in range(2))
    assert one["seed"] != other["seed"]
    assert said(whole, *draws, "--seed", one["seed"])["said"] == one["said"]


def test_top_p_leaves_the_likeliest(whole):
    assert said(whole, "--max-new-tokens", "8", "--top-p", "1e-9")["said"] == said(whole, *GREEDY)["said"]


def test_no_other_setting_of_the_model_has_a_say(whole, monkeypatch):
    """A model's own generation_config may hold top_k, beams, a least length."""
    wild = ("--seed", "3", "--temperature", "2", "--top-p", "1", "--max-new-tokens", "12")
    plain = said(whole, *wild)["said"]
    from transformers import GenerationConfig

    from confide.models import released

    own = released.generation_settings

    def changed(model):
        settings = own(model)
        settings.update(top_k=1, num_beams=2, max_length=3, min_new_tokens=9)
        assert isinstance(settings, GenerationConfig)
        return settings

    monkeypatch.setattr(released, "generation_settings", changed)
    assert said(whole, *wild)["said"] == plain


# prompts -------------------------------------------------------------------------------------------
def test_a_prompt_is_read_from_standard_input(whole, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    found = confide("generate", whole.run, "--json", *GREEDY)
    assert json.loads(found.out)["said"] == said(whole, *GREEDY)["said"]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_standard_input_is_no_prompt(whole, monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    refused(confide("generate", whole.run), "no prompt: standard input is empty")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch, *answers):
    """A person who types lines, or Ctrl-D or Ctrl-C."""
    typed = iter(answers)

    def answer(shown=""):
        given = next(typed)
        if isinstance(given, str):
            return given
        raise given

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", answer)


def test_prompts_are_asked_for_until_ctrl_d(whole, monkeypatch):
    at_terminal(monkeypatch, PROMPT, "", "the store", EOFError)
    found = confide("generate", whole.run, *GREEDY)
    assert found.code == 0
    texts = [
        plain(said(whole, *GREEDY, prompt=prompt)["said"]["release"]["text"])
        for prompt in (PROMPT, "the store")
    ]
    assert found.out == "\n".join([*texts, "", ""])
    assert "Ctrl-D leaves" in found.err


def test_ctrl_c_leaves(whole, monkeypatch):
    at_terminal(monkeypatch, PROMPT, KeyboardInterrupt)
    found = confide("generate", whole.run, *GREEDY)
    assert (found.code, found.err.splitlines()[-1]) == (130, "confide: stopped")
    assert "Traceback" not in found.err


def test_a_prompt_that_is_too_long_does_not_end_the_asking(whole, monkeypatch):
    at_terminal(monkeypatch, "printer " * 80, PROMPT, EOFError)
    found = confide("generate", whole.run, *GREEDY)
    assert found.code == 0
    assert "reads and writes at most 64" in found.err
    assert plain(said(whole, *GREEDY)["said"]["release"]["text"]) in found.out


def test_json_is_one_document(whole, monkeypatch):
    at_terminal(monkeypatch, PROMPT)
    refused(confide("generate", whole.run, "--json"), "--json prints one document: give a prompt")


def test_a_prompt_longer_than_the_model(whole):
    refused(confide("generate", whole.run, "printer " * 80), "the prompt has .* at most 64 together")


def test_what_fits_is_written(whole):
    found = writer(whole.run)
    prompter = Prompter(found.tokenizer, Options(max_new_tokens=500, temperature=0))
    voice = Voice("the model", found.model(), prompter)
    voice.ends = [99_999]  # no token
    answer = voice(PROMPT)
    assert (answer.stopped, answer.tokens) == ("longest row", 64 - len(prompter(PROMPT)))
    with torch.no_grad():
        voice.ends = [int(voice.model(torch.tensor([prompter(PROMPT)])).logits[0, -1].argmax())]
    assert voice(PROMPT).stopped == "end of text"


def test_a_control_sequence_reaches_no_terminal(whole, monkeypatch):
    """What a model says may hold anything."""
    from transformers import TextStreamer

    monkeypatch.setattr(TextStreamer, "put", lambda self, value: self.on_finalized_text("\x1b[2J"))
    found = confide("generate", whole.run, PROMPT, *GREEDY)
    assert "\x1b" not in found.out
    assert "\\x1b[2J" in found.out


# chat ----------------------------------------------------------------------------------------------
TEMPLATE = (
    "{% for turn in messages %}{% if turn.role == 'system' and turn.content == 'no' %}"
    "{{ raise_exception('no system here') }}{% endif %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(location("bundled"))


def test_a_chat_template_is_used_if_there_is_one(tokenizer):
    plain = Prompter(tokenizer, Options())
    assert not plain.chat
    assert tokenizer.decode(plain("Hi")) == "<|endoftext|>Hi"
    tokenizer.chat_template = TEMPLATE
    assert tokenizer.decode(Prompter(tokenizer, Options())("Hi")) == "[user] Hi\n[assistant]"
    asked = Prompter(tokenizer, Options(system="Be brief."))("Hi")
    assert tokenizer.decode(asked) == "[system] Be brief.\n[user] Hi\n[assistant]"
    assert Prompter(tokenizer, Options(chat=False))("Hi") == plain("Hi")


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (None, {"chat": True}, "has no chat template; leave it out"),
        (None, {"system": "x"}, "the tokenizer of this model has none"),
        (TEMPLATE, {"system": "x", "chat": False}, "which --no-chat leaves out"),
        (
            TEMPLATE,
            {"system": "no"},
            "the chat template refuses the prompt: no system here: leave --system out",
        ),
    ],
)
def test_a_template_that_is_not_there_or_refuses(tokenizer, template, options, message):
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=message):
        Prompter(tokenizer, Options(**options))("Hi")


# refusals ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beside", "base,mine"), "--beside mine: there are base, twin"),
        (("--temperature", "nan"), "--temperature nan: give a number"),
        (("--top-p", "0"), "--top-p 0: give a share above 0"),
        (("--seed", 2**31), "--seed 2147483648: give a whole number below"),
        (("--system", "Be brief."), "--system is for a chat template"),
        (("--chat",), "--chat: the tokenizer of this model has no chat template"),
    ],
)
def test_wrong_options(whole, options, message):
    refused(confide("generate", whole.run, PROMPT, *options), message)


def test_a_run_that_released_nothing(copied, tmp_path):
    shutil.rmtree(copied / "release")
    refused(
        confide("generate", copied, PROMPT),
        r"not finished, so nothing is released; `confide train .*` goes on",
    )
    shutil.rmtree(copied / "checkpoints")
    refused(confide("generate", copied, PROMPT), r"nothing was trained here yet; `confide train .*` does")
    refused(confide("generate", tmp_path / "none", PROMPT), "not a run folder")


@pytest.mark.parametrize("name", ["model.safetensors", "guarantee.json"])
def test_a_release_that_was_changed(copied, name):
    with open(copied / "release" / name, "ab") as stream:
        stream.write(b" ")
    refused(confide("generate", copied, PROMPT), "does not hold what this run released")
    refused(
        confide("export", copied, "--merge", copied.parent / "out"), "does not hold what this run released"
    )


def test_nothing_is_asked_of_a_network(each, monkeypatch):
    from huggingface_hub import constants

    asked = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: asked.append(given) or [])
    monkeypatch.setattr(socket.socket, "connect", lambda *given: asked.append(given))
    assert said(each, *GREEDY, "--beside", "base")
    assert asked == []


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (["Hi <|im", "_end|> more"], "Hi "),
        (["Hi<|im_end|>", "more"], "Hi"),
        (["a <", "b> <|", "im"], "a <b> <|im"),  # what only began like the mark is said at the end
    ],
)
def test_what_streams_ends_with_the_mark_of_a_turn(pieces, said):
    heard: list[str] = []
    stream = _streamer(AutoTokenizer.from_pretrained(location("bundled")), heard.append, "<|im_end|>")
    for at, piece in enumerate(pieces):
        stream.on_finalized_text(piece, stream_end=at == len(pieces) - 1)
    assert "".join(heard) == said


def test_a_chat_ends_where_its_template_ends_a_turn(model, monkeypatch):
    """A model that would go on for ever is stopped by the mark, though that is several tokens."""
    tokenizer = AutoTokenizer.from_pretrained(location("bundled"))
    tokenizer.chat_template = CHATML
    prompter = Prompter(tokenizer, Options(max_new_tokens=30, temperature=0.0))
    assert prompter.mark == "<|im_end|>"
    voice = Voice("the model", AutoModelForCausalLM.from_pretrained(model), prompter)
    ids = iter(
        tokenizer(f"Yes.{prompter.mark} No, and so on for ever", add_special_tokens=False)["input_ids"]
    )

    def forced(input_ids, **_):
        logits = torch.full((1, input_ids.shape[1], len(tokenizer)), -1e4)
        logits[0, -1, next(ids)] = 1e4
        return CausalLMOutput(logits=logits)

    monkeypatch.setattr(voice.model, "forward", forced)
    heard: list[str] = []
    found = voice("Well?", heard.append)
    assert (found.text, found.stopped) == ("Yes.", "end of turn")
    assert "".join(heard) == "Yes."


# a release without its run ------------------------------------------------------------------------------------------
@pytest.fixture
def alone(each, tmp_path):
    """A copy of a release, as somebody is given it."""
    return shutil.copytree(each.run / "release", tmp_path / "given")


def test_a_copy_of_a_release_says_what_the_run_says(each, alone, tmp_path):
    wanted = plain(
        said(each, *GREEDY)["said"]["release"]["text"]
    )  # a key is secret, so any token may be the likeliest
    kept = tmp_path / "run"  # a run folder of which only the release was kept
    shutil.copytree(alone, kept / "release")
    shutil.copy(each.run / "guarantee.json", kept)
    based = ("--base", location(each.raw["model"])) if (alone / "adapter_config.json").exists() else ()
    for folder in (alone, kept, each.run / "release"):
        found = confide(
            "generate", folder, PROMPT, *GREEDY, *(based if folder != each.run / "release" else ())
        )
        assert found.code == 0, found.err
        assert found.out == wanted + "\n"
        assert ("was not checked" in found.err) == (folder != each.run / "release")


def test_a_release_in_its_run_is_checked_however_it_is_named(whole, monkeypatch):
    monkeypatch.chdir(whole.run / "release")
    for name in (".", whole.run / "release", "../release"):
        found = confide("generate", name, PROMPT, *GREEDY)
        assert found.code == 0, found.err
        assert "was not checked" not in found.err


@pytest.mark.parametrize("architecture", ["LlamaForSequenceClassification", "BertForMaskedLM"])
def test_a_release_that_writes_no_text_is_refused(whole, tmp_path, architecture):
    given = shutil.copytree(whole.run / "release", tmp_path / "given")
    settings = json.loads((given / "config.json").read_text())
    (given / "config.json").write_text(json.dumps(settings | {"architectures": [architecture]}))
    refused(confide("generate", given, PROMPT), f"writes no text .{architecture}")


def test_a_release_without_its_run_has_nothing_beside_it(whole, tmp_path):
    given = shutil.copytree(whole.run / "release", tmp_path / "given")
    refused(confide("generate", given, PROMPT, *GREEDY, "--beside", "base"), "has nothing beside it")
    found = confide("generate", given, PROMPT, *GREEDY, "--beside", "twin")
    assert "no twin beside it" in found.err
    refused(confide("generate", whole.run, PROMPT, "--base", "gpt2"), "names its base itself")
