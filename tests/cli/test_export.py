"""`confide export`: the same model in other shapes, and nothing sent that nobody agreed to."""

import builtins
import io
import json
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from confide.models import released as model_of
from confide.models.names import location
from confide.runs import export as exporting
from confide.runs.released import Released
from confide.utils.errors import InputError
from tests.cli.conftest import finished
from tests.command import World, confide, environment, files_below, nothing_half_written, refused
from tests.places import ROOT

IDS = torch.tensor([[0, 5, 6, 7, 300, 41]])
GREEDY = ("--temperature", "0", "--max-new-tokens", "8", "--json")


def logits(model, ids=IDS) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal but for the rounding of float32, of values between the layers that noise may have made much larger."""
    return float((found - wanted).abs().max()) < 1e-4 * max(1.0, float(wanted.abs().max()))


def by_peft(world: World):
    """The release as peft alone loads it, on the base of the config."""
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(location(world.raw["model"]), dtype="float32")
    if "special_tokens" in world.raw:
        base.resize_token_embeddings(8193, mean_resizing=False)
    return PeftModel.from_pretrained(base, world.run / "release").eval()


@pytest.fixture(params=["adapted", "bundled"])
def adapter(request) -> World:
    return request.getfixturevalue(request.param)


# merged --------------------------------------------------------------------------------------------
def test_the_merged_model_computes_what_the_adapter_does(adapter, tmp_path):
    out = tmp_path / "merged"
    found = confide("export", adapter.run, "--merge", out)
    assert found.code == 0, found
    assert f"wrote {out}: the adapter in its base, float32" in found.out
    model, wanted = AutoModelForCausalLM.from_pretrained(out), logits(by_peft(adapter))
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert near(logits(model), wanted)
    base = AutoModelForCausalLM.from_pretrained(location(adapter.raw["model"]), dtype="float32")
    assert float((logits(base) - wanted[..., :8192]).abs().max()) > 1e-3  # there is something to merge
    said = json.loads(confide("generate", adapter.run, "the printer on", *GREEDY).out)["said"]["release"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = torch.tensor([[0, *tokenizer("the printer on", add_special_tokens=False)["input_ids"]]])
    drawn = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(drawn[0, ids.shape[1] :], skip_special_tokens=True) == said["text"]
    assert "special_tokens" not in adapter.raw or tokenizer.convert_tokens_to_ids("<name>") == 8192


def test_all_that_a_release_says_goes_along(adapted, tmp_path):
    out, release = tmp_path / "merged", adapted.run / "release"
    assert confide("export", adapted.run, "--merge", out).code == 0
    assert (out / "guarantee.json").read_bytes() == (release / "guarantee.json").read_bytes()
    ours, theirs = ((folder / "README.md").read_text() for folder in (out, release))
    theirs = theirs.replace("library_name: peft", "library_name: transformers")
    assert ours.partition("## Use")[0] == theirs.partition("## Use")[0]
    assert "peft" in theirs
    assert "peft" not in ours
    assert set(files_below(out)) >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not list(out.glob("*.bin"))
    for content in files_below(out).values():
        assert str(adapted.folder).encode() not in content  # no path of this machine
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in out.rglob("*"))
    nothing_half_written(tmp_path)


def test_a_whole_model_stays_as_it_is(whole, tmp_path):
    found = confide("export", whole.run, "--merge", tmp_path / "out", "--json")
    assert json.loads(found.out) == {"folder": str(tmp_path / "out"), "dtype": "float32", "merged": False}
    ours, theirs = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "out", whole.run / "release")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(values, theirs[name]) for name, values in ours.items())


def test_words_that_people_added_to_the_card_stay(adapted, tmp_path):
    from confide.runs.card import Use, with_use

    use = Use(Released.of(adapted.run).facts, "base", is_path=False, is_adapter=False)
    card = (adapted.run / "release" / "README.md").read_text()
    edited = card.replace("# A language", "# Our language") + "\nContact: privacy@example.com\n"
    changed = with_use(edited, use)
    assert "\n# Our language" in changed
    assert changed.endswith("Contact: privacy@example.com\n")
    assert changed.count("```python") == 1
    assert "peft" not in changed
    assert with_use("# All is ours\n", use).count("```python") == 1


# llama.cpp -----------------------------------------------------------------------------------------
def test_for_llama_cpp_it_is_whole_and_of_16_bits(adapter, tmp_path):
    out = tmp_path / "ready"
    found = confide("export", adapter.run, "--gguf-ready", out)
    assert found.code == 0, found
    last = found.out.splitlines()[-1]
    assert f"convert_hf_to_gguf.py {out} --outfile {out}.gguf --outtype f16" in last
    assert {values.dtype for values in load_file(out / "model.safetensors").values()} == {torch.float16}
    settings = json.loads((out / "config.json").read_text())
    assert (settings["architectures"], settings["dtype"]) == (["GPT2LMHeadModel"], "float16")
    assert settings["n_ctx"] == settings["n_positions"]  # without it the converter fails
    model = AutoModelForCausalLM.from_pretrained(out, dtype="float32")
    assert float((logits(model) - logits(by_peft(adapter))).abs().max()) < 0.05


def test_what_float16_cannot_hold_is_bfloat16(whole, tmp_path, monkeypatch):
    load = model_of.load_released

    def loud(*given):
        model = load(*given)
        with torch.no_grad():
            model.transformer.ln_f.bias[0] = 1e6
        return model

    monkeypatch.setattr(model_of, "load_released", loud)
    found = json.loads(confide("export", whole.run, "--gguf-ready", tmp_path / "a", "--json").out)
    assert found["dtype"] == "bfloat16"
    assert found["next"][-1] == "bf16"
    refused(
        confide("export", whole.run, "--merge", tmp_path / "b", "--dtype", "float16"),
        "--dtype float16: .*ln_f.bias",
    )
    assert not (tmp_path / "b").exists()
    nothing_half_written(tmp_path)


# where it may not go -------------------------------------------------------------------------------
@pytest.mark.parametrize("option", ["--merge", "--gguf-ready"])
def test_nothing_is_overwritten(whole, tmp_path, option):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        refused(
            confide("export", whole.run, option, tmp_path / name),
            f"{name}: exists already, and nothing is overwr",
        )
    assert files_below(tmp_path) == {"full/mine.txt": b"mine", "file": b"mine"}
    (tmp_path / "empty").mkdir()
    assert confide("export", whole.run, option, tmp_path / "empty").code == 0
    assert (tmp_path / "empty" / "model.safetensors").exists()


def test_what_fails_leaves_nothing(whole, tmp_path, monkeypatch):
    def fail(*given):
        raise InputError("a fault put in")

    monkeypatch.setattr(exporting, "_write_card", fail)
    refused(confide("export", whole.run, "--merge", tmp_path / "out"), "a fault put in")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give one of --merge, --gguf-ready, --push-to-hub$"),
        (("--merge", "a", "--push-to-hub", "b"), "and not --merge and --push-to-hub together"),
        (("--merge", "a", "--dtype", "int8"), "--dtype int8: there are float32, bfloat16, float16"),
        (("--gguf-ready", "a", "--dtype", "float32"), "--dtype float32: there are bfloat16, float16"),
        (("--merge", "a", "--public"), "--public is an option of --push-to-hub"),
        (("--merge", "a", "--private"), "--private is an option of --push-to-hub"),
        (("--merge", "a", "--yes"), "--yes is an option of --push-to-hub"),
        (("--push-to-hub", "a", "--dtype", "float16"), "the release is sent as it is"),
    ],
)
def test_wrong_options(whole, options, message):
    refused(confide("export", whole.run, *options), message)


# to a hub ------------------------------------------------------------------------------------------
class Hub:
    """Stands for `huggingface_hub.HfApi`; notes what it is asked to do."""

    def __init__(self):
        self.done: list[tuple] = []
        self.repositories: dict[str, bool] = {}  # whether each is private

    def __call__(self):
        return self

    def whoami(self):
        return {"name": "us"}

    def repo_exists(self, name):
        return name in self.repositories

    def model_info(self, name):
        return SimpleNamespace(private=self.repositories[name])

    def create_repo(self, name, private):
        self.done.append(("create", name, private))

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.done.append(("upload", repo_id, str(folder_path)))
        return SimpleNamespace(repo_url=f"https://hub.example/{repo_id}")


@pytest.fixture
def hub(monkeypatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    return made


def at_terminal(monkeypatch, answer):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def say(shown=""):
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", say)


def test_nothing_is_sent_unless_somebody_agrees(whole, hub, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    refused(confide("export", whole.run, "--push-to-hub", "us/mail"), "nobody can be asked here: --yes sends")
    for answer in ("", "n", "no", "yess", EOFError, KeyboardInterrupt):
        at_terminal(monkeypatch, answer)
        found = confide("export", whole.run, "--push-to-hub", "us/mail")
        assert found.code == 130, answer
        assert "sent" not in found.out.replace("send", "")
    refused(confide("export", whole.run, "--push-to-hub", "us/mail", "--json"), "nobody can be asked here")
    for option in ("--merge", "--gguf-ready"):
        assert confide("export", whole.run, option, whole.folder / f"out{option}").code == 0
    assert hub.done == []


def test_what_was_shown_is_sent(whole, hub, monkeypatch):
    at_terminal(monkeypatch, "y")
    found = confide("export", whole.run, "--push-to-hub", "mail")
    assert found.code == 0, found
    assert hub.done == [("create", "us/mail", True), ("upload", "us/mail", str(whole.run / "release"))]
    assert "to send to us/mail, private:" in found.out
    for name, content in files_below(whole.run / "release").items():
        assert f"  {name}  {len(content):,} bytes" in found.out
    assert "The formal statement is user-level DP" in found.out
    assert found.out.splitlines()[-1].endswith("to https://hub.example/us/mail (private)")


def test_public_is_said_and_yes_does_not_ask(whole, hub):
    found = confide("export", whole.run, "--push-to-hub", "them/mail", "--public", "--yes", "--json")
    assert hub.done[0] == ("create", "them/mail", False)
    sent = json.loads(found.out)
    assert (sent["sent"], sent["private"]) == ("them/mail", False)
    assert "guarantee.json" in sent["files"]


def test_what_was_to_be_private_goes_to_no_public_repository(whole, hub, monkeypatch):
    hub.repositories = {"us/open": False, "us/closed": True}
    refused(
        confide("export", whole.run, "--push-to-hub", "us/open", "--yes"),
        "exists already and is public, and --private",
    )
    refused(
        confide("export", whole.run, "--push-to-hub", "us/closed", "--yes", "--public"),
        "is private, and --public",
    )
    assert hub.done == []
    at_terminal(monkeypatch, "y")
    found = confide("export", whole.run, "--push-to-hub", "us/closed")
    assert "which exists: files of the same name are replaced" in found.out
    assert hub.done == [("upload", "us/closed", str(whole.run / "release"))]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            HfHubHTTPError("no", response=mock.Mock(status_code=403)),
            "HTTP 403",
        ),
        (huggingface_hub.errors.LocalTokenNotFoundError("no"), "not logged in; `hf auth login`"),
        (huggingface_hub.errors.HFValidationError("no"), "is no name of a model"),
        (huggingface_hub.errors.OfflineModeIsEnabled("no"), "HF_HUB_OFFLINE is set"),
        (ConnectionError("no"), "the hub cannot be reached"),
        (type("ConnectError", (Exception,), {"__module__": "httpx2"})("no"), "the hub cannot be reached"),
    ],
)
def test_a_hub_that_refuses(whole, hub, monkeypatch, error, message):
    def fail(*given, **more):
        raise error

    monkeypatch.setattr(hub, "whoami", fail)
    refused(
        confide("export", whole.run, "--push-to-hub", "us/mail", "--yes"),
        f"--push-to-hub us/mail: .*{message}",
    )


# the card ------------------------------------------------------------------------------------------
def code_of(world: World, folder="release") -> str:
    return (world.run / folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]


def run_card(world: World, folder, monkeypatch, capsys) -> tuple[dict, str]:
    """Paste the card's code and run it where the release lies, with a base folder of the name that it gives."""
    if world.raw["model"] != "bundled":
        (folder / "model").symlink_to(world.raw["model"])
    (folder / "release").symlink_to(world.run / "release")
    monkeypatch.chdir(folder)
    names: dict = {}
    capsys.readouterr()
    exec(code_of(world), names)
    return names, capsys.readouterr().out


def test_the_code_of_a_card_loads_the_model_and_prints_a_sentence(each, tmp_path, monkeypatch, capsys):
    names, printed = run_card(each, tmp_path, monkeypatch, capsys)
    assert printed.startswith("The meeting is")
    assert len(names["tokens"][0]) > names["inputs"]["input_ids"].shape[1]
    wanted = logits(Released.of(each.run).model())
    assert near(logits(names["model"].eval()), wanted)


def test_the_card_tells_a_hub_what_the_model_is(adapted, tmp_path):
    from huggingface_hub import ModelCard

    released = ModelCard.load(adapted.run / "release" / "README.md").data.to_dict()
    assert released["library_name"] == "peft"
    assert released["pipeline_tag"] == "text-generation"
    assert {"confide", "differential-privacy", "lora"} <= set(released["tags"])
    assert "base_model" not in released  # a folder of those who trained is no name on a hub
    assert confide("export", adapted.run, "--merge", tmp_path / "merged").code == 0
    merged = ModelCard.load(tmp_path / "merged" / "README.md").data.to_dict()
    assert merged["library_name"] == "transformers"
    assert merged["tags"] == released["tags"]


def test_the_card_says_where_the_base_is(adapted, bundled):
    said = {
        name: (world.run / "release" / "README.md").read_text()
        for name, world in (("a", adapted), ("b", bundled))
    }
    assert "the folder `model` of those who trained it: put your path" in said["a"]
    assert "# put your path to it here" in said["a"]
    assert "lies inside the Python package confide" in said["b"]
    assert 'from_pretrained("bundled"' not in said["b"]


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "confide":
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
try:
    import confide
except ImportError:
    print("blocked")
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, folder, out = sys.argv[1:4]
model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
if len(sys.argv) > 4:
    model.resize_token_embeddings(int(sys.argv[4]), mean_resizing=False)
model = PeftModel.from_pretrained(model, folder).eval()
with torch.no_grad():
    torch.save(model(torch.tensor([[0, 5, 6, 7, 300, 41]])).logits, out)
"""


def test_an_adapter_loads_in_plain_peft_without_confide(adapter, tmp_path):
    more = ["8193"] if "special_tokens" in adapter.raw else []
    given = [location(adapter.raw["model"]), str(adapter.run / "release"), str(tmp_path / "logits.pt"), *more]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *given], env=environment(), capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "blocked\n"), done.stderr
    wanted = logits(Released.of(adapter.run).model())
    assert near(torch.load(tmp_path / "logits.pt"), wanted)


# other tasks ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def classifier(tmp_path_factory, model) -> World:
    """An adapter of three classes, whose head is the adapter's."""
    folder = tmp_path_factory.mktemp("classifier")
    world = World(folder, model)
    rows = [json.loads(line) for line in world.text.read_text().splitlines()]
    text = "".join(
        json.dumps(row | {"kind": ("good", "bad", "odd")[at % 3]}) + "\n" for at, row in enumerate(rows)
    )
    (folder / "three.jsonl").write_text(text)
    lora = {"kind": "lora", "rank": 2}
    changes = {"task": "classification", "data__label": "kind", "data__train": str(folder / "three.jsonl")}
    return finished(folder, model, adapter=lora, **changes)


def test_a_classifier_is_merged_and_writes_no_text(classifier, tmp_path, monkeypatch, capsys):
    refused(confide("generate", classifier.run, "the"), "a model of task classification writes no text")
    refused(
        confide("export", classifier.run, "--gguf-ready", tmp_path / "no"), "llama.cpp is for a causal-lm"
    )
    out = tmp_path / "merged"
    assert confide("export", classifier.run, "--merge", out).code == 0
    wanted = logits(Released.of(classifier.run).model())
    assert wanted.shape == (1, 3)
    merged = AutoModelForSequenceClassification.from_pretrained(out)
    assert near(logits(merged), wanted)
    names, printed = run_card(classifier, tmp_path, monkeypatch, capsys)
    assert printed in ("class 0\n", "class 1\n", "class 2\n")
    assert near(logits(names["model"].eval()), wanted)
