"""`confide audit` on small runs, from the outside."""

import dataclasses
import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from confide.auditing import attack
from confide.auditing.numbers import Numbers
from confide.auditing.options import Options
from confide.config.loading import check
from confide.runs.canaries import FILE, SAMPLED
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.runs.records import RECORD, read_record, write_record
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.command import confide
from tests.runs.test_canaries import planted

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A private run with canaries, and a twin that learnt them by heart."""
    folder = tmp_path_factory.mktemp("audited")
    raw = planted(folder / "a", family="rare-tokens", tokens=6, white_box=True, guesses=14).model_dump(
        mode="json"
    )
    raw["train"] |= {"steps": 30, "batch": 60.0, "learning_rate": 0.05, "schedule": "constant"}
    config = check(raw)
    fine_tune(Run(config), QUIET)
    fine_tune(Run(config, twin=True), QUIET)
    return config


def test_an_audit_prints_its_verdict_and_keeps_it(trained):
    before = json.loads(Run(trained).guarantee_path.read_text())
    assert before.pop("evidence") == ["no audit was made yet"]
    found = confide("audit", trained.run, "--json", "--users", "20")
    assert found.code == 0, found.err
    result = json.loads(found.out)
    assert result["verdict"] in ("consistent", "underpowered")
    assert {game["view"] for game in result["games"]} == {"release", "steps"}
    assert all(game["guesses"] == 14 for game in result["games"])
    assert all(game["confidence"] == pytest.approx(0.975) for game in result["games"])  # they share 5%
    assert all(0 <= game["bound"] <= game["strongest"] for game in result["games"])
    assert set(result["membership"]["attacks"]) >= {
        "loss",
        "zlib",
        "reference",
        "min-k",
        "min-k++",
        "lira",
        "rmia",
    }
    assert "rare-tokens" in result["left_out"]["exposure"]
    assert (Run(trained).folder / "audit.json").exists()
    picture = (Run(trained).folder / "audit.svg").read_text()
    assert "Rows that an attack found" in picture
    assert "Units that an attack found" in picture
    assert not (Run(trained).release / "audit.json").exists()
    release = Run(trained).release
    for path in (Run(trained).guarantee_path, release / "guarantee.json"):
        stated = json.loads(path.read_text())
        (line,) = stated["evidence"]  # noised sums less what real units added are private: no word of them
        assert line.startswith(f"audit by canaries: {result['games'][0]['verdict']}; from the released model")
        assert {key: stated[key] for key in before} == before
    assert stated["evidence"][0] in (release / "README.md").read_text()
    # another audit of other things leaves it, and of another model it says nothing
    assert confide("audit", trained.run, "--attacks", "extraction").code == 0
    job = Job.of(Run(trained), QUIET)
    assert job.guarantee(30).evidence == (line,)
    assert job.guarantee(3).evidence == ("no audit was made yet",)
    with open(Run(trained).ledger_path, "a") as ledger:
        ledger.write("{}\n")
    try:
        assert job.guarantee(30).evidence == ("no audit was made yet",)
    finally:
        Run(trained).ledger_path.write_text(Run(trained).ledger_path.read_text().removesuffix("{}\n"))


def test_a_person_reads_the_same(trained):
    found = confide("audit", trained.run, "--users", "20")
    assert found.code == 0, found.err
    for part in (
        "verdict: ",
        "left out: exposure",
        "the guarantee's ceiling",
        "extraction",
        "no guarantee covers it",
    ):
        assert part in found.out


def test_the_twin_claims_nothing_and_gives_its_canaries_away(trained):
    found = confide("audit", trained.run, "--twin", "--json", "--attacks", "claim")
    assert found.code == 0, found.err
    result = json.loads(found.out)
    assert result["verdict"] == "nothing claimed"
    (game,) = result["games"]
    assert game["correct"] >= 12
    assert game["bound"] > 0


def test_a_run_without_clipping_and_noise_is_refuted(trained, monkeypatch):
    """The twin's weights under the private run's claim, which is made small: exit code 1."""
    job = Job.of(Run(trained), QUIET)
    twin = Job.of(Run(trained, twin=True), QUIET).trained()
    monkeypatch.setattr(Job, "trained", lambda self: twin)
    setting = dataclasses.replace(job.setting, noise_multiplier=20.0)
    false = dataclasses.replace(job, setting=setting)
    options = Options(attacks=("claim",))
    monkeypatch.setattr(Job, "readings", lambda self, phase: _Nothing(len(job.manifest().canaries)))
    assert attack.audit(false, options).verdict == "violation"


def test_a_number_that_is_given_away_refutes_what_few_coins_cannot(tmp_path, monkeypatch):
    """A release that knows a number by heart, under a private run's claim: two coins say nothing, one number does."""
    raw = planted(tmp_path / "a", count=2, digits=4).model_dump(mode="json")
    raw["privacy"]["published_key"] = None
    run = Run(check(raw))
    fine_tune(run, QUIET, until=2)

    def numbers(noise: float, **options) -> tuple[str, dict]:
        job = Job.of(run, QUIET)
        job = dataclasses.replace(job, setting=dataclasses.replace(job.setting, noise_multiplier=noise))
        found = attack.audit(job, Options(attacks=("claim",), **options)).to_json()
        return found["verdict"], next((game for game in found["games"] if game["view"] == "numbers"), {})

    with pytest.raises(InputError, match="noise_multiplier"):
        numbers(20.0)
    monkeypatch.setattr(Job, "check_begun", lambda job: None)
    _learn(monkeypatch, of_canary=False)
    found, game = numbers(20.0)
    assert (found, game["correct"], game["needed"]) == ("underpowered", 0, 1)
    _learn(monkeypatch, of_canary=True)
    found, game = numbers(20.0)
    assert (found, game["coins"], game["correct"], game["needed"]) == ("violation", 2, 1, 1)
    assert game["bound"] > 2
    assert numbers(20.0, secrets=3) == (found, game)  # nothing that is asked after training moves it
    assert numbers(0.1) == ("underpowered", {})  # so weak a claim allows it, and coins keep all of alpha
    monkeypatch.setattr(attack, "_released", RELEASED)
    monkeypatch.setattr(Numbers, "of", lambda *_: pytest.fail("all numbers were tokenised for nothing"))
    assert numbers(0.1) == ("underpowered", {})


@pytest.mark.parametrize("mechanism", ["selective", "secret"])
def test_a_number_in_the_place_of_another_that_is_given_away_refutes_too(tmp_path, monkeypatch, mechanism):
    raw = planted(tmp_path / "a", "dp-sgd", count=2, digits=4, template="My printer is {} again.").model_dump(
        mode="json"
    )
    raw["privacy"] |= {"mechanism": mechanism, "adjacency": None, "rows_per_unit": 4, "published_key": None}
    if mechanism == "selective":
        raw["detector"] |= {"expressions": {"number": r"\d+", "other": "floor"}, "recall": 1.0}
        raw["redacted"]["steps"] = 2
    else:
        raw["data"]["max_length"] = 32
        raw["privacy"] |= {"noise_multiplier": None, "delta": 1e-3}
        raw["secrets"] |= {"patterns": {"floor": "floor"}, "prior": 0.01, "posterior": 0.02, "recall": 1.0}
    raw["train"]["steps"] = 2
    run = Run(check(raw))
    fine_tune(run, QUIET)
    options = Options(attacks=("claim",))

    def numbers() -> tuple[str, dict]:
        found = attack.audit(Job.of(run, QUIET), options).to_json()
        return found["verdict"], next(game for game in found["games"] if game["view"] == "numbers")

    _learn(monkeypatch, of_canary=False)
    found, game = numbers()
    assert (found, game["coins"], game["correct"], game["needed"]) == ("underpowered", 2, 0, 1)
    _learn(monkeypatch, of_canary=True)
    found, game = numbers()
    assert (found, game["coins"], game["correct"], game["needed"]) == ("violation", 2, 1, 1)
    assert 3 < game["bound"] < math.log(0.025 * 10**4)


def test_a_number_hides_only_among_those_that_change_nothing_public(tmp_path):
    """Of those that begin with 0 to 4 the detector marks the word before as well."""
    raw = planted(tmp_path / "a", "dp-sgd", count=20, digits=4).model_dump(mode="json")
    raw["privacy"] |= {"mechanism": "selective", "adjacency": None, "rows_per_unit": 4, "published_key": None}
    raw["detector"] |= {"expressions": {"number": r"is [0-4]\d*|\d+", "other": "floor"}, "recall": 1.0}
    raw["redacted"]["steps"] = 2
    job = Job.of(Run(check(raw)), QUIET)
    facts, canaries = job.prepared.facts["canaries"], job.manifest().canaries
    below = [[secret < "5" for secret in canary.secrets] for canary in canaries]
    assert facts["missed"] == sum(one != other for one, other in below)
    texts = job.manifest().sample()
    sampled = sum(text.partition(" is ")[2] < "5" for text in texts)
    sides = [own[canary.coin] for own, canary in zip(below, canaries, strict=True)]
    assert facts["alike"] == [sampled if side else SAMPLED - sampled for side in sides]
    manifest = job.manifest()
    found = Numbers.of(manifest, np.arange(20), 4, job.tokenizer, facts["alike"])
    shares = [count / SAMPLED for count in facts["alike"][:8]]
    for choices, share in zip(found.choices, shares, strict=True):
        assert -5 * math.sqrt(1 / 4 / SAMPLED) < (choices + 40) / 10**4 - share < 0
    standing = [canary.secrets[canary.coin] for canary in manifest.canaries[:8]]
    texts = [job.tokenizer.decode(row, skip_special_tokens=True) for row in found.rows]
    assert all(number in text for number, text in zip(standing, texts, strict=True))


RELEASED = attack._released


def _learn(monkeypatch, of_canary: bool) -> None:
    """Let what is attacked have learnt one text by heart: the first canary's, or one with a number of nobody."""

    @contextmanager
    def released(job, state):
        with RELEASED(job, state):
            alike = job.prepared.facts["canaries"].get("alike")
            numbers = Numbers.of(job.manifest(), np.arange(2), 4, job.tokenizer, alike)
            text = numbers.rows[0] if of_canary else numbers.others.rows(np.array([0]))[0]
            _by_heart(job.model, torch.from_numpy(text.astype(np.int64))[None])
            yield

    monkeypatch.setattr(attack, "_released", released)


def _by_heart(model, row: torch.Tensor) -> None:
    """Train on one row alone, until nothing else comes to the model's mind."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):
        with torch.enable_grad():
            loss = model(input_ids=row, labels=row).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if loss < 0.01:
            return
    raise AssertionError(f"after 500 steps on one row its loss is {loss:.3f}")


def test_numbers_that_follow_from_a_published_key_are_not_guessed(tmp_path):
    run = Run(planted(tmp_path / "a", count=2, digits=3))
    fine_tune(run, QUIET, until=1)
    games = attack.audit(Job.of(run, QUIET), Options(attacks=("claim",))).to_json()["games"]
    assert [game["view"] for game in games] == ["release"]


class _Nothing:
    def __init__(self, count):
        self.count = count

    def told(self, steps):
        return np.zeros(self.count), 1.0


def test_coins_that_were_changed_after_training_are_refused(trained):
    run = Run(trained)
    path, record = run.data / FILE, run.data / RECORD
    before, recorded = path.read_text(), record.read_text()
    try:
        changed = json.loads(before)
        changed["canaries"][0]["coin"] ^= 1
        path.write_text(json.dumps(changed))
        found = confide("audit", trained.run, "--attacks", "claim")
        assert (found.code, FILE in found.err) == (2, True)
        assert "is damaged" in found.err
        facts = read_record(run.data, run.data_key())  # whoever has the key can change the record as well
        record.unlink()
        write_record(run.data, {name: facts[name] for name in ("source", "files", "facts")}, run.data_key())
        found = confide("audit", trained.run, "--attacks", "claim")
        assert found.code == 2
        assert "sealed with before training" in found.err
    finally:
        path.write_text(before)
        record.write_text(recorded)


@pytest.mark.parametrize("name", ["config", "data", "model", "noise_multiplier", "planted"])
def test_a_run_of_another_config_or_data_or_model_is_not_attacked(trained, name):
    path = Run(trained).ledger_path
    before = path.read_text()
    try:
        first, rest = before.split("\n", 1)
        path.write_text(json.dumps(json.loads(first) | {name: "0" * 64}) + "\n" + rest)
        found = confide("audit", trained.run, "--attacks", "extraction")
        assert found.code == 2
        assert f"(differs in {name})" in found.err
    finally:
        path.write_text(before)


def test_exposure_is_told_by_how_often_a_number_was_planted(tmp_path):
    raw = planted(tmp_path / "a", "els", count=12, digits=3, insertions=[1, 3]).model_dump(mode="json")
    raw["train"]["steps"] = 2
    run = Run(check(raw))
    fine_tune(run, QUIET)
    found = confide("audit", str(run.root), "--json", "--attacks", "exposure")
    assert found.code == 0, found.err
    exposed = json.loads(found.out)["exposure"]
    assert set(exposed["groups"]) == {"planted 1 times", "planted 3 times", "not planted"}
    assert sum(own["count"] for own in exposed["groups"].values()) == 12
    assert exposed["positions"] < exposed["plain_positions"]
    assert "Exposure of planted numbers" in (run.folder / "audit.svg").read_text()
    assert exposed["ranks"] == "exact"
    assert "exposure in bits, of 9.97" in confide("audit", str(run.root), "--attacks", "exposure").out
    for ranks in ("sampled", "extrapolated"):
        asked = ("audit", str(run.root), "--attacks", "exposure", "--ranks", ranks)
        estimated = json.loads(confide(*asked, "--json").out)["exposure"]
        for name, own in estimated["groups"].items():
            # with all of the 999 others drawn, what is sampled is exact but for the secret itself being counted
            if ranks == "sampled":
                assert own["exposures"] == pytest.approx(exposed["groups"][name]["exposures"])
            assert (own["p_value"] is None) == (ranks == "extrapolated")
            slack = (
                1e-9 if ranks == "sampled" else 0.5
            )  # a bootstrap's percentiles need not hold the estimate
            intervals = zip(own["exposures"], own["intervals"], strict=True)
            assert all(low - slack <= most <= high + slack for most, (low, high) in intervals)
        assert f"exposure in bits, {ranks}, of 9.97" in confide(*asked).out
    assert confide("audit", str(run.root), "--ranks", "guessed").err.startswith(
        "confide: --ranks guessed: there are"
    )


@pytest.mark.parametrize(
    ("expression", "is_found"), [(r"\d+", True), (r"(?!9)\d+", True), ("printer", False)]
)
def test_numbers_that_the_detector_misses_play_no_game(tmp_path, expression, is_found):
    raw = planted(tmp_path / "a", "dp-sgd", digits=3, template="My printer is {} again.").model_dump(
        mode="json"
    )
    raw["privacy"] |= {"mechanism": "selective", "adjacency": None, "rows_per_unit": 4}
    raw["detector"] |= {"expressions": {"sensitive": expression, "other": "printer"}, "recall": 1.0}
    raw["redacted"]["steps"] = 2
    raw["train"]["steps"] = 2
    run = Run(check(raw))
    fine_tune(run, QUIET)
    job = Job.of(run, QUIET)
    nines = [any(secret[0] == "9" for secret in canary.secrets) for canary in job.manifest().canaries]
    playing = {r"\d+": 40, r"(?!9)\d+": 40 - sum(nines), "printer": 0}[expression]
    assert job.prepared.facts["canaries"]["missed"] == 40 - playing
    result = attack.audit(job, Options(attacks=("claim", "exposure"))).to_json()
    assert (result["verdict"] != "not attacked") == is_found
    assert all(game["coins"] == playing for game in result.get("games", []))
    assert ("claim" in result["left_out"]) != is_found
    assert sum(own["count"] for own in result["exposure"]["groups"].values()) == 40


def test_where_no_canary_is_a_unit_of_the_claim_the_other_attacks_go_on(tmp_path):
    raw = planted(tmp_path / "a", "dp-sgd", digits=2, insertions=2).model_dump(mode="json")
    raw["train"]["steps"] = 2
    run = Run(check(raw))
    fine_tune(run, QUIET)
    result = attack.audit(Job.of(run, QUIET), Options(attacks=("claim", "exposure"))).to_json()
    assert result["verdict"] == "not attacked"
    assert "every canary stands in several rows" in result["left_out"]["claim"]
    assert "exposure" in result


def test_canaries_stand_beside_annotated_text_and_are_not_annotated(tmp_path):
    """As what somebody who marked the data has missed; an expression may still find them."""
    raw = planted(tmp_path / "a", "dp-sgd", count=4, digits=3).model_dump(mode="json")
    text = tmp_path / "annotated.jsonl"
    lines = [{"text": f"room {number} is mine", "spans": [[5, 6]]} for number in range(9)]
    text.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw["data"] |= {"train": str(text)}
    raw["privacy"] |= {
        "mechanism": "redacted",
        "noise_multiplier": None,
        "adjacency": None,
        "rows_per_unit": 4,
    }
    for expressions, missed in (({}, 4), ({"number": r"\d+"}, 0)):
        raw["detector"] |= {"spans": "spans", "expressions": expressions}
        run = Run(check(raw | {"run": str(tmp_path / f"run{missed}")}))
        facts = Job.of(run, QUIET).prepared.facts["canaries"]
        assert (facts["count"], facts["missed"]) == (4, missed)


def test_users_are_asked_for_rows_as_training_chooses_them(tmp_path):
    """Before a single step members and others are alike: the first rows of a user against random ones would not be."""
    raw = planted(tmp_path / "a").model_dump(mode="json") | {"canaries": {}}
    # each user's first row is made of other words than the rest
    lines = [
        {"user": f"u{user}", "text": "key room " * 8 if first == 0 else "printer paper floor " * 6}
        for user in range(60)
        for first in range(6)
    ]
    text = tmp_path / "users.jsonl"
    text.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw["data"] |= {"train": str(text), "eval": 0.5, "max_length": 24, "duplicates": False}
    raw["privacy"] |= {
        "mechanism": "els",
        "rows_per_unit": 1,
        "noise_multiplier": 100.0,
        "selection": "random",
    }
    raw["train"] |= {"steps": 1, "learning_rate": 1e-9}
    run = Run(check(raw))
    fine_tune(run, QUIET)
    job = Job.of(run, QUIET)
    audited = attack._Audit(job, Options(attacks=("users",), rows=1), 1)
    shares = []
    for side in audited.sides[:2]:
        firsts = {int(np.sort(side.graph.rows_of(int(unit)))[0]) for unit in side.asked.units}
        shares.append(np.mean([int(row) in firsts for row in side.asked.rows]))
    assert max(shares) < 0.6
    longest = run.config.model_dump(mode="json")
    longest["privacy"]["selection"], longest["run"] = "longest", str(tmp_path / "longest")
    other = Run(check(longest))
    fine_tune(other, QUIET)
    left_out = attack._Audit(Job.of(other, QUIET), Options(), 1).left_out
    assert "longest" in left_out["users"]
    assert "longest" in left_out["membership"]


def test_without_canaries_the_other_attacks_still_run(tmp_path):
    raw = planted(tmp_path / "a").model_dump(mode="json") | {"canaries": {}}
    raw["train"]["steps"] = 2
    run = Run(check(raw))
    fine_tune(run, QUIET)
    found = confide("audit", str(run.root), "--json", "--users", "10")
    assert found.code == 0, found.err
    result = json.loads(found.out)
    assert "canaries.count" in result["left_out"]["claim"]
    assert result["verdict"] == "not attacked"
    assert "membership" in result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attacks", "clam"), "there are claim, exposure"),
        (("--attacks", ""), "there are claim, exposure"),
        (("--users", "1"), "--users"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(trained, arguments, message):
    found = confide("audit", trained.run, *arguments)
    assert found.code == 2
    assert message in found.err


def test_nothing_trained_is_said(tmp_path):
    with pytest.raises(InputError, match="nothing was trained"):
        attack.audit(Job.of(Run(planted(tmp_path / "a")), QUIET))
