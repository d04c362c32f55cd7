"""`confide report` on trained runs: the files it reads and writes, and its pages in a browser."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from confide.config.loading import check
from confide.reporting.compare import compare
from confide.reporting.facts import Facts
from confide.reporting.verdict import value_of
from confide.reporting.written import PRIVATE_REPORT, REPORT
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from tests import browser
from tests.command import confide, environment, refused
from tests.runs.test_canaries import planted

QUIET = Console(quiet=True)
STEPS = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a run that was audited and has a twin."""
    folder = tmp_path_factory.mktemp("report")
    raw = planted(folder / "mail", family="digits", guesses=14).model_dump(mode="json")
    raw["train"] |= {"steps": STEPS, "batch": 60.0, "learning_rate": 0.02, "eval_every": 2}
    raw["data"] |= {"eval": 0.3}
    config = check(raw)
    fine_tune(Run(config), QUIET)
    fine_tune(Run(config, twin=True), QUIET)
    attacks = ("--attacks", "claim,exposure,membership,users", "--users", "20")
    sparing = ("--secrets", "2", "--ranks", "sampled", "--draws", "100")
    found = confide("audit", config.run, *attacks, *sparing)
    assert found.code == 0, found.err
    return Path(config.run)


@pytest.fixture(scope="module")
def pages(trained) -> dict[str, Path]:
    """The page to hand on, the private one, and a comparison."""
    assert confide("report", trained).code == 0
    assert confide("report", trained, "--private").code == 0
    compared = trained / "comparison.html"
    assert confide("report", trained, trained, "--out", compared).code == 0
    return {"open": trained / REPORT, "private": trained / PRIVATE_REPORT, "compared": compared}


def test_the_open_page_holds_no_figure_that_was_measured(trained, pages):
    facts = Facts.of(trained, with_measured=True)
    content = pages["open"].read_text("utf-8")
    measured = facts.measured
    assert measured is not None
    final = measured.evaluation("final")
    for key in ("loss", "perplexity"):
        assert value_of(key, final[key]) not in content
        assert value_of(key, final[key]) in pages["private"].read_text("utf-8")
    assert str(trained) not in content  # where it lies is nobody's business
    assert "Do not hand this page on" in pages["private"].read_text("utf-8")


def test_a_page_is_written_without_torch(trained, tmp_path):
    """It takes twice as long to import as everything else."""
    probe = (
        f"import sys; sys.argv = ['confide', 'report', {str(trained)!r}, '--out', {str(tmp_path / 'page.html')!r}]\n"
        "from confide.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], env=environment(), capture_output=True, text=True)
    assert (tmp_path / "page.html").exists(), done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_facts_are_those_of_the_run(trained):
    found = json.loads(confide("report", trained, "--private", "--json").out)
    assert found["guarantee"] == json.loads((trained / "release" / "guarantee.json").read_text())
    assert len(found["measured"]["steps"]) == STEPS
    assert [e["evaluation"] for e in found["measured"]["evaluations"]] == [
        "base",
        "during",
        "during",
        "final",
    ]
    assert found["measured"]["twin"]["loss"] > 0
    assert found["measured"]["audit"]["verdict"] in ("consistent", "underpowered")
    assert sum(found["measured"]["units_by_rows"].values()) == found["measured"]["data"]["units"]
    assert "measured" not in json.loads(confide("report", trained, "--json").out)


def test_the_page_says_that_the_files_are_those_of_the_run(trained, pages):
    """Also after an audit, which states its evidence in the guarantee and seals that."""
    assert Facts.of(trained).checked
    assert "Weights and guarantee are those that the run sealed." in pages["open"].read_text("utf-8")


def test_a_record_that_the_run_did_not_seal_is_told(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    record = run / "released.json"
    found = json.loads(record.read_text())
    record.write_text(json.dumps(found | {"seal": "0" * len(found["seal"])}))
    assert not Facts.of(run).checked


def test_the_page_says_what_happened_in_this_run(trained, pages):
    content = re.sub(r"<[^>]*>", "", pages["open"].read_text("utf-8"))
    for words in (
        "Losses on held-out text were measured, too.",
        "Yes. One was trained, and lies in the run folder. Never hand it on.",
        "made-up units were prepared for an audit.",
        "The model was attacked by confide audit.",
        "The run&#39;s folder holds the text, names or the key.",
        "Among it is a model without protection, in the folder twin.",
        "Each value of &#39;user&#39; in the text is one.",
    ):
        assert words in content
    planted = Facts.of(trained).course.config.canaries.count
    units = Facts.of(trained).guarantee.units
    assert planted
    assert f"{planted:,} of them are made up, for an audit: {units - planted:,} are real." in content
    shared = Facts.of(trained, with_measured=True).measured.data["duplicates"]["sentences"]
    assert shared[0] not in content
    assert shared[0] in pages["private"].read_text("utf-8")
    found = json.loads(confide("report", trained, "--json").out)
    stated = json.loads((trained / "release" / "guarantee.json").read_text())
    assert [each["what"] for each in found["not_covered"]] == stated["not_covered"]
    assert all(each["here"] for each in found["not_covered"])


def test_a_release_alone_gives_a_page_but_no_measurement(trained, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(trained / "release", copy)
    assert confide("report", copy).code == 0
    assert "A release alone does not know what happened." in (copy / REPORT).read_text("utf-8")
    assert "were not compared with the records" in (copy / REPORT).read_text("utf-8")
    refused = confide("report", copy, "--private")
    assert refused.code == 2
    assert "a release alone holds nothing that was measured" in refused.err


def test_a_changed_release_gets_no_page(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    stated = run / "release" / "guarantee.json"
    stated.write_text(stated.read_text().replace('"epsilon": ', '"epsilon": 0'))
    refused = confide("report", run)
    assert refused.code == 2
    assert "does not hold what this run released" in refused.err


def test_an_audit_of_another_model_is_not_shown(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    kept = json.loads((run / "audit.json").read_text())
    (run / "audit.json").write_text(json.dumps(kept | {"model": "another"}))
    assert Facts.of(run, with_measured=True).measured.audit is None
    assert Facts.of(trained, with_measured=True).measured.audit is not None


def test_runs_of_different_units_are_not_compared_by_epsilon(trained):
    from dataclasses import replace

    one = Facts.of(trained, with_measured=True)
    other = replace(one, guarantee=replace(one.guarantee, unit="one row", words=()))
    assert "Their epsilons can be compared" in compare([one, one]).sentences[0]
    assert "cannot be compared" in compare([one, other]).sentences[0]


def test_an_entry_for_the_registry_fits_its_schema(trained, tmp_path):
    import jsonschema

    schema = yaml.safe_load((Path(__file__).parent / "deployments-schema.yaml").read_text("utf-8"))
    path = tmp_path / "entry.yaml"
    assert confide("report", trained, "--registry", path).code == 0
    entry = yaml.safe_load(path.read_text("utf-8"))
    jsonschema.validate(entry, schema, format_checker=jsonschema.FormatChecker())
    stated = json.loads((trained / "release" / "guarantee.json").read_text())
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": stated["epsilon"], "delta": stated["delta"]}
    assert loss["privacy_unit"] == stated["unit"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(entry | {"status": "Great"}, schema)


def test_nothing_of_the_user_is_replaced_and_a_page_goes_into_a_folder_that_is_there(trained, tmp_path):
    mine = tmp_path / "mail.jsonl"
    mine.write_text("a year of mail")
    for options, words in {
        ("--out", mine): "--out .*mail.jsonl: exists already; give another name, or remove it first",
        ("--registry", mine): "--registry .*mail.jsonl: exists already",
        ("--out", tmp_path / "none" / "page.html"): "--out .*: there is no folder .*/none; make it first",
        ("--out", tmp_path): "--out .*: is a folder; give the name of a file in it",
        (
            "--out",
            tmp_path / "page.html",
            "--json",
        ): "--out is for the page, and --json prints facts in its place",
    }.items():
        refused(confide("report", trained, *options), words)
    assert mine.read_text() == "a year of mail"
    assert list(tmp_path.iterdir()) == [mine]


# in a browser -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["open", "private", "compared"])
def test_a_page_is_quiet_loads_nothing_and_is_accessible(pages, name):
    for seen in browser.visits(pages[name], ((360, "dark"), (1200, "light"))):
        assert seen.requests == []
        assert seen.console == []
        assert seen.serious == []
        assert seen.scrolls_sideways is False


def test_a_fault_of_a_page_would_be_noticed(pages, tmp_path):
    broken = tmp_path / "broken.html"
    content = pages["open"].read_text("utf-8")
    content = content.replace(
        "<main>", '<main><img src="https://example.org/x.png"><p style="color:#bbb">pale</p>'
    )
    broken.write_text(content, "utf-8")
    [seen] = browser.visits(broken, ((1200, "light"),))
    assert seen.requests or seen.console
    assert seen.serious


def test_the_slider_tells_epsilon_at_another_delta(trained, pages):
    stated = json.loads((trained / "release" / "guarantee.json").read_text())
    first, last = browser.run(
        pages["open"],
        """() => {
            const slider = document.getElementById("delta"), shown = document.getElementById("what-if");
            const start = shown.textContent;
            slider.value = slider.max;
            slider.dispatchEvent(new Event("input"));
            return [start, shown.textContent];
        }""",
    )
    numbers = [list(map(float, re.findall(r"[\d.]+(?:e-\d+)?\d", words))) for words in (first, last)]
    assert numbers[0] == pytest.approx([stated["delta"], stated["epsilon"]], rel=1e-2)
    least = min(stated["curve"], key=lambda pair: pair[1])
    assert numbers[1] == pytest.approx([least[1], least[0]], rel=1e-2)
