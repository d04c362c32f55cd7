"""A program gets what the command line gets, and its own objects take the same path."""

import copy
import functools
import json
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import confide
from confide.auditing.options import Options
from confide.data.unit_graph import UnitGraph
from confide.models.names import location
from confide.utils.errors import InputError
from tests.command import World, environment, refused
from tests.command import confide as command

WORDS = "the printer on floor three is out of paper again and nobody has a key to the store room".split()
PUBLIC = [
    "load_config", "plan", "account", "train", "audit", "report", "Config", "Plan", "Account", "Outcome", "Audit",
    "Guarantee",
    "ClippedSum", "PrivateStep", "mechanisms", "least_noise", "InputError", "CheckFailed",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(location("bundled"))


def made(tokenizer, seed=0):
    torch.manual_seed(seed)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ends))


def documents(seed=1):
    generator = np.random.default_rng(seed)
    return [{"text": " ".join(generator.choice(WORDS, 30)), "user": f"u{at % 40}"} for at in range(120)]


def config(folder, *overrides, **sections):
    raw = {
        "data": {"train": "tickets of the help desk", "unit": "user", "max_length": 64, "eval": 0.2},
        "privacy": {"epsilon": 8, "mechanism": "uls"},
        "train": {"steps": 4, "batch": 8},
        "adapter": {"kind": "full"},
        "run": str(folder),
    }
    return confide.load_config(raw | sections, overrides)


def row_loss(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["real"].long()).logits[:, :-1]
    losses = functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    counted = batch["real"][:, 1:]
    return (losses * counted).sum(1) / counted.sum(1).clamp(min=1)


def test_the_public_names_are_these_and_each_is_there():
    assert confide.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(confide, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = confide.nothing


def test_importing_confide_imports_nothing_heavy():
    heavy = ("torch", "numpy", "pydantic", "typer")
    code = f"import sys, confide; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.strip() == "[]"


def test_overrides_leave_the_mapping_as_it_was():
    raw = {"data": {"train": "x", "unit": "user"}, "privacy": {"epsilon": 8}}
    assert confide.load_config(raw, ["privacy.epsilon=3"]).privacy.epsilon == 3
    assert raw["privacy"] == {"epsilon": 8}


def test_a_program_gets_what_the_command_line_gets(tmp_path, model):
    world = World(tmp_path, model)
    settings = confide.load_config(world.path)
    plan = confide.plan(settings)
    assert json.loads(json.dumps(plan.to_json())) == json.loads(command("plan", world.path, "--json").out)
    assert plan.guarantee.epsilon == plan.to_json()["guarantee"]["epsilon"]
    outcome = confide.train(settings)
    assert outcome.finished
    assert confide.Guarantee.load(world.run / "release" / "guarantee.json") == outcome.guarantee
    found = confide.audit(world.run)
    kept = json.loads((world.run / "audit.json").read_text())
    assert json.loads(json.dumps(found.to_json())) == {k: v for k, v in kept.items() if k != "model"}
    assert confide.report(world.run) == world.run / "report.html"
    assert found.verdict == kept["verdict"]


def test_a_config_may_come_as_a_mapping_or_a_file(tmp_path, model):
    world = World(tmp_path, model)
    named, whole = confide.plan(str(world.path)), confide.plan(confide.load_config(world.path))
    assert confide.plan(world.raw).to_json() == named.to_json() == whole.to_json()


def test_what_is_given_is_trained_on_the_same_path(tmp_path, tokenizer):
    """A model, documents, an optimiser and a loss that say what the config says give its very weights."""
    text, saved, loaded = tmp_path / "text.jsonl", tmp_path / "model", tmp_path / "loaded"
    text.write_text("".join(json.dumps(row) + "\n" for row in documents()))
    made(tokenizer).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    train = {"steps": 4, "batch": 8, "optimizer": "sgd", "learning_rate": 0.1}
    privacy = {"epsilon": 8, "mechanism": "uls", "published_key": "for a test"}
    given = made(tokenizer)
    confide.train(
        config(tmp_path / "given", train=train, privacy=privacy, model=str(saved)),
        model=given,
        tokenizer=tokenizer,
        documents=documents(),
    )
    own = made(tokenizer)
    confide.train(
        config(tmp_path / "own", train=train, privacy=privacy, model=str(saved)),
        model=own,
        tokenizer=tokenizer,
        documents=documents(),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        loss=row_loss,
    )
    confide.train(config(loaded, f"data.train={text}", train=train, privacy=privacy, model=str(saved)))
    before, released = (
        made(tokenizer).state_dict(),
        GPT2LMHeadModel.from_pretrained(loaded / "release").state_dict(),
    )
    for name, values in given.state_dict().items():
        assert torch.allclose(values, released[name], atol=1e-5), name
    assert any(not torch.equal(values, before[name]) for name, values in released.items())
    assert any(not torch.equal(values, before[name]) for name, values in own.state_dict().items())


def test_a_run_with_a_scheduler_resumes_where_it_stopped(tmp_path, tokenizer):
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    ends = []
    for name, stops in (("whole", (None,)), ("cut", (1, 3, None))):
        settings = config(tmp_path / name, "privacy.published_key=for a test")
        for stop in stops:
            given = made(tokenizer)
            confide.train(
                settings, model=given, tokenizer=tokenizer, documents=documents(),
                optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), scheduler=schedule, until=stop,
            )  # fmt: skip
        ends.append(given.state_dict())
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
        assert rates == [0.1, 0.1, 0.05, 0.05]
    for name, values in ends[0].items():
        assert torch.equal(values, ends[1][name]), name


def test_a_run_does_not_go_on_with_another_optimiser(tmp_path, tokenizer):
    settings = config(tmp_path / "run")
    given = {"tokenizer": tokenizer, "documents": documents()}
    confide.train(settings, model=made(tokenizer), optimizer=torch.optim.Adagrad, until=2, **given)
    for other in (None, torch.optim.SGD, functools.partial(torch.optim.Adagrad, lr=1.0)):
        with pytest.raises(InputError, match="began with another config or other objects"):
            confide.train(settings, model=made(tokenizer), optimizer=other, **given)


LOSSES = {
    "a mean": (lambda m, b: row_loss(m, b).mean(), r"gives a tensor of shape \(\)"),
    "a sum of all": (lambda m, b: row_loss(m, b) + row_loss(m, b).sum(), "depends on the row beside it"),
    "padding counts": (
        lambda m, b: row_loss(m, b) * b["real"].sum(1) / b["real"].shape[1],
        "depends on the row beside it",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_mixes_rows_is_refused(tmp_path, tokenizer, name):
    loss, why = LOSSES[name]
    rows = [{"text": " ".join(WORDS[: 3 + at % 9]), "user": f"u{at % 40}"} for at in range(120)]
    with pytest.raises(InputError, match=f"loss: .*{why}"):
        confide.train(
            config(tmp_path / "run"), model=made(tokenizer), tokenizer=tokenizer, documents=rows, loss=loss
        )


def test_what_cannot_be_trained_is_refused(tmp_path, tokenizer):
    given = {"tokenizer": tokenizer, "documents": documents()}
    with pytest.raises(InputError, match="requires grad"):
        confide.train(config(tmp_path / "a"), model=made(tokenizer).requires_grad_(False), **given)
    small = made(tokenizer)
    small.resize_token_embeddings(100)
    with pytest.raises(InputError, match="100 embeddings"):
        confide.train(config(tmp_path / "b"), model=small, **given)
    with pytest.raises(InputError, match="read twice, not a list_iterator"):
        confide.train(config(tmp_path / "c"), tokenizer=tokenizer, documents=iter(documents()))
    rows = [*documents()[:3], {"text": "nobody wrote this", "user": ""}]
    with pytest.raises(InputError, match=r"document 3\b"):
        confide.train(config(tmp_path / "d"), tokenizer=tokenizer, documents=rows)


def test_a_guarantee_that_is_none_is_refused(tmp_path):
    path = tmp_path / "guarantee.json"
    with pytest.raises(InputError, match="no guarantee can be read"):
        confide.Guarantee.load(path)
    path.write_text("[1]")
    with pytest.raises(InputError, match="holds no guarantee"):
        confide.Guarantee.load(path)


def joined(sign):
    return lambda m, b: sign * row_loss(m, b)


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, m, b):
        return self.weight * row_loss(m, b)


def with_global(weight):
    """A function whose module has another value of a name that it reads."""
    source = lambda m, b: WEIGHT * row_loss(m, b)  # noqa: E731, F821
    return types.FunctionType(source.__code__, {"WEIGHT": weight, "row_loss": row_loss})


OTHERS = {
    "globals": (with_global(torch.tensor(1.0)), with_global(torch.tensor(2.0))),
    "lambdas": (lambda m, b: row_loss(m, b), lambda m, b: -row_loss(m, b)),
    "closures": (joined(1), joined(-1)),
    "objects": (Weighted(1.0), Weighted(2.0)),
    "partials with tensors": tuple(
        functools.partial(lambda w, m, b: w[0] * row_loss(m, b), torch.full((5000,), weight))
        for weight in (1.0, 2.0)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_of_the_same_name_has_other_noise(tmp_path, tokenizer, name):
    """Were the noise the same, the difference of two releases would be free of it."""
    given = {"tokenizer": tokenizer, "documents": documents()}
    first, second = OTHERS[name]
    confide.train(config(tmp_path), model=made(tokenizer), loss=first, until=1, **given)
    with pytest.raises(InputError, match="began with another config or other objects"):
        confide.train(config(tmp_path), model=made(tokenizer), loss=second, until=1, **given)
    confide.train(config(tmp_path), model=made(tokenizer), loss=first, until=2, **given)


@pytest.mark.parametrize("change", ["config", "what trains", "tokenizer"])
def test_another_model_of_the_same_weights_has_other_noise(tmp_path, tokenizer, change):
    given = {"tokenizer": tokenizer, "documents": documents(), "until": 1}
    confide.train(config(tmp_path), model=made(tokenizer), **given)
    other = made(tokenizer)
    if change == "config":
        other.config.activation_function = "relu"
    if change == "what trains":
        other.transformer.wpe.requires_grad_(False)
    if change == "tokenizer":
        given["tokenizer"] = copy.deepcopy(tokenizer)
        given["tokenizer"].bos_token = "the"
    with pytest.raises(
        InputError, match=r"began with another config or other objects|holds a run on other data"
    ):
        confide.train(config(tmp_path), model=other, **given)


class Counting(GPT2LMHeadModel):
    """Keeps what rows hold where no noise goes."""

    def __init__(self, settings):
        super().__init__(settings)
        self.seen = torch.nn.Parameter(torch.zeros(settings.vocab_size), requires_grad=False)

    def forward(self, input_ids=None, **more):
        with torch.no_grad():
            self.seen += torch.bincount(input_ids.reshape(-1), minlength=len(self.seen))
        return super().forward(input_ids=input_ids, **more)


def test_what_a_model_counts_of_rows_is_not_released(tmp_path, tokenizer):
    with pytest.raises(InputError, match="has changed while it trained"):
        confide.train(
            config(tmp_path),
            model=Counting(made(tokenizer).config),
            tokenizer=tokenizer,
            documents=documents(),
        )
    assert not (tmp_path / "release").exists()


def test_the_claim_says_that_the_loss_was_a_programs_own(tmp_path, tokenizer):
    given = {"tokenizer": tokenizer, "documents": documents()}
    own = confide.train(config(tmp_path), model=made(tokenizer), loss=row_loss, until=1, **given).guarantee
    assert any("program's own loss" in line for line in own.not_covered)


def test_a_run_of_a_program_is_audited_by_one(tmp_path, tokenizer):
    run = str(tmp_path / "run")
    confide.train(config(run), model=made(tokenizer), tokenizer=tokenizer, documents=documents())
    for verb in (("audit", run), ("train", run), ("verify", run)):
        refused(command(*verb), "was made by a program with its own model, tokenizer")
    before = tokenizer.get_vocab()
    found = confide.audit(run, model=made(tokenizer), tokenizer=tokenizer)
    assert found.verdict == "not attacked"
    assert found.membership is not None
    assert tokenizer.get_vocab() == before


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model": "gpt2"}, "model: give a torch module, not a str"),
        ({"tokenizer": "gpt2"}, "tokenizer: give one as transformers has them"),
        ({"documents": "mail.jsonl"}, "documents: give a list of mappings"),
        ({"documents": ["text"]}, "document 0 is a str"),
        ({"optimizer": 3}, "optimizer: give a function"),
        ({"optimizer": lambda p: None}, "optimizer: it made a NoneType"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS asks for several gradients"),
        ({"optimizer": lambda p: torch.optim.SGD(p[1:], lr=0.1)}, "it moves other parameters"),
        ({"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, "scheduler: it made a ReduceLROnPlateau"),
        ({"loss": lambda m, b: b["nothing"]}, "loss: it failed on .* rows .KeyError"),
        ({"loss": lambda m, b: (1, 2)}, "gives a tensor of shape tuple"),
    ],
)
def test_what_is_no_such_object_is_refused_in_a_sentence(tmp_path, tokenizer, given, why):
    with pytest.raises(InputError, match=why):
        confide.train(config(tmp_path), **{"tokenizer": tokenizer, "documents": documents()} | given)


def test_rows_of_another_tokenizer_are_made_again(tmp_path, tokenizer):
    """`plan` prepares rows with the config's tokenizer; a program's own, of other ids, must not train on those."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps(row) + "\n" for row in documents()))
    settings = config(tmp_path / "run", f"data.train={text}")
    confide.plan(settings)
    turned = json.loads(tokenizer.backend_tokenizer.to_str())
    size = len(turned["model"]["vocab"])
    special = {entry["id"] for entry in turned["added_tokens"]}
    turned["model"]["vocab"] = {
        piece: at if at in special or size - 1 - at in special else size - 1 - at
        for piece, at in turned["model"]["vocab"].items()
    }
    own = copy.deepcopy(tokenizer)
    own._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(turned))
    assert own("printer")["input_ids"] != tokenizer("printer")["input_ids"]
    confide.train(settings, model=made(tokenizer), tokenizer=own, until=1)
    rows = UnitGraph.open(tmp_path / "run" / "data" / "train")
    words = own.decode(rows.fetch(np.arange(1))[0], skip_special_tokens=True).split()
    assert set(words[1:-1]) <= set(WORDS)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: confide.load_config({}, "privacy.epsilon=3"), r"overrides: give a list of key=value"),
        (lambda: confide.load_config({}, {"privacy.epsilon": 3}), r"overrides: give a list of key=value"),
        (lambda: confide.plan(None), r"config: is None; give a config, a YAML file"),
        (lambda: confide.train({}, until=-1), r"until: -1; give how many steps"),
        (lambda: confide.account("uls", units=2000.5, batch=10), r"--units: 2000\.5 is no whole number"),
        (
            lambda: confide.account("uls", units=2000, batch=10, noise_multiplier="1"),
            "--noise: '1' is no number",
        ),
        (lambda: confide.account("uls", units=2000, batch=10, epsilon=True), "--epsilon: True is no number"),
        (lambda: Options(attacks=("claims",)), "--attacks claims: there are claim, exposure"),
        (lambda: Options(ranks="some"), "--ranks some: there are exact"),
    ],
)
def test_what_a_program_got_wrong_is_named(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_numbers_of_numpy_are_numbers():
    found = confide.account(
        "uls",
        units=np.int64(2000),
        batch=np.float32(10),
        steps=np.int32(3),
        noise_multiplier=np.float64(1),
        delta=1e-5,
    )
    assert found == confide.account("uls", units=2000, batch=10, steps=3, noise_multiplier=1, delta=1e-5)
