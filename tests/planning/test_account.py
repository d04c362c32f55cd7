"""Numbers alone give what a run of such counts claims: the vectors, the plan, and back again."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import confide
from confide.config.loading import check
from confide.data.shape import Shape
from confide.planning import account as module
from confide.planning import cost
from confide.planning import plan as planning
from confide.privacy import mechanisms
from confide.privacy.accounting import FixedBins, Trials, fixed_bins
from confide.privacy.correlated_noise import Buffered
from confide.privacy.guarantee import PRIORS, Guarantee
from confide.privacy.mechanisms.statement import calibrate
from confide.privacy.mechanisms.tuned import CountedSweep
from confide.privacy.strength import large_delta
from confide.utils.errors import InputError
from tests.command import World, environment, refused
from tests.command import confide as command

COUNTS = np.array([1, 2, 3, 8, 5, 1, 9, 4, 4, 2] * 3)
SHAPE = Shape(COUNTS, int(COUNTS.sum()), 10 * int(COUNTS.sum()), True)
IN_USE = int(np.minimum(COUNTS, 4).sum())
SIZE = cost.Size(1000, 500, 2, 16, 100)
ULS = {"process": "uls", "units": 2000, "batch": 200}


# the vectors ---------------------------------------------------------------------------------------
def vectors(shared, name):
    return json.loads((shared / "vectors/accounting.json").read_text())[name]


def within_half_a_percent(found, known):
    assert 0.995 * known <= found <= 1.005 * known


def test_a_rate_that_bins_round_is_named():
    def sampling(rate):
        found = confide.account("uls", rate=rate, steps=8, noise_multiplier=1.0, delta=1e-6, sampling="bins")
        return dict(found.assumptions)["sampling"]

    assert "makes no whole number" in sampling(0.7)
    assert "makes no whole number" not in sampling(0.25)


def test_user_sampling_meets_the_vectors(shared):
    for known in vectors(shared, "user_sampling"):
        for process in ("uls", "dp-sgd"):
            found = confide.account(
                process,
                rate=known["q"],
                noise_multiplier=known["sigma"],
                steps=known["T"],
                delta=known["delta"],
            )
            within_half_a_percent(found.epsilon, known["epsilon"])


def test_example_level_sampling_meets_the_vectors(shared):
    for known in vectors(shared, "els_binomial"):
        given = {"rate": known["p"], "rows_per_unit": known["G"], "delta": known["delta"]}
        stated = {"noise_multiplier": known["sigma"], "steps": known["T"]}
        within_half_a_percent(confide.account("els", **given, **stated).epsilon, known["epsilon"])


def test_group_privacy_meets_the_vectors(shared):
    for known in vectors(shared, "group_privacy"):
        given = {"rate": known["p"], "steps": known["T"], "epsilon": known["epsilon"]}
        given |= {"delta": known["delta"], "rows_per_unit": known["k"]}
        group, els = (confide.account(name, **given).noise_multiplier for name in ("group", "els"))
        # the grid that a group is calibrated on takes about 1% more noise: never below the vector
        assert known["sigma_group"] * 0.995 <= group <= known["sigma_group"] * 1.015
        within_half_a_percent(els, known["sigma_mog"])


# there and back ------------------------------------------------------------------------------------
ROUND = {
    "uls": ULS | {"steps": 500},
    "uls, replaced": ULS | {"steps": 500, "adjacency": "replace-one"},
    "uls, truncated": ULS | {"steps": 5, "sampling": "truncated", "max_batch": 240},
    "uls, correlated": ULS | {"steps": 96, "bands": 8},
    "uls, all of them": ULS | {"batch": 2000, "steps": 30},
    "uls, added": {"process": "uls", "rate": 0.1, "steps": 100, "adjacency": "add-or-remove"},
    "uls, a sweep": ULS | {"steps": 100, "trials": 4},
    "uls, with histograms": ULS | {"steps": 100, "histograms": 5},
    "els": {"process": "els", "rows": 20_000, "rows_per_unit": 8, "batch": 200, "steps": 700},
    "els, replaced": {"process": "els", "rate": 0.01, "rows_per_unit": 8, "steps": 70, "adjacency": "replace-one"},
    "group": {"process": "group", "rows": 20_000, "rows_per_unit": 8, "batch": 200, "steps": 700},
    "dp-sgd": {"process": "dp-sgd", "rows": 20_000, "batch": 200, "steps": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ROUND)
def test_each_number_follows_from_the_others(name):
    given = ROUND[name] | {"delta": 1e-6}
    steps, epsilon = given.pop("steps"), 6.0
    first = confide.account(steps=steps, epsilon=epsilon, **given)
    noise = first.noise_multiplier
    assert first.found == "noise_multiplier"
    assert first.epsilon <= epsilon

    second = confide.account(steps=steps, noise_multiplier=noise, **given)
    assert second.found == "epsilon"
    assert second.epsilon == first.epsilon
    less = confide.account(steps=steps, noise_multiplier=0.998 * noise, **given)
    assert second.epsilon <= epsilon < less.epsilon

    third = confide.account(epsilon=epsilon, noise_multiplier=noise, **given)
    assert third.found == "steps"
    assert third.steps >= steps
    assert third.epsilon <= epsilon
    more = confide.account(steps=third.steps + 1, noise_multiplier=noise, **given)
    assert more.epsilon > epsilon

    delta = given.pop("delta")
    if given.get("adjacency") == "add-or-remove":  # needs a literal, and gets one that is found
        assert "rate" in given
    last = confide.account(epsilon=second.epsilon, noise_multiplier=noise, steps=steps, **given)
    assert last.found == "delta"
    assert last.delta == pytest.approx(delta, rel=1e-6)
    assert last.profile.epsilon(last.delta) <= second.epsilon * (1 + 1e-9)


def test_fewer_steps_than_bands_are_not_found():
    found = confide.account(**ULS, bands=8, epsilon=6, noise_multiplier=3.0, delta=1e-6)
    assert found.steps % 8 == 0  # a group's next turn would be one too many
    assert confide.account(**ULS, bands=8, epsilon=6, noise_multiplier=3.0, delta=1e-6).steps >= 8
    with pytest.raises(InputError, match=r"--epsilon: at this noise 8 steps have epsilon .* already"):
        confide.account(**ULS, bands=8, epsilon=0.5, noise_multiplier=3.0, delta=1e-6)


def test_so_many_steps_that_no_more_are_tried(monkeypatch):
    from confide.privacy.accounting import calibration

    monkeypatch.setattr(calibration, "MOST_STEPS", 300)
    monkeypatch.setattr(module, "MOST_STEPS", 300)
    found = confide.account(**ULS, epsilon=8, noise_multiplier=10, delta=1e-6)
    assert (found.steps, found.more_steps) == (300, True)
    assert found.answer.startswith("Even 300 steps of uls at noise multiplier 10 are within epsilon 8 ")


# the plan ------------------------------------------------------------------------------------------
SAME = {
    "uls": ({}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, noise": ({"noise_multiplier": 1.3}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, replaced": ({"adjacency": "replace-one"}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, truncated": ({"sampling": "truncated", "max_batch": 8}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, correlated": ({"bands": 3}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, in bins": ({"sampling": "bins"}, {"units": 30, "rows": 117, "batch": 6}),
    "uls, with histograms": ({"histograms": 5}, {"units": 30, "rows": 117, "batch": 6}),
    "dp-sgd, with histograms": ({"histograms": 5, "adjacency": "replace-one"}, {"rows": 117, "batch": 6}),
    "uls, rate": ({"sampling_rate": 0.3}, {"units": 30, "rows": 117, "rate": 0.3}),
    "els": ({"rows_per_unit": 4}, {"units": 30, "rows": IN_USE, "rows_per_unit": 4, "batch": 6}),
    "els, fewest": ({"rows_per_unit": 4}, {"rows": IN_USE, "rows_per_unit": 4, "batch": 6}),
    "group": ({"rows_per_unit": 4}, {"units": 30, "rows": IN_USE, "rows_per_unit": 4, "batch": 6}),
    "group, truncated": (
        {"rows_per_unit": 4, "sampling": "truncated", "max_batch": 9},
        {"rows": IN_USE, "rows_per_unit": 4, "batch": 6},
    ),
    "dp-sgd": ({}, {"rows": 117, "batch": 6}),
    "dp-sgd, correlated": ({"bands": 4, "adjacency": "replace-one"}, {"rows": 117, "batch": 6}),
}


@pytest.mark.parametrize("name", SAME)
def test_a_plan_of_such_data_has_the_same_figures(name, monkeypatch):
    monkeypatch.setattr(planning, "alternatives", lambda mechanism, shape, config: iter(()))
    settings, counts = SAME[name]
    process = name.partition(",")[0]
    train = {"batch": 6.0, "steps": 40} | {
        k: settings[k] for k in settings if k in ("max_batch", "sampling_rate")
    }
    privacy = {k: v for k, v in settings.items() if k not in (*train, "histograms")}
    data = {"train": "x", "unit": "user"}
    if "histograms" in settings:
        privacy["histograms"] = {"of": ["conditions"], "noise_multiplier": settings["histograms"]}
        data |= {"condition": ["kind"], "conditions": [{"kind": "a"}, {"kind": "b"}]}
    target = {} if "noise_multiplier" in privacy else {"epsilon": 4.0}
    config = check({"data": data, "privacy": privacy | target | {"mechanism": process}, "train": train})
    claim = planning.plan(config, SHAPE, SIZE).guarantee

    given = {k: v for k, v in settings.items() if k not in ("sampling_rate", "rows_per_unit")}
    found = confide.account(process, steps=40, **counts, **given, **target)
    assert found.noise_multiplier == claim.noise_multiplier
    assert (found.epsilon, found.delta) == (claim.epsilon, claim.delta)
    assert found.curve == claim.curve
    assert found.advantage == claim.advantage
    assert dict(found.true_positive_rates)[0.01] == claim.true_positive_rate
    assert found.reconstruction == claim.reconstruction
    assert dict(found.assumptions)["adjacency"] == f"{claim.adjacency}: compares {claim.worlds}"
    assert dict(found.assumptions)["process"] in claim.accountant


def test_the_commands_agree_about_a_prepared_run(tmp_path, model):
    world = World(tmp_path, model).set(train__steps=6)
    planned = json.loads(command("plan", world.path, "--json").out)
    train = json.loads(command("prepare", world.path, "--json").out)
    given = ["--units", train["units"], "--rows", train["rows"], "--batch", 4, "--delta", 1e-3]
    found = json.loads(command("account", "uls", *given, "--steps", 6, "--noise", 0.8, "--json").out)
    assert found["epsilon"] == planned["chosen"]["epsilon"]
    assert found["noise_multiplier"] == planned["chosen"]["noise_multiplier"]
    assert found["curve"] == planned["guarantee"]["curve"]
    assert found["warnings"] == Guarantee.from_json(planned["guarantee"]).weakness() != []


def test_a_sweep_is_counted_as_tune_counts_it():
    uls = mechanisms.find("uls")(batch=200, steps=100)
    shape = Shape(np.ones(2000, np.int64), 2000, 0, True)
    known = calibrate(uls, shape, None, 1.5, 1e-6, CountedSweep(Trials(5)))
    given = ULS | {"steps": 100, "noise_multiplier": 1.5, "delta": 1e-6}
    found = confide.account(**given, trials=5)
    assert found.epsilon == known.curve().epsilon(1e-6)
    assert found.epsilon > confide.account(**given).epsilon


def test_what_is_added_costs_what_is_zeroed_out():
    given = {"rate": 0.1, "steps": 100, "epsilon": 3, "delta": 1e-6}
    added = confide.account("uls", adjacency="add-or-remove", **given)
    assert added.noise_multiplier == confide.account("uls", **given).noise_multiplier
    assert added.units is None


@pytest.mark.parametrize("name", ["selective", "crt"])
def test_sensitive_text_costs_what_replaced_rows_cost(name):
    """As docs/configuring.md says."""
    given = {"batch": 6, "steps": 40, "adjacency": "replace-one"}
    kind, rows = mechanisms.find(name), mechanisms.find("dp-sgd")(**given).parameters(SHAPE).process
    noised = kind(**given)
    assert noised.parameters(SHAPE, noised.all_steps).process == rows


# made-up counts ------------------------------------------------------------------------------------
@pytest.mark.parametrize("cap", [1, 2, 5, 16])
def test_made_up_users_have_as_many_rows_as_there_are(cap):
    for units in range(1, 12):
        for rows in range(units, units * cap + 1):
            counts = module._rows_of(units, rows, cap)
            assert (len(counts), counts.sum()) == (units, rows)
            assert 1 <= counts.min() <= counts.max() == min(cap, rows - units + 1)


def test_counts_beyond_memory_need_none():
    given = {"steps": 100, "noise_multiplier": 1.0}
    for process, name in (("uls", "units"), ("dp-sgd", "rows")):
        found = confide.account(process, **{name: 10**10}, batch=1000, **given)
        assert found.units == 10**10
        assert found.delta == pytest.approx(1e-11, rel=1e-9)


# what is said --------------------------------------------------------------------------------------
ASKED = ("account", "uls", "--units", 2000, "--batch", 200, "--steps", 100)


def test_the_first_line_is_the_answer_and_then_what_was_assumed():
    found = command(*ASKED, "--epsilon", 8, "--delta", "1e-6")
    first, second, third, *rest = found.out.splitlines()
    known = confide.account(**ULS, steps=100, epsilon=8, delta=1e-6)
    assert first == known.answer
    assert first == (
        f"Noise multiplier {known.noise_multiplier:g} is the least with which 100 steps of uls are within epsilon 8 at "
        "delta 1e-06."
    )
    assert (second, third) == ("", "assumed:")
    said = "\n".join(rest)
    for words in (
        "zero-out",
        "poisson: a step draws each unit with probability 0.1",
        "delta: as stated",
        "dp_accounting",
    ):
        assert words in said
    for delta in ("1e-05", "1e-12"):
        assert f"\n{delta} " in said
    assert "true positives" in said


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (("--noise", 1), r"Epsilon is [\d.]+ at delta 1e-06 for 100 steps of uls at noise multiplier 1\."),
        (("--noise", 1e-6), r"No finite epsilon holds at delta 1e-06 .* nothing is protected\."),
    ],
)
def test_the_answer_is_a_sentence(given, answer):
    first = command(*ASKED, "--delta", 1e-6, *given).out.splitlines()[0]
    assert re.fullmatch(answer, first), first


def test_steps_and_delta_are_answered_in_a_sentence():
    steps = confide.account(**ULS, noise_multiplier=2, epsilon=8, delta=1e-6)
    assert (
        steps.answer
        == f"At most {steps.steps} steps of uls at noise multiplier 2 stay within epsilon 8 at delta 1e-06."
    )
    delta = confide.account(**ULS, noise_multiplier=2, epsilon=8, steps=100)
    assert delta.answer.startswith("Delta is ")
    assert delta.answer.endswith(" at epsilon 8 for 100 steps of uls at noise multiplier 2.")
    assert dict(delta.assumptions)["delta"] == "found"


def test_json_is_json_also_where_nothing_is_protected():
    def unknown(name):
        raise AssertionError(name)

    for noise in (1e-6, 1.0):
        out = command(*ASKED, "--noise", noise, "--json").out
        found = json.loads(out, parse_constant=unknown)
        assert (found["epsilon"] == "inf") == (noise == 1e-6)
        assert found["found"] == "epsilon"
        assert found["asked"]["units"] == 2000
        assert [prior for prior, _ in found["reconstruction"]] == list(PRIORS)


def test_a_large_delta_gets_the_warning_of_claims():
    given = ULS | {"steps": 10, "noise_multiplier": 1.0}
    assert confide.account(**given, delta=1e-4).warnings == (large_delta(2000, 1e-4),)
    assert confide.account(**given, delta=1e-6).warnings == ()
    found = command(*ASKED, "--noise", 1, "--delta", 1e-4)
    assert f"\n  warning: {large_delta(2000, 1e-4)}\n" in found.out


def test_the_plot_shows_the_curve_and_the_answer(tmp_path):
    picture = tmp_path / "curve.svg"
    found = command(*ASKED, "--epsilon", 8, "--delta", 1e-6, "--plot", picture)
    assert found.code == 0
    titles = [title.text or "" for title in ET.parse(picture).iter("{http://www.w3.org/2000/svg}title")]
    known = confide.account(**ULS, steps=100, epsilon=8, delta=1e-6)
    assert (
        f"epsilon {module.at_most(known.epsilon)} at delta 1e-06: 1e-06, {module.at_most(known.epsilon)}"
        in titles
    )
    assert f"of the run: 1e-12, {module.at_most(known.profile.epsilon(1e-12))}" in titles
    assert sum(title.startswith("blind guess") for title in titles) == 61
    nothing = command(*ASKED, "--noise", 1e-6, "--plot", tmp_path / "nothing.svg")
    refused(nothing, "--plot: there is nothing to draw")
    assert not (tmp_path / "nothing.svg").exists()
    assert command(*ASKED, "--epsilon", 8, "--delta", 1e-6, "--plot", picture).code == 0  # made again


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "mail.jsonl": "--plot FOLDER/mail.jsonl: exists already; give another name, or remove it first",
        "none/curve.svg": "--plot FOLDER/none/curve.svg: there is no folder FOLDER/none; make it first",
        ".": "--plot FOLDER: is a folder; give the name of a file in it",
    }.items(),
)
def test_a_plot_replaces_no_file_of_the_user_and_needs_a_folder(name, words, tmp_path):
    text = tmp_path / "mail.jsonl"
    text.write_text("a year of mail")
    found = command(*ASKED, "--epsilon", 8, "--delta", 1e-6, "--plot", tmp_path / name)
    refused(found, re.escape(words.replace("FOLDER", str(tmp_path))))
    assert text.read_text() == "a year of mail"


def test_it_works_without_torch():
    probe = (
        "import sys; sys.argv = ['confide', *'account uls --units 2000 --batch 200 --steps 9 --noise 1'.split()]\n"
        "from confide.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True)
    assert done.stdout.startswith("Epsilon is "), done
    assert done.stdout.splitlines()[-1] == "[]"


# faults --------------------------------------------------------------------------------------------
COUNTED = ("--units", 2000, "--batch", 200)
FAULTS = {
    "nothing but counts": (("uls", *COUNTED), "--epsilon and --noise and --steps: all are missing; .* give two"),
    "one": (("uls", *COUNTED, "--steps", 5), "--epsilon and --noise: both are missing"),
    "all four": (
        ("uls", *COUNTED, "--steps", 5, "--noise", 1, "--epsilon", 1, "--delta", 1e-6),
        "nothing is left to find: leave one out",
    ),
    "unknown process": (("sgd", *COUNTED), "sgd: from counts alone follow uls, els, group, dp-sgd"),
    "process of a config": (("secret", *COUNTED), "write a config, and call confide plan"),
    "epsilon below 0": (("uls", *COUNTED, "--steps", 5, "--epsilon", -1), "--epsilon: -1 must be a finite"),
    "epsilon infinite": (("uls", *COUNTED, "--steps", 5, "--epsilon", "inf"), "--epsilon: inf must be a finite"),
    "noise nan": (("uls", *COUNTED, "--steps", 5, "--noise", "nan"), "--noise: nan must be"),
    "noise 0": (("uls", *COUNTED, "--steps", 5, "--noise", 0), "--noise: 0 must be a finite number above 0"),
    "steps 0": (("uls", *COUNTED, "--steps", 0, "--noise", 1), "--steps: 0 must be"),
    "more units than people": (("uls", "--units", 10**12, "--batch", 2), r"--units: 1e\+12 is no whole number of at"),
    "delta 1": (("uls", *COUNTED, "--steps", 5, "--noise", 1, "--delta", 1), "--delta: 1 is .* must be below 1"),
    "rate above 1": (("uls", "--rate", 1.5, "--steps", 5, "--noise", 1), "--rate: 1.5 is .* must be at most 1"),
    "batch above units": (
        ("uls", "--units", 20, "--batch", 200, "--steps", 5, "--noise", 1),
        "--batch: 200 units a step are more than the 20 there are; take at most 20",
    ),
    "batch and rate": (("uls", *COUNTED, "--rate", 0.1, "--steps", 5, "--noise", 1), "--batch: give either"),
    "neither": (("uls", "--units", 20, "--steps", 5, "--noise", 1), "--batch: give either --batch and --units"),
    "batch of nobody": (("dp-sgd", "--batch", 20, "--steps", 5, "--noise", 1), "--rows: say how many there are"),
    "no default of delta": (("uls", "--rate", 0.1, "--steps", 5, "--noise", 1), "--delta: without --units there is no"),
    "one unit": (("uls", "--units", 1, "--batch", 1, "--steps", 5, "--noise", 1), "--units: .* nothing can be hidden"),
    "no cap": (("els", "--rows", 20, "--batch", 2, "--steps", 5, "--noise", 1), "--rows-per-unit: els needs"),
    "cap of nothing": (("uls", *COUNTED, "--rows-per-unit", 2), "--rows-per-unit: uls does not depend on it"),
    "cap above rows": (
        ("els", "--rows", 20, "--rows-per-unit", 21, "--batch", 2, "--steps", 5, "--noise", 1),
        "--rows-per-unit: 21 are more than the 20 rows",
    ),
    "fewer rows than units": (("uls", *COUNTED, "--rows", 5), "--rows: 5 are fewer than one for each of the 2,000"),
    "more rows than units have": (
        ("group", "--rows", 50, "--units", 20, "--rows-per-unit", 2, "--batch", 2),
        "--rows: 20 units of at most 2 rows have fewer than 50",
    ),
    "too many users": (("els", "--rows", 10**9, "--rows-per-unit", 2, "--batch", 1e6), "too many .* --rate 0.001, "),
    "units of rows": (("dp-sgd", *COUNTED), "--units: dp-sgd protects rows"),
    "adjacency": (("uls", *COUNTED, "--adjacency", "both"), "--adjacency: 'both' is not one of zero-out, add"),
    "sampling": (("uls", *COUNTED, "--sampling", "shuffle"), "'shuffle' is not one of poisson, truncated, bins"),
    "added, with a batch": (
        ("uls", *COUNTED, "--adjacency", "add-or-remove", "--steps", 5, "--noise", 1, "--delta", 1e-6),
        "--rate: an add-or-remove claim needs a literal constant",
    ),
    "added, without delta": (
        ("uls", "--units", 20, "--rate", 0.1, "--adjacency", "add-or-remove", "--steps", 5, "--noise", 1),
        "--delta: an add-or-remove claim needs a literal constant",
    ),
    "truncated without a cap": (
        ("uls", *COUNTED, "--sampling", "truncated", "--steps", 5, "--noise", 1),
        "--max-batch: sampling: truncated needs the most",
    ),
    "cap below the batch": (
        ("uls", *COUNTED, "--sampling", "truncated", "--max-batch", 100, "--steps", 5, "--noise", 1),
        "--max-batch: 100 is below the expected batch 200",
    ),
    "cap of poisson": (("uls", *COUNTED, "--max-batch", 300, "--steps", 5, "--noise", 1), "--max-batch: is an option"),
    "bands of els": (
        ("els", "--rows", 2000, "--rows-per-unit", 2, "--batch", 2, "--bands", 2, "--steps", 5, "--noise", 1),
        "--bands: noise is correlated over steps under uls and dp-sgd, not under els",
    ),
    "bands above steps": (
        ("uls", *COUNTED, "--bands", 6, "--steps", 5, "--noise", 1), "--bands: 6 are more than the 5 steps",
    ),
    "bands above the rate": (
        ("uls", *COUNTED, "--bands", 11, "--steps", 50, "--noise", 1), "--bands: with 11 groups .* at most 10",
    ),
    "histograms of els": (
        ("els", "--rows", 2000, "--rows-per-unit", 2, "--batch", 2, "--steps", 5, "--noise", 1, "--histograms", 20),
        "--histograms: are counted under uls and dp-sgd, not under els",
    ),
    "histograms of bins, replaced": (
        ("uls", *COUNTED, "--steps", 5, "--noise", 1, "--histograms", 20, "--sampling", "bins",
         "--adjacency", "replace-one"),
        "--sampling: bins under replace-one does not compose exactly with --histograms",
    ),
    "histograms that cost all": (
        ("uls", *COUNTED, "--steps", 5, "--epsilon", 1, "--histograms", 1),
        "--histograms: the counts alone cost epsilon [0-9.]+ of the 1 of --epsilon",
    ),
    "histograms without noise": (
        ("uls", *COUNTED, "--steps", 5, "--epsilon", 1, "--histograms", 0), "--histograms: 0 must be a finite",
    ),
    "no sweep": (("uls", *COUNTED, "--steps", 5, "--noise", 1, "--trials", 1), "--trials: 1 trials .* no sweep"),
    "no run so short": (
        ("uls", *COUNTED, "--noise", 0.5, "--epsilon", 0.1),
        "--epsilon: at this noise one step has epsilon [0-9.]+ already, so no run stays within 0.1",
    ),
    "no noise": (
        ("uls", *COUNTED, "--steps", 5, "--epsilon", 1e-9, "--delta", 1e-12), "no noise meets --epsilon 1e-09 at ",
    ),
    "no delta": (("uls", "--rate", 1, "--steps", 5, "--noise", 1e-3, "--epsilon", 1), "--noise: .* no delta below 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_nonsense_is_refused_in_one_sentence(name):
    arguments, sentence = FAULTS[name]
    refused(command("account", *arguments), sentence)


def test_programs_hear_the_same():
    with pytest.raises(InputError, match=r"--steps: 2\.5 is no whole number"):
        confide.account(**ULS, steps=2.5, epsilon=1)
    with pytest.raises(InputError, match="--epsilon: -inf must be"):
        confide.account(**ULS, steps=2, epsilon=-math.inf)


@pytest.mark.parametrize("matrix", [{"bands": 8}, {"buffers": 1}])
def test_no_more_steps_are_tried_than_kept_bins_allow(matrix, monkeypatch):
    """Doubling the steps would go past the most that fixed bins account for, which nobody asked for."""
    # The real number takes two minutes.
    monkeypatch.setattr(fixed_bins, "MOST_STEPS", 3_000)
    monkeypatch.setattr(module, "MOST_OF_KEPT_BINS", 3_000)
    kept = {"process": "uls", "rate": 0.125, "delta": 1e-5, "sampling": "bins"} | matrix
    found = confide.account(**kept, noise_multiplier=20_000, epsilon=8)
    assert (found.steps, found.more_steps) == (3_000, True)
    assert found.answer.startswith("Even 3,000 steps")


def test_buffers_are_asked_for_in_place_of_bands():
    binned = {
        "process": "uls",
        "rate": 0.125,
        "delta": 1e-5,
        "sampling": "bins",
        "noise_multiplier": 1,
        "steps": 24,
    }
    found = confide.account(**binned, buffers=3)
    process = FixedBins(8, 24, tuple(Buffered(3).column(24)), Buffered(3).sensitivity)
    assert found.epsilon == process.curve(1.0).epsilon(1e-5)
    said = " ".join(dict(found.assumptions).values())
    assert "correlated over all later steps (3 buffers)" in said
    assert "the same one in each" in said
    with pytest.raises(InputError, match="either buffers or bands"):
        confide.account(**binned, buffers=3, bands=2)
    with pytest.raises(InputError, match="--buffers: 17 is not between 0"):
        confide.account(**binned, buffers=17)
    with pytest.raises(InputError, match="--buffers: with sampling: bins a run has at most 100,000 steps"):
        confide.account(**binned | {"steps": 10**9}, buffers=3)
    with pytest.raises(InputError, match=r"--buffers: .* use a larger batch, or no buffers"):
        confide.account(**binned | {"rate": 0.001}, buffers=3)


def test_what_an_unfinished_epoch_means_is_said():
    binned = {"process": "uls", "rate": 0.1, "delta": 1e-5, "sampling": "bins", "noise_multiplier": 1}
    for bands in (1, 4):
        said = dict(confide.account(**binned, steps=12, bands=bands).assumptions)
        assert "; of the last 2, which are no whole epoch, in one or none" in " ".join(said.values())
        said = dict(confide.account(**binned, steps=20, bands=bands).assumptions)
        assert "no whole epoch" not in " ".join(said.values())
