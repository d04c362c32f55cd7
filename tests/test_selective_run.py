"""Runs of selective, redacted and crt from text to release: what the model sees, and when."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from confide.config.loading import check
from confide.config.schema import Policy, Redacted
from confide.data.unit_graph import UnitGraph
from confide.models import loading as models
from confide.privacy.ledger import Ledger
from confide.runs import preparation
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.errors import InputError
from tests import small
from tests.test_resume import released

MARK = "Q7X"  # in every sensitive span, and nowhere else
WORDS = ["printer", "floor", "paper", "again", "nobody", "has", "a", "key", "to", "the", "store", "room"]


def corpus(path: Path, secrets: int = 0, documents: int = 40) -> Path:
    """Every other document holds spans like `<<Q7X 8423>>`, whose content `secrets` decides."""
    common, secret = random.Random(1), random.Random(secrets)
    with open(path, "w") as stream:
        for number in range(documents):
            words = [common.choice(WORDS) for _ in range(common.randint(8, 40))]
            if number % 2 == 0:
                for place in sorted(common.sample(range(len(words)), 2)):
                    length = secret.randint(1, 12)
                    content = "".join(secret.choice("0123456789é ") for _ in range(length))
                    words.insert(place, f"<<{MARK} {content}>>")
            stream.write(json.dumps({"text": " ".join(words)}) + "\n")
    return path


def config(folder: Path, mechanism: str, text: Path | None = None, **sections):
    small.config_file(folder)
    raw = {
        "model": str(folder / "tiny/config.json"),
        "tokenizer": "bundled",
        "data": {
            "train": str(text or corpus(folder / "text.jsonl")),
            "eval": 0.2,
            "max_length": 16,
            "duplicates": False,
        },
        "detector": {"expressions": {"marked": r"<<[^>]*>>"}, "recall": 1.0},
        "privacy": {"mechanism": mechanism, "noise_multiplier": 0.8, "published_key": "selective run"},
        "train": {"steps": 8, "batch": 12.0, "checkpoint_every": 100, "learning_rate": 0.01},
        "run": str(folder / f"run-{mechanism}"),
    }
    if mechanism == "redacted":
        raw["privacy"].pop("noise_multiplier")
    else:
        raw["redacted"] = {"steps": 6}
    for name, values in sections.items():
        raw[name] = raw.get(name, {}) | values if isinstance(values, dict) else values
    return check(raw)


class Watch:
    """Every tensor that the model is given, decoded where it holds token ids, by the phase that was under way."""

    def __init__(self, monkeypatch, tokenizer):
        self.seen: dict[str, list[str]] = {}
        self.batches: dict[str, int] = {}
        phase = {"now": "before"}
        from confide.training.phases import PhaseRunner

        take, load = PhaseRunner.__call__, models.load_model

        def call(phase_runner, number, before_update=None):
            phase["now"] = phase_runner.phase(number).name
            try:
                return take(phase_runner, number, before_update)
            finally:
                phase["now"] = "between"

        def watched(*args, **kwargs):
            model = load(*args, **kwargs)

            def look(module, given, named):
                now = phase["now"]
                self.batches[now] = self.batches.get(now, 0) + 1
                for value in [*given, *named.values()]:
                    if torch.is_tensor(value) and not value.is_floating_point() and value.dim() == 2:
                        ids = value.clamp(min=0, max=len(tokenizer) - 1)
                        self.seen.setdefault(now, []).extend(tokenizer.batch_decode(ids))

            model.register_forward_pre_hook(look, with_kwargs=True)
            return model

        monkeypatch.setattr(PhaseRunner, "__call__", call)
        monkeypatch.setattr(models, "load_model", watched)

    def leaks(self, phase: str) -> int:
        return sum(MARK in text for text in self.seen[phase])


@pytest.mark.parametrize(
    ("mechanism", "clean", "free"),
    [
        ("selective", ["redacted"], "main"),
        ("redacted", ["main"], None),
        ("crt", ["ordinary", "main"], None),
    ],
)
def test_sensitive_text_reaches_no_tensor_of_a_phase_that_may_not_see_it(
    tmp_path, monkeypatch, mechanism, clean, free
):
    settings = config(tmp_path, mechanism, data={"eval": None})
    watch = Watch(monkeypatch, models.load_tokenizer(settings))
    assert fine_tune(Run(settings)).finished
    for phase in clean:
        assert watch.batches[phase] > 0
        assert watch.leaks(phase) == 0
    if free is not None:
        assert watch.leaks(free) > 0


def test_masks_of_kinds_stand_in_the_redacted_rows_and_the_claim_says_that_kinds_are_public(
    tmp_path, monkeypatch
):
    detector = {"expressions": {"marked": r"<<[^>]*>>"}, "recall": 1.0, "masks": {"marked": "<MARKED>"}}
    settings = config(tmp_path, "selective", data={"eval": None}, detector=detector)
    watch = Watch(monkeypatch, models.load_tokenizer(settings))
    outcome = fine_tune(Run(settings))
    assert watch.leaks("redacted") == 0
    assert any("<MARKED>" in text for text in watch.seen["redacted"])
    assert not any("<MARKED>" in text for text in watch.seen["main"])
    guarantee = outcome.guarantee
    assert any(
        "with the kinds that have a mask of their own (<MARKED>)" in each for each in guarantee.public_facts
    )
    assert "as the same kinds where these have a mask of their own" in guarantee.worlds


def test_the_watch_sees_what_training_without_redaction_shows(tmp_path, monkeypatch):
    settings = config(
        tmp_path,
        "dp-sgd",
        detector=Policy().model_dump(),
        redacted=Redacted().model_dump(),
        data={"eval": None},
    )
    watch = Watch(monkeypatch, models.load_tokenizer(settings))
    fine_tune(Run(settings))
    assert watch.leaks("main") > 0


def digest(graph) -> bytes:
    parts: list[bytes] = []
    graph.digest(lambda data: parts.append(bytes(data)))
    return b"".join(parts)


def test_neighbours_share_all_that_is_not_noised(tmp_path):
    """Texts that differ in sensitive characters alone: the same redacted rows, and the same model after phase 1."""
    prepared, weights = [], []
    for secrets in (1, 2):
        folder = tmp_path / str(secrets)
        folder.mkdir()
        text = corpus(folder / "text.jsonl", secrets)
        settings = config(folder, "selective", text)
        run = Run(settings)
        job = Job.of(run, _quiet())
        prepared.append(job.prepared)
        redacted = config(folder, "redacted", text, model=str(small_model(tmp_path)))
        assert fine_tune(Run(redacted)).finished
        weights.append(released(Run(redacted)))
    one, other = prepared
    assert digest(one.train) != digest(other.train)
    assert digest(one.public) == digest(other.public)
    assert one.train.n_rows == other.train.n_rows == one.public.n_rows
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _quiet():
    from confide.utils.console import Console

    return Console(quiet=True)


def test_each_row_of_phase_2_is_the_text_of_its_redacted_row(tmp_path):
    settings = config(tmp_path, "selective", data={"max_length": 60}, redacted={"span_tokens": 24})
    job = Job.of(Run(settings), _quiet())
    decode = job.tokenizer.decode
    train, public = job.prepared.train, job.prepared.public
    held = 0
    for row in range(train.n_rows):
        whole, masked = (decode(graph.fetch(np.array([row]))[0]) for graph in (train, public))
        parts = masked.split(job.tokenizer.mask_token)
        held += len(parts) > 1
        place = 0
        for part in parts[: 1 if len(parts) == 1 else -1]:
            assert part.strip() in whole[place:]
            place = whole.index(part.strip(), place)
    assert held > 5


@pytest.mark.parametrize("mechanism", ["selective", "crt"])
@pytest.mark.parametrize("stops", [[3], [6], [6, 7, 10]])
def test_a_run_of_several_stages_resumes_bit_for_bit(tmp_path, mechanism, stops):
    straight, broken = (tmp_path / name for name in ("straight", "broken"))
    for folder in (straight, broken):
        folder.mkdir()
    text = corpus(tmp_path / "text.jsonl")
    whole = Run(config(straight, mechanism, text, model=str(small_model(tmp_path))))
    parts = Run(config(broken, mechanism, text, model=str(small_model(tmp_path))))
    assert fine_tune(whole).finished
    for stop in stops:
        assert not fine_tune(parts, until=stop).finished
    assert fine_tune(parts).finished
    ours, theirs = released(whole), released(parts)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert whole.ledger_path.read_text() == parts.ledger_path.read_text()


def small_model(folder: Path) -> Path:
    small.config_file(folder)
    return folder / "tiny/config.json"


def entries(run: Run) -> list[dict]:
    return [json.loads(line) for line in run.ledger_path.read_text().splitlines()]


def phases(run: Run) -> list[tuple[str, float]]:
    return [(e["phase"], e["noise_multiplier"]) for e in map(_entry, entries(run)) if "step" in e]


def _entry(line: dict) -> dict:
    return line.get("entry", line)


def test_the_ledger_tells_the_phases_and_their_noise(tmp_path):
    run = Run(config(tmp_path, "selective"))
    fine_tune(run)
    assert phases(run) == [("redacted", 0.0)] * 6 + [("main", 0.8)] * 8
    run = Run(config(tmp_path, "crt"))
    fine_tune(run)
    kinds = [phase for phase, _ in phases(run)]
    assert kinds.count("ordinary") == 6
    assert kinds.count("main") == 8
    assert "ordinary" in kinds[:3]
    assert "main" in kinds[:3]


def test_light_noise_is_added_in_phase_1(tmp_path):
    light = {"mode": "light-noise", "epsilon": 2.0, "missing_rate": (0.001, 0.01)}
    run = Run(config(tmp_path, "selective", redacted=light, detector={"recall": None}))
    outcome = fine_tune(run)
    (first, light_noise), *_ = phases(run)
    assert first == "redacted"
    assert light_noise > 0
    low, high, row = (value for _, value in outcome.guarantee.epsilons)
    assert low < high == pytest.approx(outcome.guarantee.epsilon)
    assert high < row
    assert not outcome.guarantee.theorem


def test_the_release_states_what_is_protected_and_what_the_phases_reached(tmp_path):
    run = Run(config(tmp_path, "selective"))
    outcome = fine_tune(run)
    guarantee = json.loads((run.release / "guarantee.json").read_text())
    assert guarantee["notion"] == "selective DP"
    assert guarantee["adjacency"] == "replace-one"
    assert "lengths of redacted rows" in " ".join(guarantee["public_facts"])
    assert "mask token" in guarantee["rows_cut"]
    assert outcome.after.keys() == {"redacted"}
    assert outcome.after["redacted"]["loss"] < outcome.base["loss"]


def test_rows_with_and_without_findings_are_parted_for_crt(tmp_path):
    settings = config(tmp_path, "crt")
    job = Job.of(Run(settings), _quiet())
    mask = job.tokenizer.mask_token_id
    train, public = job.prepared.train, job.prepared.public
    assert all(mask in row for row in train.fetch(np.arange(train.n_rows)))
    assert not any(mask in row for row in public.fetch(np.arange(public.n_rows)))


def test_the_twin_of_a_selective_run_is_trained_without_noise(tmp_path):
    settings = config(tmp_path, "selective")
    twin = Run(settings, twin=True)
    assert fine_tune(twin).guarantee.notion == "none"
    assert {noise for _, noise in phases(twin)} == {0.0}


def test_an_adapter_with_added_tokens_loads_as_its_card_says(tmp_path, monkeypatch):
    base = small.saved(tmp_path / "base", "llama", vocab_size=8192)
    settings = config(
        tmp_path,
        "selective",
        model=str(base),
        adapter={"kind": "lora", "rank": 4},
        special_tokens=["USR:"],
    )
    run = Run(settings)
    fine_tune(run)
    card = (run.release / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace('"base"', repr(str(base)))
    code = code.replace('"release"', repr(str(run.release)))
    assert "resize_token_embeddings" in code
    names: dict = {}
    exec(code, names)
    job = Job.of(run, _quiet())
    job.phase_runner().restore(job.trained()[1])
    ids = torch.tensor([job.tokenizer("USR: the printer")["input_ids"]])
    assert torch.allclose(names["model"](ids).logits, job.model.eval()(ids).logits, atol=1e-5)


def test_a_screened_run_without_marks_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"redacted\.marks"):
        config(tmp_path, "selective", redacted={"mode": "screened"})
    with pytest.raises(InputError, match=r"redacted\.marks"):
        fine_tune(Run(config(tmp_path, "selective", redacted={"mode": "screened", "marks": "nothing.jsonl"})))


def test_phase_1_draws_by_itself_and_phase_2_starts_an_optimiser_of_its_own(tmp_path):
    run = Run(config(tmp_path, "selective", train={"checkpoint_every": 7}))
    fine_tune(run, until=7)
    _, state = Job.of(run, _quiet()).trained()
    assert list(state["stages"]) == [1]
    assert {group["steps_taken"] for group in state["stages"][1]["optimizer"]["param_groups"]} == {1}


def test_what_preparation_and_training_rest_on_is_the_same_policy(tmp_path):
    """Another detector is another preparation, another epsilon is not."""
    first = config(tmp_path, "selective")
    job = Job.of(Run(first), _quiet())
    assert preparation.load(first, Run(first).data, Run(first).data_key()) is not None
    other = config(tmp_path, "selective", privacy={"noise_multiplier": 1.5}, detector={"recall": None})
    assert preparation.load(other, Run(other).data, Run(other).data_key()) is not None
    changed = config(tmp_path, "selective", detector={"expressions": {"marked": "<<"}})
    assert preparation.load(changed, Run(first).data, Run(first).data_key()) is None
    assert job.prepared.public is not None


def test_the_key_is_bound_to_the_redacted_rows_too(tmp_path, monkeypatch):
    """Another version of a detector redacts otherwise: the noise of both models must not be the same."""
    text = corpus(tmp_path / "text.jsonl")
    keys = []
    for version in (b"one", b"other"):
        settings = config(tmp_path, "selective", text)
        digest_of = UnitGraph.plain_digest

        def other(graph, version=version, digest_of=digest_of):
            return version if graph.folder.name == "public" else digest_of(graph)

        monkeypatch.setattr(UnitGraph, "plain_digest", other)
        keys.append(Job.of(Run(settings), _quiet()).key.fingerprint(b"x"))
        monkeypatch.undo()
    assert keys[0] != keys[1]


def test_verify_looks_at_every_stage(tmp_path, monkeypatch):
    from confide.privacy.mechanisms.selective import Selective
    from confide.runs.verify import verify

    light = {"mode": "light-noise", "epsilon": 2.0, "missing_rate": (0.001, 0.01)}
    settings = config(tmp_path, "selective", redacted=light, detector={"recall": None})
    job = Job.of(Run(settings), _quiet())
    found = verify(job)
    assert found["ok"]
    noise = {c["name"]: c["detail"] for c in found["checks"] if "noise of the stated size" in c["name"]}
    assert noise.keys() == {"redacted: noise of the stated size", "main: noise of the stated size"}
    stated = {detail.split("stated ")[1] for detail in noise.values()}
    assert len(stated) == 2
    monkeypatch.setattr(Selective, "_lightly_noised", lambda self: self._ordinary())
    checks = {c["name"]: c["detail"] for c in verify(job)["checks"]}
    assert "nothing clipped" in checks["redacted: a step divides the clipped sum by a constant"]


def test_weights_of_a_release_are_those_of_the_last_step(tmp_path):
    run = Run(config(tmp_path, "redacted"))
    assert fine_tune(run).finished
    ledger = Ledger(run.ledger_path)
    assert len(ledger.entries) == 1 + 8
    ledger.close()
    assert load_file(run.release / "model.safetensors")
