"""What all studies share: parts of units, grids, results that are kept, the register and its pages."""

import functools
import json
import lzma
import math
from dataclasses import dataclass

import pytest
import torch
from studies.runner import grid as grids
from studies.runner import register, store, texts
from studies.runner.findings import Finding
from studies.runner.grid import TRIAL, Arm, Grid
from studies.runner.study import Scale, Study, Table, Work
from studies.runner.tables import losses, perplexity
from studies.runner.texts import PARTS, TEXTS, Text, part_of
from studies.runner.training import Trained, forget_rows, trained

from confide.runs import preparation
from confide.runs.given import Given
from confide.runs.job import Job
from confide.training import evaluation
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests.test_resume import config

RATES = {"train.learning_rate": (1.0, 2.0, 3.0)}


@pytest.fixture
def posts(tmp_path, monkeypatch):
    """Made-up posts of 60 senders, as `TEXTS["made-up"]`; returns the work folder's `Work`."""
    source = tmp_path / "data/made-up/posts.xz"
    source.parent.mkdir(parents=True)
    with lzma.open(source, "wt") as lines:
        for number in range(600):
            lines.write(
                json.dumps({"from": f"s{number % 60}", "subject": "s", "body": f"text {number}"}) + "\n"
            )
    made_up = Text("made up", "made-up/posts.xz", "from", "{body}", texts._posts, most=500)
    monkeypatch.setitem(TEXTS, "made-up", made_up)
    return Work(tmp_path / "data", tmp_path / "work", Scale.SMALL)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_unit_lies_in_two_parts(posts):
    parts = {name: read(path) for name, path in TEXTS["made-up"].parts(posts).items()}
    senders = {name: {each["from"] for each in documents} for name, documents in parts.items()}
    assert sum(map(len, senders.values())) == len(set.union(*senders.values())) == 60
    assert all(part_of(sender) == name for name in PARTS for sender in senders[name])
    assert max(sum(each["from"] == sender for each in parts["test"]) for sender in senders["test"]) == 2
    assert 3 <= len(senders["validation"]) <= 10


def test_text_that_was_cut_is_not_cut_again(posts):
    first = TEXTS["made-up"].parts(posts)["test"]
    first.write_text("kept")
    assert TEXTS["made-up"].parts(posts)["test"].read_text() == "kept"


def made(*arms, **changes):
    settings = {
        "name": "made-up",
        "texts": ("made-up",),
        "model": lambda work: work.folder / "model",
        "keys": {"train.steps": 3, "train.batch": 2.0},
        "arms": arms,
        "at": {"privacy.epsilon": (0.5, 1.0, 8.0, math.inf)},
        "tuned_at": {"privacy.epsilon": (1.0, 8.0)},
        "seeds": 2,
    }
    return Grid(**settings | changes)


def ran(grid, work, monkeypatch, loss):
    """The rows of a grid whose runs come to `loss(run)`, and all runs that were asked for."""
    asked = []

    def trained(runs, work, what):
        asked.extend(runs)
        return [run.columns | {"loss": loss(run)} for run in runs]

    monkeypatch.setattr(grids, "trained", trained)
    return grid.measured(work), asked


def test_a_twin_needs_no_epsilon_where_noise_follows_from_something_else(posts, monkeypatch):
    twins = [
        Arm(name, {"privacy.mechanism": name, "privacy.epsilon": math.inf}) for name in ("secret", "uls")
    ]
    place = {"train.steps": (1,)}
    _, asked = ran(made(*twins, at=place, tuned_at=place), posts, monkeypatch, lambda run: 1.0)
    found = {run.columns["arm"]: (run.is_twin, run.raw["privacy"].get("epsilon")) for run in asked}
    assert found["secret"] == (True, None)
    assert found["uls"] == (True, 1.0)


def test_settings_are_chosen_on_validation_and_measured_on_the_test(posts, monkeypatch):
    one, other = (Arm(name, {"privacy.mechanism": name}, RATES) for name in ("uls", "els"))

    def loss(run):
        rate = run.raw.get("train", {}).get("learning_rate", 0)
        # What is best depends on the arm and on epsilon; a look at the test part would choose 1.0.
        best = (2.0 if run.raw["privacy"]["epsilon"] > 4 else 3.0) if run.columns["arm"] == "uls" else 1.0
        return abs(rate - best) if run.columns["part"] == "validation" else rate

    rows, asked = ran(made(one, other), posts, monkeypatch, loss)
    trials = [run for run in asked if run.columns["key"] == TRIAL and run.trains]
    assert len(trials) == 2 * 2 * 3
    assert {run.raw["data"]["eval"] for run in trials} == {str(TEXTS["made-up"].parts(posts)["validation"])}
    mains = [run for run in asked if run.columns["key"] != TRIAL]
    assert len(mains) == 2 * 4 * 2
    assert {run.raw["data"]["eval"] for run in mains} == {str(TEXTS["made-up"].parts(posts)["test"])}
    chosen = {
        (run.columns["arm"], run.columns["privacy.epsilon"]): run.raw["train"]["learning_rate"]
        for run in mains
    }
    assert [chosen["uls", e] for e in (0.5, 1.0, 8.0, math.inf)] == [3.0, 3.0, 2.0, 2.0]
    assert [chosen["els", e] for e in (0.5, 1.0, 8.0, math.inf)] == [1.0] * 4
    assert len(losses(rows, {"arm": "uls", "privacy.epsilon": 8.0})) == 2


def test_runs_of_one_key_share_it_over_all_arms_and_trials_have_their_own(posts, monkeypatch):
    arms = [Arm(name, {"privacy.mechanism": name}, RATES) for name in ("uls", "els")]
    _, asked = ran(made(*arms), posts, monkeypatch, lambda run: 1.0)
    keys = {}
    for run in asked:
        keys.setdefault(run.columns["key"], set()).add(run.raw["privacy"]["published_key"])
    assert {key: len(found) for key, found in keys.items()} == {0: 1, 1: 1, 2: 1}
    assert len(set.union(*keys.values())) == 3


def test_infinite_epsilon_is_the_twin_of_a_private_run(posts, monkeypatch):
    _, asked = ran(made(Arm("uls", {"privacy.mechanism": "uls"})), posts, monkeypatch, lambda run: 1.0)
    twins = [run for run in asked if run.is_twin]
    assert [run.columns["privacy.epsilon"] for run in twins] == [math.inf] * 2
    assert all(math.isfinite(run.raw["privacy"]["epsilon"]) for run in asked if run.trains)


def test_unequal_budgets_are_refused():
    with pytest.raises(InputError, match="unequal tuning budgets"):
        made(Arm("one", {}, RATES), Arm("other", {}, {"train.learning_rate": (1.0,)}))


def test_other_settings_have_another_folder(posts, monkeypatch):
    arms = [Arm(name, {"privacy.mechanism": name}, RATES) for name in ("uls", "els")]
    _, asked = ran(made(*arms), posts, monkeypatch, lambda run: 1.0)
    assert len({run.folder for run in asked}) == len(asked)


@dataclass(frozen=True)
class StepsFound:
    times: int

    def __call__(self, run, outcome):
        steps, _ = Job.of(run, Console(quiet=True)).trained()
        return {"found": self.times * steps, "planned": outcome.of}


def test_a_trained_run_is_measured_before_it_is_thrown_away(tmp_path):
    raw = config(tmp_path / "a", train__steps=2, train__eval_on_start=False).model_dump(mode="json")
    del raw["run"]
    work = Work(None, tmp_path / "work", Scale.TINY)
    runs = [
        Trained.of({"key": times}, raw, False, True, work.folder / "runs", StepsFound(times))
        for times in (1, 3)
    ]
    assert len({run.folder for run in (*runs, Trained.of({}, raw, False, True, work.folder / "runs"))}) == 3
    rows = trained(runs, work, "runs")
    assert [(row["found"], row["planned"]) for row in rows] == [(2, 2), (6, 2)]
    assert not any(run.folder.exists() for run in runs)
    assert trained(runs, work, "runs") == rows
    assert any(work.folder.glob("runs/rows-*"))
    forget_rows(work)
    assert not any(work.folder.glob("runs/rows-*"))
    assert trained(runs, work, "runs") == rows


def test_a_fresh_study_trains_each_of_its_runs_once_more_and_no_other(tmp_path):
    raw = config(tmp_path / "a", train__steps=1, train__eval_on_start=False).model_dump(mode="json")
    del raw["run"]
    folder = tmp_path / "work" / "runs"
    own, other = (Trained.of({}, raw, False, True, folder, StepsFound(times)) for times in (1, 3))
    trained([own, other], Work(None, tmp_path / "work", Scale.TINY), "runs")
    before, others = own.result.stat().st_mtime_ns, other.result.stat().st_mtime_ns
    own.folder.mkdir()  # as if a command had been stopped
    (own.folder / "state").write_text("of other code")
    fresh = Work(None, tmp_path / "work", Scale.TINY, again=set())
    trained([own], fresh, "runs")
    anew = own.result.stat().st_mtime_ns
    assert anew > before
    trained([own], fresh, "runs")  # another table of the same study
    assert own.result.stat().st_mtime_ns == anew
    assert other.result.stat().st_mtime_ns == others


@dataclass(frozen=True)
class Drawn:
    """The units and rows of each step, and a weight at the end."""

    def __call__(self, run, outcome):
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        return {"drawn": [(line["units"], line["tokens"]) for line in lines if "clipped" in line]}


def test_arms_of_a_run_key_draw_alike_and_other_run_keys_do_not(tmp_path):
    changes = {
        "one": {},
        "another rate": {"train__learning_rate": 0.5},
        "another noise": {"privacy__noise_multiplier": 3.0},
        "another key": {"privacy__published_key": "another"},
    }
    runs = []
    for name, changed in changes.items():
        raw = config(tmp_path / "a", data__eval=None, train__steps=8, **changed).model_dump(mode="json")
        del raw["run"]
        raw["data"]["eval"] = raw["data"]["train"]
        runs.append(Trained.of({"arm": name}, raw, False, True, tmp_path / "work" / "runs", Drawn()))
    rows = {row["arm"]: row for row in trained(runs, Work(None, tmp_path / "work", Scale.TINY), "runs")}
    assert rows["one"]["drawn"] == rows["another rate"]["drawn"] == rows["another noise"]["drawn"]
    assert len(rows["one"]["drawn"]) == 8
    assert rows["one"]["drawn"] != rows["another key"]["drawn"]
    assert len({row["loss"] for row in rows.values()}) == 4


def test_rows_are_scored_once_for_all_runs_that_have_the_same(tmp_path, monkeypatch):
    """Two run keys share the scores of their rows; shorter rows have their own, and a run's result stays as it was."""

    def runs(folder, *changes):
        raws = [
            config(
                tmp_path / "a",
                data__unit=None,
                privacy__mechanism="adaptive",
                privacy__rows_per_unit=1,
                adaptive={"mode": "nominal"},
                train__steps=1,
                **change,
            ).model_dump(mode="json", exclude={"run"})
            for change in changes
        ]
        for raw in raws:
            raw["data"]["eval"] = raw["data"]["train"]
        return [Trained.of({}, raw, False, True, tmp_path / folder / "runs") for raw in raws]

    scored, score = [], evaluation.perplexities

    def counted(*arguments):
        scored.append(score(*arguments))
        return scored[-1]

    monkeypatch.setattr(evaluation, "perplexities", counted)
    own = {"privacy__published_key": "another"}
    first, second, _ = trained(
        runs("shared", {}, own, {"data__max_length": 8}), Work(None, tmp_path / "shared", Scale.TINY), "runs"
    )
    assert len(scored) == 2
    [alone] = trained(runs("alone", own), Work(None, tmp_path / "alone", Scale.TINY), "runs")
    assert len(scored) == 3
    assert alone["loss"] == second["loss"] != first["loss"]


def test_rows_are_prepared_once_for_all_runs_of_a_source_and_a_key(tmp_path, monkeypatch):
    """Another rate has the same rows, another length or key has its own, and a run's result stays as it was."""
    prepared, prepare = [], preparation.prepare

    def counted(*arguments):
        prepared.append(prepare(*arguments))
        return prepared[-1]

    monkeypatch.setattr(preparation, "prepare", counted)

    def losses(folder, *changes):
        runs = []
        for each in changes:
            is_twin = each is twin
            raw = config(tmp_path / "a", train__steps=1, **each).model_dump(mode="json", exclude={"run"})
            raw["data"]["eval"] = raw["data"]["train"]
            runs.append(Trained.of({}, raw, is_twin, True, tmp_path / folder / "runs"))
        return [row["loss"] for row in trained(runs, Work(None, tmp_path / folder, Scale.TINY), "runs")]

    faster, twin = {"train__learning_rate": 0.02}, {}
    others = {"data__max_length": 8}, {"privacy__published_key": "another"}
    shared = losses("shared", {}, faster, twin, *others)
    assert len(prepared) == 3
    assert losses("alone", faster) == shared[1:2]
    assert len(prepared) == 4
    assert len(set(shared)) == 5


def test_trials_are_measured_by_their_loss_alone(posts, monkeypatch):
    arms = [
        Arm(name, {"privacy.mechanism": name}, RATES, look=look)
        for name, look in (("uls", StepsFound(1)), ("els", None))
    ]
    _, asked = ran(made(*arms), posts, monkeypatch, lambda run: 1.0)
    looked = {(run.columns["arm"], run.columns["key"]) for run in asked if run.look == StepsFound(1)}
    assert looked == {("uls", 1), ("uls", 2)}
    assert {run.look for run in asked if run.columns["arm"] == "els"} == {None}


@dataclass(frozen=True)
class Seen:
    """A look at a run."""


def test_the_run_key_reaches_what_is_derived_and_only_runs_that_count_are_looked_at(posts, monkeypatch):
    seen = []

    def derived(keys):
        seen.append(keys["privacy.published_key"])
        return keys

    rates, look = {"train.learning_rate": (1.0, 2.0)}, Seen()
    arm = Arm("uls", {"privacy.mechanism": "uls"}, rates, derived, look)
    _, asked = ran(made(arm, at={}, tuned_at={}), posts, monkeypatch, lambda run: 1.0)
    trials = [run for run in asked if run.columns["key"] == TRIAL]
    mains = [run for run in asked if run.columns["key"] != TRIAL]
    assert [run.look for run in trials] == [None] * 3
    assert [run.look for run in mains] == [look] * 2
    assert seen == [f"study made-up {key}" for key in (0, 0, 1, 2)]
    assert len({run.folder for run in asked}) == len(asked)


def test_a_run_is_given_what_a_program_would_pass(posts, monkeypatch):
    def given(keys):
        return Given(optimizer=functools.partial(torch.optim.SGD, lr=keys["train.learning_rate"]))

    one, other = (
        Arm("uls", {"privacy.mechanism": "uls"}, RATES, given=given),
        Arm("els", {"privacy.mechanism": "els"}, RATES),
    )
    _, asked = ran(made(one, other), posts, monkeypatch, lambda run: 1.0)
    rates = {run.given.optimizer.keywords["lr"] for run in asked if run.columns["arm"] == "uls"}
    assert rates == {1.0, 2.0, 3.0}
    assert not any(run.given for run in asked if run.columns["arm"] == "els")


def test_a_given_optimiser_trains_and_makes_another_run(tmp_path):
    raw = config(tmp_path / "a", train__steps=2, train__eval_on_start=False).model_dump(mode="json")
    del raw["run"]
    work = Work(None, tmp_path / "work", Scale.TINY)
    own = Given(optimizer=functools.partial(torch.optim.SGD, lr=0.3))
    runs = [Trained.of({}, raw, False, True, work.folder / "runs", given=each) for each in (None, own)]
    assert len({run.folder for run in runs}) == 2
    assert len({row["loss"] for row in trained(runs, work, "runs")}) == 2


def test_a_text_that_the_study_does_not_have_is_refused(posts):
    with pytest.raises(InputError, match="this study has made-up, not enron"):
        Work(posts.data, posts.folder, posts.scale, text="enron").chosen(("made-up",))


def test_measurements_come_back_as_they_were(tmp_path):
    rows = [{"a": 1, "b": "x"}, {"a": 2, "c": math.inf}]
    store.write(rows, tmp_path / "rows.parquet")
    assert store.read(tmp_path / "rows.parquet") == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": None, "c": math.inf},
    ]


ROWS = [{"key": key, "part": "test", "loss": 1.0 + key / 100, "version": "0.1"} for key in (1, 2, 3)]


def example(name="example", **changes):
    settings = {
        "name": name,
        "paper": "000",
        "shows": ("Table 6",),
        "question": "Does it?",
        "measure": lambda work: ROWS,
        "findings": lambda rows: [
            Finding("It does.", "Table 6", "gap", tuple(row["loss"] for row in rows), 0.5, 1.5),
            Finding("It does not.", "Table 7", "gap", tuple(row["loss"] for row in rows), 5.0),
        ],
        "tables": lambda rows: [Table("Table 6", ["a"], [[perplexity(losses(rows, {}))]])],
        "minutes": 1,
        "deviations": "Everything.",
        "reads": ("newsgroups",),
    }
    return Study(**settings | changes)


def test_the_register_holds_each_finding_once(tmp_path):
    for _ in range(2):
        register.record(example(), Scale.SMALL, ROWS, "2026-01-02", tmp_path)
    register.record(example("another"), Scale.SMALL, ROWS, "2026-01-02", tmp_path)
    found = register.kept(tmp_path)
    assert [each["study"] for each in found] == ["example"] * 2 + ["another"] * 2
    assert found[0]["verdict"] == "reproduced"
    assert found[0]["command"] == "confide study example --scale small --data data"
    assert found[0]["keys"] == 3
    assert found[0]["versions"] == ["0.1"]
    assert found[1]["holds_between"] == [5.0, None]
    assert store.read(tmp_path / "example-small.parquet") == ROWS


def test_a_run_of_one_text_keeps_what_was_measured_of_the_others(tmp_path):
    texts = ("mail", "books")
    of = {text: [row | {"text": text} for row in ROWS] for text in texts}
    register.record(example(), Scale.SMALL, of["mail"], "2026-01-02", tmp_path, "mail")
    assert register.kept(tmp_path)[0]["command"].endswith("--text mail --data data")
    for _ in range(2):
        register.record(example(), Scale.SMALL, of["books"], "2026-01-03", tmp_path, "books")
    assert store.read(tmp_path / "example-small.parquet") == of["mail"] + of["books"]
    assert [each["keys"] for each in register.kept(tmp_path)] == [6, 6]
    assert register.kept(tmp_path)[0]["command"] == "confide study example --scale small --data data"


def test_findings_follow_when_a_claim_changes(tmp_path):
    rows = [row | {"text": "mail"} for row in ROWS]
    register.record(example(), Scale.SMALL, rows, "2026-01-02", tmp_path, "mail")
    before = register.kept(tmp_path)
    register.judge_anew(lambda name: example(name), tmp_path)
    assert register.kept(tmp_path) == before
    other = [Finding("It does.", "Table 6", "gap", (1.0, 1.1), high=0.0)]
    register.judge_anew(lambda name: example(name, findings=lambda rows: other), tmp_path)
    after = register.kept(tmp_path)
    assert [(each["claim"], each["mean"]) for each in after] == [("It does.", 1.05)]
    assert (after[0]["date"], after[0]["text"]) == ("2026-01-02", "mail")


def test_what_is_kept_of_a_run_is_not_trained_again(tmp_path):
    """Its config would not even load."""
    columns = {"study": "s", "text": "t", "arm": "a", "privacy.epsilon": math.inf, "key": 1, "part": "test"}
    run = Trained.of(columns, {"no": "config"}, False, True, tmp_path / "runs")
    row = columns | {"loss": 2.5, "seconds": 3.0, "version": "1", "noise_multiplier": None}
    work = Work(None, tmp_path, Scale.SMALL, measured=[columns | {"key": 2, "loss": 9.0}, row])
    [found] = trained([run], work, "runs")
    assert found == columns | {"loss": 2.5, "seconds": 3.0, "version": "1"}
    assert json.loads(run.result.read_text()) == {"loss": 2.5, "seconds": 3.0, "version": "1"}
    other = Trained.of(columns | {"key": 3}, {"no": "other"}, False, True, tmp_path / "runs")
    with pytest.raises(InputError, match="no such key"):
        trained([other], work, "runs")
