"""`confide redact`: the preview, the sample for a person, and their marks; nothing it prints is sensitive."""

import json
import re
import shutil
import stat
from pathlib import Path

import pytest
import yaml

from confide.config.loading import check
from confide.models.loading import load_tokenizer
from confide.sensitive.redaction.policy import Policy
from confide.utils.rounding import percent_at_least, percent_at_most
from tests.command import World, confide, nothing_half_written, refused

SENSITIVE = ("Annabel Lee", "Quetzalcoatl", "4711-0815")
MISSED = "Mr Heron"


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    made = World(tmp_path, tmp_path)
    rows = []
    for n in range(40):
        said = [f"{n} letters for", (*SENSITIVE, "nobody")[n % 4], "at noon"]
        said += [f"from {MISSED}"] if n % 10 == 0 else []
        text = " ".join(said)
        start = text.find(MISSED)
        rows.append({"text": text, "gold": [] if start < 0 else [[start, start + len(MISSED), "PERSON"]]})
    made.text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.raw["data"] = {"train": str(made.text), "unit": None, "eval": None}
    made.raw["privacy"] = {"mechanism": "redacted"}
    made.raw["detector"] = {"expressions": {"NAME": "Annabel Lee|Quetzalcoatl", "NUMBER": r"\d{4}-\d{4}"}}
    return made.save()


def done(*arguments) -> str:
    result = confide("redact", *arguments)
    assert result.code == 0, result
    assert not [said for said in SENSITIVE if said in result.out + result.err]
    return result.out


def screen(path: Path, change=lambda records: None) -> Path:
    header, *records = map(json.loads, path.read_text("utf-8").splitlines())
    for record in records:
        record |= {"screened": True, "missed": [MISSED] if MISSED in record["text"] else []}
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in [header, *records]))
    return path


# the preview --------------------------------------------------------------------------------------------------
def test_a_preview_counts_and_writes_a_private_page(world):
    out = done(world.path)
    table = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:5]}
    assert table["NAME"][:2] == ["20", "20"]
    assert table["NUMBER"][:2] == ["10", "10"]
    assert table["all"][:2] == ["30", "30"]
    facts = json.loads(done(world.path, "--json"))
    tokenizer = load_tokenizer(check(world.raw))
    texts = [json.loads(line)["text"] for line in world.text.read_text().splitlines()]
    spelled = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    assert facts["tokens"] == spelled
    assert table["NUMBER"][2] == f"{facts['kinds']['NUMBER']['tokens'] / spelled:.1%}"
    # Four digits, a hyphen and four digits, each a token of its own.
    assert facts["kinds"]["NUMBER"]["tokens"] == 10 * 9
    assert "NAME: 0 letters for █NAME█ at noon from Mr Heron" in out
    page = world.run / "redaction.html"
    assert f"masked documents: {page} (private)" in out
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert not [said for said in SENSITIVE if said in page.read_text()]
    assert page.read_text().count("<article>") == 40


def test_json_is_all_there_is_on_standard_output(world):
    facts = json.loads(done(world.path, "--json", "--against", "gold", "--documents", "2"))
    assert facts["documents"] == 40
    assert facts["kinds"]["NUMBER"]["spans"] == 10
    assert facts["against"]["spans"] == 4
    assert facts["against"]["recall_of_spans"] == 0
    page = (world.run / "redaction.html").read_text()
    assert page.count("<article>") == 4
    assert MISSED not in page


def test_what_is_annotated_is_compared_with_the_other_detectors(world):
    world.set(detector__spans="gold")
    out = done(world.path)
    assert re.search(r"PERSON +4 +4 ", out)
    assert "against the spans of the field 'gold'" in out
    assert "precision: 0% of the characters found" in out


@pytest.mark.parametrize("arguments", [("--against", "gold"), ("detector.spans=gold",)])
def test_the_spans_of_turns_are_those_of_the_dialogue(world, arguments):
    turns = [
        {"speaker": "USER", "text": "For Quetzalcoatl, at noon", "gold": [[4, 16, "GOD"]]},
        {"speaker": "SYSTEM", "text": "And 4711-0815?", "gold": [[4, 13, "PHONE"]]},
    ]
    world.write(json.dumps({"turns": turns}) + "\n", "talk.jsonl").set(data__text="turns")
    against = json.loads(done(world.path, "--json", *arguments))["against"]
    assert against["recall_of_whole_spans"] == against["precision_of_characters"] == 1
    assert set(against["kinds"]) == {"GOD", "PHONE"}


# the sample and its marks -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("share", "draws"), [("1.0", 1), ("0.4", 6)])
def test_a_sample_is_screened_and_its_lines_fit_the_config(world, share, draws):
    path = world.folder / "sample.jsonl"
    out = done(world.path, "--sample", share, "--draws", draws, "--out", path)
    assert re.fullmatch(
        r"wrote \d+ of 40 documents to .*sample\.jsonl: its first line says what to do\n", out
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    out = done(world.path, "--marks", screen(path))
    facts = json.loads(done(world.path, "--marks", path, "--json"))
    assert len(facts["draws"]) == draws
    low, high = facts["interval"]
    assert 0 <= low < facts["missing_rate"] < high < 1
    assert f"95% interval {percent_at_least(low, 3)} to {percent_at_most(high, 3)}" in out
    lines = [yaml.safe_load(line) for line in out.splitlines() if line.strip().startswith("redacted:")]
    assert [line["redacted"]["mode"] for line in lines] == ["screened", "light-noise"]
    for line, more in zip(lines, ({}, {"epsilon": 1.0}), strict=True):
        raw = world.raw | {"redacted": line["redacted"] | more}
        raw["privacy"] = {"mechanism": "selective", "epsilon": 3.0}
        found = check(raw).redacted
        assert found.marks == (str(path) if found.mode == "screened" else None)
        if found.missing_rate is not None:
            assert found.missing_rate[0] <= low < high <= found.missing_rate[1]


def test_marks_of_another_run_or_detector_are_refused(world):
    path = world.folder / "sample.jsonl"
    done(world.path, "--sample", "0.5", "--out", path)
    early = confide("redact", world.path, "--marks", path)
    refused(early, r"--marks: .*not screened yet", 21)
    screen(path)
    changed = confide("redact", world.path, "--marks", path, r"detector.expressions={NUMBER: \d+}")
    refused(changed, "the detectors, their settings or versions have changed")
    shutil.rmtree(world.run)
    refused(confide("redact", world.path, "--marks", path), r"sample\.jsonl line 1: not a sample of this run")


# a tired person -----------------------------------------------------------------------------------------------
FAULTS = {
    "a share of nothing": (("--sample", "0", "--out", "s"), "--sample 0: a share .* above 0 and at most 1"),
    "per cent": (("--sample", "5", "--out", "s"), "--sample 5: a share"),
    "not a number": (("--sample", "nan", "--out", "s"), "--sample nan: a share"),
    "no file": (("--sample", "0.1"), "--sample needs --out FILE"),
    "a file that is there": (("--sample", "0.1", "--out", "text.jsonl"), r"text\.jsonl: exists already"),
    "a folder that is not": (("--sample", "0.1", "--out", "no/s"), "no/s: there is no folder no"),
    "a file without a sample": (("--out", "s"), "--out is for --sample SHARE"),
    "draws of nothing": (("--draws", "3"), "--draws is for --sample SHARE"),
    "two things at once": (
        ("--marks", "s", "--sample", "0.1", "--out", "t"),
        "--marks and --sample do different",
    ),
    "marks against": (("--marks", "s", "--against", "gold"), "--marks and --against do different"),
    "no marks": (("--marks", "smaple.jsonl"), r"smaple\.jsonl: no such file"),
    "other marks": (("--marks", "text.jsonl"), r"text\.jsonl line 1: not the first line of a sample"),
    "no such field": (("--against", "glod"), "glod"),
    "no such key": (("detectr.level=low-entity",), r"detectr.*did you mean detector"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_input_is_named(world, name):
    arguments, message = FAULTS[name]
    text = world.text.read_text()
    refused(confide("redact", world.path, *arguments), message)
    assert world.text.read_text() == text
    assert not (world.run / "redaction.html").exists()
    assert not (world.folder / "s").exists()
    nothing_half_written(world.folder)


@pytest.mark.parametrize("arguments", [("--dokuments", "3"), ("--documents", "-1"), ("--draws", "0")])
def test_a_misspelt_option_is_no_traceback(world, arguments):
    result = confide("redact", world.path, *arguments)
    assert result.code == 2
    assert arguments[0] in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", [(), ("--sample", "1.0", "--out", "s")])
def test_a_stop_leaves_nothing_half_written(world, monkeypatch, arguments):
    def stop(self, documents):
        raise KeyboardInterrupt

    monkeypatch.setattr(Policy, "find", stop)
    result = confide("redact", world.path, *arguments)
    assert result.code == 130
    assert "run the same command again" in result.err
    nothing_half_written(world.folder)
    monkeypatch.undo()
    monkeypatch.chdir(world.folder)
    done(world.path, *arguments)


def test_a_config_that_masks_nothing_says_how_to_look_all_the_same(world):
    world.set(privacy={"mechanism": "dp-sgd", "epsilon": 4.0}, detector={})
    refused(confide("redact", world.path), r"dp-sgd masks nothing, .* privacy\.mechanism=selective and")
    found = done(world.path, "privacy.mechanism=selective", "detector.patterns=[EMAIL_ADDRESS]")
    assert found.startswith("nothing was found in 40 documents: look at `detector`")
