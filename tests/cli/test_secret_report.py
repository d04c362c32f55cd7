"""`confide secrets`: what it finds and shows, and that nothing which leaves the text tells a secret's content."""

import csv
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from confide.cli import secret_report as secrecy
from confide.config.loading import check
from confide.data.readers import Document
from confide.data.spans import Mention
from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.mechanisms import secret
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.command import (
    Result,
    World,
    confide,
    files_below,
    nothing_half_written,
    says_nothing_else,
    tiny_model,
)
from tests.data.readers.test_code import committed

WORDS = "the printer on floor three is out of paper again and nobody has a key to the store room".split()
LISTED = ("Quetzalcoatl", "Blue Heron", "kraken", "Ünderwöld")
ACCOUNTS = [f"ZZ{n}{n}-77{n}4-00{n}1" for n in range(1, 5)]
CONTENT = (*LISTED, *ACCOUNTS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def texts(n: int = 60) -> list[dict]:
    generator = random.Random(4)
    rows = []
    for number in range(n):
        words = generator.choices(WORDS, k=generator.randint(5, 40))
        for content in generator.sample(CONTENT, k=generator.choice([0, 0, 1, 1, 2])):
            words.insert(generator.randrange(len(words)), content)
        rows.append({"text": " ".join(words), "client": f"c{number % 5}" if number % 3 == 0 else ""})
    return rows


@pytest.fixture
def world(tmp_path, model):
    made = World(tmp_path, model)
    made.text.write_text("".join(json.dumps(row) + "\n" for row in texts()))
    (tmp_path / "words.txt").write_text("# names\n" + "\n".join(LISTED) + "\nnever there\n")
    (tmp_path / "rows.txt").write_text("document,secret\n3\n7,merger\n11,merger\n")
    made.raw["data"] = {"train": str(made.text), "unit": None, "eval": None, "max_length": 16}
    made.raw["privacy"] = {"mechanism": "secret", "delta": 1e-3}
    made.raw["secrets"] = {
        "words": str(tmp_path / "words.txt"),
        "patterns": {"account": r"ZZ\d\d-\d{4}-\d{4}", "project": "project Nightingale"},
        "column": "client",
        "rows": str(tmp_path / "rows.txt"),
        "prior": 1e-4,
        "posterior": 0.05,
        "recall": 1.0,
    }
    made.raw["train"] |= {"steps": 2, "batch": 6.0}
    return made.save()


def says_nothing(*said: str | bytes) -> None:
    for text in said:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        folded = shown.casefold()
        assert not [content for content in CONTENT if content.casefold() in folded]
        # among hundreds of thousands of weights a few characters stand by chance, and their bytes are no UTF-8
        parts = (
            "quetzal|coatl|kraken|heron"
            if "\ufffd" in shown
            else r"zz\d\d-|77\d4-00|quetzal|coatl|kraken|heron"
        )
        assert not re.search(parts, folded)


def done(result: Result) -> str:
    assert result.code == 0, result
    says_nothing(result.out, result.err)
    return result.out


# tag ----------------------------------------------------------------------------------------------------------
def test_tagging_counts_what_is_there(world):
    facts = json.loads(done(confide("secrets", "tag", world.path, "--json")))
    rows = texts()
    joined = [row["text"] for row in rows]
    found = {name: entry["secrets"] for name, entry in facts["classes"].items()}
    assert found == {
        "words": sum(any(word in text for text in joined) for word in LISTED),
        "account": sum(any(account in text for text in joined) for account in ACCOUNTS),
        "client": len({row["client"] for row in rows if row["client"]}),
        "rows": 1,
        "merger": 1,
    }
    prepared = json.loads((world.run / "data/prepared.json").read_text())["facts"]
    assert facts["rows_with"] + facts["rows_without"] == prepared["rows"]
    assert facts["rows_without"] > 0
    for entry in facts["classes"].values():
        assert entry["secrets"] <= entry["mentions"] <= entry["secrets"] * entry["most"]
    nothing_half_written(world.run)


def test_examples_are_masked_and_name_their_secrets(world):
    world.set(secrets__column=None, secrets__rows=None)
    out = done(confide("secrets", "tag", world.path))
    examples = [line for line in out.splitlines() if re.match(r"(words|account):\d+: ", line)]
    assert len(examples) == 5
    assert len({line.partition(": ")[0] for line in examples}) == 5
    for line in examples:
        assert secrecy.MASK in line
        assert len(line) < 200


TEXT = "so the kraken said ZZ11-7714-0011 to all of us, and then nothing more was ever heard of it again. The end."


@pytest.mark.parametrize(
    ("spans", "shown"),
    [
        ([(7, 13)], "so the ███ said"),
        ([(7, 13), (7, 18)], "so the ███ ZZ11"),  # one within another
        ([(7, 13), (10, 18)], "so the ███ ZZ11"),  # overlapping
        ([(7, 13), (13, 18)], "so the ███ ZZ11"),  # side by side
        ([(7, 13), (19, 33)], "so the ███ said ███ to"),
        ([(7, 13), (40, 60)], "all███"),  # partly beyond what is shown
        ([(0, 13), (7, 13)], "███ said"),
        ([(7, 13), (7, len(TEXT))], "so the ███"),
    ],
)
def test_whatever_is_a_secret_is_masked(spans, shown):
    mentions = [Mention(f"a:{n}", start, end) for n, (start, end) in enumerate(spans)]
    document = Document(TEXT, ("u",), None, "here")
    for mention in mentions:
        context = secrecy._masked(document, mention, mentions).replace(secrecy.MASK, "███")
        for start, end in spans:
            for word in re.findall(r"\w{3,}", TEXT[start:end]):
                assert word not in context or TEXT.count(word) > 1
    context = secrecy._masked(document, mentions[0], mentions).replace(secrecy.MASK, "███")
    assert shown in context


def test_of_a_document_that_is_a_secret_as_a_whole_nothing_is_shown():
    """A column or a list of rows makes all of a document a secret; a word in it is no reason to show the rest."""
    mentions = [Mention("patient:17", 0, len(TEXT)), Mention("words:3", 7, 13)]
    for mention in mentions:
        context = secrecy._masked(Document(TEXT, ("u",), None, "mail.jsonl line 3"), mention, mentions)
        assert not [word for word in re.findall(r"\w{4,}", TEXT) if word in context.split()]


def test_other_lists_are_read_again(world):
    first = json.loads(done(confide("secrets", "tag", world.path, "--json")))
    (world.folder / "words.txt").write_text("kraken\n")
    second = json.loads(done(confide("secrets", "tag", world.path, "--json")))
    assert second["classes"]["words"]["secrets"] == 1 < first["classes"]["words"]["secrets"]
    (world.folder / "rows.txt").write_text("3\n")
    third = json.loads(done(confide("secrets", "tag", world.path, "--json")))
    assert "merger" not in third["classes"]


# solve --------------------------------------------------------------------------------------------------------
def test_the_table_holds_every_secret_with_what_it_gets(world):
    world.set(secrets__program={"c": 0.5})
    (world.folder / "values.csv").write_text(
        "id,prior,posterior\nwords:2,1e-3,0.02\nwords:2,0.01,0.3\nclient,0.2,0.4\n"
    )
    world.set(secrets__values=str(world.folder / "values.csv"))
    found = json.loads(done(confide("secrets", "solve", world.path, "--json")))
    assert found["noise_multiplier"]["kl"] > found["noise_multiplier"]["blow-up"] > 0
    assert found["rows_kept"] <= found["rows"]
    assert found["effective_rows"] <= found["rows_kept"]
    assert 0 < found["largest_probability"] <= 1
    with open(world.run / "secrets.csv", newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    says_nothing((world.run / "secrets.csv").read_bytes())
    assert len({row["id"] for row in table}) == found["secrets"]
    pairs = {(row["id"], row["prior"], row["posterior"]) for row in table}
    assert {("words:2", "0.001", "0.02"), ("words:2", "0.01", "0.3"), ("client:c0", "0.2", "0.4")} <= pairs
    assert ("words:3", "0.0001", "0.05") in pairs
    assert (
        sum(int(row["rows"]) for row in table if row["id"] != "words:2" or row["prior"] == "0.001")
        == (found["incidences"])
    )
    for row in table:
        own = row["id"].startswith(("words:", "account:"))
        assert (row["published_as"] == row["id"]) == (own or row["id"] == "rows")
        assert float(row["prior"]) <= float(row["reached_at_most"]) <= float(row["posterior"])
        # rows are drawn at most as often as the most frequent of them
        assert float(row["expected_uses"]) <= int(row["rows"]) * found["largest_probability"] * 2 * (1 + 1e-5)
    assert max(float(row["reached_at_most"]) / float(row["posterior"]) for row in table) > 0.9


def test_with_no_row_dropped_the_table_is_that_of_binomials(world):
    found = json.loads(done(confide("secrets", "solve", world.path, "--json")))
    assert found["rows_kept"] == found["effective_rows"] == found["rows"]
    rate = 6.0 / found["rows"]
    assert found["largest_probability"] == pytest.approx(rate)
    s = found["noise_multiplier"]["blow-up"]
    with open(world.run / "secrets.csv", newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    for row in table:
        assert float(row["expected_uses"]) == pytest.approx(int(row["rows"]) * rate * 2, rel=1e-5)
    most = max(table, key=lambda row: int(row["rows"]))
    process = MixtureOfGaussians.binomial(int(most["rows"]), rate, 2)
    reached = float(process.curve(s).reconstruction(1e-4))
    assert reached == pytest.approx(float(most["reached_at_most"]), rel=1e-3)
    assert 0.04 < reached <= 0.05


TOKENIZERS = ("release/tokenizer.json",)  # of the base model: thousands of pieces of words


# a run --------------------------------------------------------------------------------------------------------
def test_no_file_of_a_run_but_the_text_tells_a_secret(world, monkeypatch):
    monkeypatch.setattr(secret, "SWEEP", (1.0,))
    world.set(secrets__program={"c": 0.5}, privacy__accountant="kl")
    for verb in (("plan",), ("secrets", "tag"), ("train",)):
        done(confide(*verb, world.path, "--json"))
    files = {
        name: content for name, content in files_below(world.run).items() if not name.startswith("data/")
    }
    assert {"guarantee.json", "ledger.jsonl", "metrics.jsonl", "release/guarantee.json"} <= set(files)
    says_nothing(*(content for name, content in files.items() if name not in TOKENIZERS))
    says_nothing(*files)
    guarantee = json.loads(files["release/guarantee.json"])
    assert guarantee["theorem"]
    assert guarantee["notion"] == "(p, r)-secret protection"
    for name, *_ in guarantee["closest_secrets"]:  # no value of a column, no name of a list
        assert re.fullmatch(r"(words|account):\d+|rows|(client|secret) no\. \d+", name)
    assert not re.search(r"merger|\bc[0-4]\b", json.dumps(guarantee))
    # what a pattern says stays in the config, which is not released
    telling = {name for name, content in files.items() if b"nightingale" in content.lower()}
    assert telling == {"config.yaml"}


# what a run is bound to ------------------------------------------------------------------------------------------
@pytest.fixture
def settings(tmp_path, model):
    def made(posterior: float, other: float, c: float = 1.0, **train):
        if not (tmp_path / "text.jsonl").exists():
            said = [f"row {i} says {('alpha', 'beta', 'nothing')[i % 3]} and {i * i}" for i in range(48)]
            (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in said))
        words = f"word,prior,posterior\nalpha,1e-6,{posterior}\nbeta,1e-6,{other}\n"
        (tmp_path / "words.csv").write_text(words)
        return check(
            {
                "model": str(model),
                "tokenizer": "bundled",
                "data": {"train": str(tmp_path / "text.jsonl"), "unit": None, "eval": None, "max_length": 16},
                "privacy": {"mechanism": "secret"},
                "secrets": {"words": str(tmp_path / "words.csv"), "recall": 1.0, "program": {"c": c}},
                "train": {"steps": 1, "batch": 6.0, "learning_rate": 1.0, "optimizer": "sgd"} | train,
                "run": str(tmp_path / "run"),
            }
        )

    return made


def moved(settings) -> torch.Tensor:
    """How the weights moved in a run: the noised gradient."""
    before = load_file(Path(settings.model) / "model.safetensors")
    fine_tune(Run(settings))
    after = load_file(Run(settings).release / "model.safetensors")
    return torch.cat([(after[name] - before[name]).double().flatten() for name in sorted(after)])


def released(settings) -> dict:
    return json.loads((Run(settings).release / "guarantee.json").read_text())


def test_a_run_with_other_priors_does_not_go_on(settings):
    fine_tune(Run(settings(2e-6, 2e-6, steps=3, checkpoint_every=1)), until=1)
    for posterior, other, c in ((4e-6, 4e-6, 1.0), (2e-6, 9e-6, 0.5)):
        with pytest.raises(InputError, match=r"config|ledger"):
            fine_tune(Run(settings(posterior, other, c, steps=3, checkpoint_every=1)))
    fine_tune(Run(settings(2e-6, 2e-6, steps=3, checkpoint_every=1)))


@pytest.mark.parametrize("c", [1.0, 0.4])
def test_other_priors_in_a_partly_wiped_folder_do_not_meet_the_same_noise(settings, c):
    """The difference of two runs with one noise, each scaled by its own multiplier, is the gradient in the clear."""
    first = moved(settings(2e-6, 2e-6, c))
    s = released(settings(2e-6, 2e-6, c))["noise_multiplier"]
    run = Run(settings(4e-6, 2.5e-6, c))
    shutil.rmtree(run.checkpoints.folder)
    run.ledger_path.unlink()
    try:
        second = moved(settings(4e-6, 2.5e-6, c))
    except InputError:
        return  # refused, which is sound
    other = released(settings(4e-6, 2.5e-6, c))["noise_multiplier"]
    assert other != s
    assert float((first / s - second / other).norm()) > float(first.norm() / s)  # independent: 1.4 times


def test_the_ledger_and_the_release_tell_of_the_same_noise(settings):
    made = settings(2e-6, 4e-6, 0.5)
    fine_tune(Run(made))
    lines = [json.loads(line) for line in Run(made).ledger_path.read_text().splitlines()]
    assert lines[0]["noise_multiplier"] == lines[1]["noise_multiplier"] == released(made)["noise_multiplier"]
    found = released(made)
    assert found["theorem"]
    assert {name for name, *_ in found["closest_secrets"]} == {"words:2", "words:3"}
    assert lines[0]["sampling"]["least"] < lines[0]["sampling"]["greatest"]
    assert len(lines[0]["sampling"]["rates"]) >= 32  # a keyed hash, never the rates themselves


def test_the_job_draws_what_the_ledger_says(settings):
    job = Job.of(Run(settings(2e-6, 4e-6, 0.5)), Console(quiet=True))
    rates = job.mechanism.sampler(job.prepared.train, job.key, "main", lambda: np.zeros(1)).sampling.rates
    header = job.header()["sampling"]
    assert header["rates"] == job.key.fingerprint(np.ascontiguousarray(rates, "<f8").tobytes())
    assert rates.sum() == pytest.approx(6.0)


# code bases ---------------------------------------------------------------------------------------------------
TREE = {
    "acme/__init__.py": "",
    "acme/billing/__init__.py": "from .charge import total\n",
    "acme/billing/charge.py": "total = 1  # Quetzalcoatl\n" * 4,
    "acme/reports.py": "from acme.billing import total\nprint(total)\n",
    "acme/text.py": "import os\nprint(os.name)\n" * 3,
    "README.md": "# acme\n\nwhat it is\n" * 5,
    "CODEOWNERS": "/acme/text.py @acme/pay\n",
}


@pytest.fixture
def code(world):
    committed(world.folder / "code", TREE)
    world.raw["data"] |= {"train": str(world.folder / "code"), "format": "code"}
    world.raw["secrets"] = {
        "repository": {"packages": ["acme.billing"], "owners": ["@acme/pay"], "paths": ["README.md"]},
        "prior": 1e-3,
        "posterior": 0.1,
    }
    world.raw["train"]["batch"] = 3.0
    return world.save()


def test_a_code_base_by_package_owner_and_path(code):
    facts = json.loads(done(confide("secrets", "tag", code.path, "--json")))
    assert {name: entry["secrets"] for name, entry in facts["classes"].items()} == {
        "packages": 1,
        "owners": 1,
        "paths": 1,
    }
    assert facts["counts"]["files in the code base"] == len(TREE)
    out = done(confide("secrets", "tag", code.path))
    assert "packages:acme.billing: (all of " in out
    assert "total" not in out
    assert "secrets.csv (private)" in done(confide("secrets", "solve", code.path))
    table = (code.run / "secrets.csv").read_text()
    assert "packages:acme.billing,packages:acme.billing," in table
    assert re.search(r"^owners:@acme/pay,owners no\. \d,", table, re.MULTILINE)
    done(confide("train", code.path, "--json"))
    assert not json.loads((code.run / "release/guarantee.json").read_text())[
        "theorem"
    ]  # recall is not claimed


def test_what_lies_above_the_folder_that_is_read_decides_too(code):
    """Owners are named at the root of the work tree: a change there is a change of the units."""
    code.set(data__train=str(code.folder / "code" / "acme"))
    code.raw["secrets"]["repository"] = {
        "owners": ["@acme/pay"],
        "root": str(code.folder / "code"),
        "imports": False,
    }
    code.save()
    first = json.loads(done(confide("secrets", "tag", code.path, "--json")))
    committed(code.folder / "code", {"CODEOWNERS": "* @acme/pay\n"})
    second = json.loads(done(confide("secrets", "tag", code.path, "--json")))
    assert second["rows_with"] > first["rows_with"]


# input --------------------------------------------------------------------------------------------------------
def write(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


FAULTS = {
    "another mechanism": (
        lambda w: w.set(privacy={"mechanism": "dp-sgd", "epsilon": 3.0}, secrets={}),
        r"privacy\.mechanism is dp-sgd; `confide secrets` is for mechanism: secret",
    ),
    "a list that is not there": (lambda w: w.set(secrets__words="word.txt"), r"secrets\.words: word\.txt: "),
    "an empty list": (
        lambda w: w.set(secrets__words=write(w.folder, "w.txt", "\n# nothing\n")),
        r"secrets\.words: .* lists no word",
    ),
    "a list of another program": (
        lambda w: w.set(secrets__words=write(w.folder, "w.csv", "name,note\nkraken,\n")),
        r"secrets\.words: .* has no column 'word'",
    ),
    "a bad expression": (
        lambda w: w.set(secrets__patterns={"account": "ZZ(77"}),
        r"secrets\.patterns\.account: not a regular expression",
    ),
    "an expression of nothing": (
        lambda w: w.set(secrets__patterns={"account": r"(ZZ\d)*"}),
        r"secrets\.patterns\.account: matches the empty string",
    ),
    "patterns as a list": (lambda w: w.set(secrets__patterns=["ZZ77"]), r"secrets\.patterns.* must be names"),
    "a column that is not there": (lambda w: w.set(secrets__column="clients"), r"secrets\.column.*clients"),
    "a row that is not there": (
        lambda w: w.set(secrets__rows=write(w.folder, "r.txt", "3\n60\n")),
        r"secrets\.rows: .*line 2 lists document 60, but 60 were read",
    ),
    "rows that are no numbers": (
        lambda w: w.set(secrets__rows=write(w.folder, "r.txt", "3\n-1\n")),
        r"secrets\.rows: .* line 2 does not start with a number",
    ),
    "rows counted in words": (
        lambda w: w.set(secrets__rows=write(w.folder, "r.txt", "row,secret\nkraken,3\n")),
        r"secrets\.rows: .* line 2 does not start with a number",
    ),
    "a secret for its own id": (
        lambda w: w.set(secrets__values=write(w.folder, "v.csv", "id,prior,posterior\nkraken,0.1,0.2\n")),
        r"secrets\.values: .* line 2: the id is neither a secret nor a class",
    ),
    "a posterior in percent": (
        lambda w: w.set(secrets__values=write(w.folder, "v.csv", "id,prior,posterior\nwords,0.1,5%\n")),
        r"secrets\.values: .* line 2: the posterior is not a number",
    ),
    "no values": (
        lambda w: w.set(secrets__prior=None, secrets__posterior=None),
        r"secrets\.prior: .* have no prior and posterior",
    ),
    "a typo": (
        lambda w: w.set(secrets__pattern={"account": "ZZ"}),
        r"secrets\.pattern: no such key, did you mean secrets\.patterns\?",
    ),
    "a repository without code": (
        lambda w: w.set(secrets__repository={"packages": ["acme"]}),
        r"secrets\.repository",
    ),
    "too large a batch": (
        lambda w: w.set(train__batch=1e6),
        r"train\.batch: .*secrets\.program\.c",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_input_is_named_and_no_secret_shown(world, name):
    change, message = FAULTS[name]
    change(world)
    result = confide("secrets", "solve", world.path, "--json")
    assert result.code == 2, result
    assert re.search(message, " ".join(result.err.split())), result.err
    assert "Traceback" not in result.err
    says_nothing_else(result)
    says_nothing(result.err + result.out)
    assert not (world.run / "secrets.csv").exists()


def test_a_text_that_holds_no_secret_names_what_was_looked_for(world):
    """A list of the wrong customer: nothing would be protected, and the sentence says where to look."""
    world.raw["secrets"] = {
        "words": write(world.folder, "w.txt", "absent\n"),
        "prior": 0.1,
        "posterior": 0.2,
    }
    world.save()
    result = confide("secrets", "tag", world.path)
    assert result.code == 2, result
    assert "secrets" in result.err.splitlines()[-1]
    assert "absent" not in result.err


def test_wrong_verbs_and_arguments(world):
    for arguments in (("secrets",), ("secrets", "tga", world.path), ("secrets", "tag")):
        assert confide(*arguments).code == 2
    assert confide("secrets", "tag", world.folder / "confg.yaml").code == 2
    result = confide("secrets", "solve", world.path, "secrets.program.c=least noise")
    assert result.code == 2
    assert "did you mean least-noise" in result.err
