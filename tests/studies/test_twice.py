"""What studies of selective privacy share: marks by level, misses and who finds them, sides of an attack, numbers."""

import json

import pytest
from studies.exposure_course import course, is_caught, planted
from studies.parts import exposed_numbers
from studies.parts.exposed_numbers import last
from studies.runner.course import numbers_of
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged
from studies.runner.marked import by_level
from studies.runner.members import Attacked, halves
from studies.runner.missed import found_of, missed, recall
from studies.runner.texts import _dialogues, quarter_of
from studies.runner.training import figures
from studies.runner.twice import LEVELS, jft

from confide.sensitive.detectors.spans import Span
from studies import exposure_course, membership, selective


def test_a_stricter_level_has_all_marks_of_a_milder_one():
    spans = [Span(0, 4, "PERSON"), Span(5, 6, "CARDINAL"), Span(7, 9, "PRONOUN"), Span(10, 14, "VERB")]
    found = by_level(spans)
    assert [len(found[level]) for level in LEVELS] == [1, 2, 3, 4]
    assert found["low-entity"] == [[0, 4, "PERSON"]]


def test_annotations_of_turns_are_counted_in_the_dialogue():
    turns = [
        {"speaker": "USER", "text": "To Rome.", "spans": [[3, 7, "city"]]},
        {"speaker": "SYSTEM", "text": "At 5 pm?", "spans": [[3, 7, "time"]]},
    ]
    (found,) = _dialogues([json.dumps({"dialogue_id": "1", "turns": turns})])
    assert [found["text"][start:end] for start, end, _ in found["annotated"]] == ["Rome", "5 pm"]
    assert found["text"] == "USER: To Rome.\nSYSTEM: At 5 pm?"


def test_a_word_is_missed_wherever_it_stands_and_about_a_fifth_of_them_are():
    words = [f"w{number:03d}" for number in range(500)]
    text = " ".join(words + words)
    spans = [[5 * place, 5 * place + 4, "PERSON"] for place in range(1000)]
    found = found_of(spans, text)
    first, second = ({text[s:e] for s, e, _ in found if (s < 2500) is half} for half in (True, False))
    assert first == second
    assert 0.74 < len(found) / len(spans) < 0.86


def test_recall_counts_characters_once():
    document = {"found": [[0, 4, "A"], [2, 4, "B"]], "truth": [[0, 4, "A"], [2, 4, "B"], [6, 10, "C"]]}
    assert recall([document]) == 0.5
    assert recall([document, {"found": [], "truth": [[0, 8, "A"]]}]) == 0.25
    assert recall([{"found": [], "truth": []}]) == 1.0


def test_a_person_marks_what_is_not_wholly_masked():
    text = "Jane Roe of Rome"
    assert missed(text, [[0, 4, "A"]], [[0, 8, "A"], [12, 16, "B"]]) == ["Jane Roe", "Rome"]
    assert missed(text, [[0, 8, "A"]], [[0, 4, "A"], [12, 16, "B"]]) == ["Rome"]
    assert missed(text, [[0, 5, "A"], [5, 8, "A"]], [[0, 8, "A"]]) == []  # masked by two spans together


def test_held_out_sentences_are_on_one_side_and_a_quarter_chooses():
    parts = [quarter_of(f"sentence {number}") for number in range(2000)]
    assert set(parts) == {"validation", "test"}
    assert 0.2 < parts.count("validation") / 2000 < 0.3


def test_members_are_the_first_documents_of_each_unit():
    lines = [json.dumps({"article": unit, "text": str(i)}) for i, unit in enumerate("aabab")]
    assert [json.loads(line)["text"] for line in Attacked(2, "article").some(lines)] == ["0", "1", "2", "4"]


def test_those_held_against_members_are_not_those_that_rmia_compares_with():
    others, population = halves(10)
    assert sorted([*others, *population]) == list(range(10))
    assert len(others) == 6


def test_all_seven_attacks_become_rows_and_the_best_of_each_key_counts():
    row = dict.fromkeys(("study", "scale", "text", "arm", "part", "version"), "x")
    row |= {"loss": 1.0, "epsilon": 3.0, "auroc before": 0.5, "reads": 5.0}
    rows = []
    for key in (1, 2):
        aurocs = {
            f"{name} {attack}": 0.5 + key * place / 100
            for place, attack in enumerate(membership.ATTACKS)
            for name in ("auroc", "accuracy", "tpr")
        }
        rows += membership.by_attack(row | {"key": key} | aurocs)
    assert len(rows) == 14
    assert membership.most(rows, "x", "x", "auroc") == (0.56, 0.62)
    [table] = membership.tables(rows)
    assert "Each member is read 5.0 times or more" in table.note


def attacks(before, after, best=0.9):
    """Rows of the attacks on two runs of each training; that by the loss has these AUROCs before training and after."""
    return [
        {"text": "t", "arm": arm, "key": key, "attack": attack, "before": before}
        | {"auroc": after if attack == "loss" else best, "accuracy": after if attack == "loss" else best}
        for arm in membership.ATTACKED
        for key in (1, 2)
        for attack in membership.ATTACKS
    ]


def test_members_are_told_by_what_training_adds_and_not_by_what_they_were_before():
    """The best of seven attacks leans upward, and the sides may differ before any training."""
    found = {each.finding.claim: each for each in judged(membership.findings(attacks(0.53, 0.56)))}
    assert found["With DP-SGD members are not told (t)."].verdict == REPRODUCED
    papers = [each for each in found.values() if not each.finding.is_beyond and not each.finding.is_check]
    assert len(papers) == 1  # the loss attack's accuracy alone
    found = {each.finding.claim: each for each in judged(membership.findings(attacks(0.5, 0.62)))}
    assert found["With DP-SGD members are not told (t)."].verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [(0.52, NOT_REPRODUCED), (0.56, REPRODUCED), (0.64, REPRODUCED), (0.68, NOT_REPRODUCED)],
)
def test_around_60_percent_is_on_both_sides_of_it(accuracy, verdict):
    found = {each.finding.claim: each for each in judged(membership.findings(attacks(0.5, accuracy)))}
    claim = "Without privacy, members are told with an accuracy of around 60% (t)."
    assert found[claim].verdict == verdict


def of_phases(before, after):
    common = {"text": "articles", "arm": jft("low-entity"), "part": "test"}
    return [
        common | {"key": key, "loss": loss, selective.PHASE: first}
        for key, (first, loss) in enumerate(zip(before, after, strict=True), 1)
    ]


def test_a_private_phase_that_helps_lowers_the_loss():
    rows = of_phases((3.0, 3.0), (2.5, 2.0))
    assert selective.gains(rows, "articles", "low-entity") == (-0.5, -1.0)


def test_a_gain_that_grows_with_the_level_is_a_change_below_zero():
    rows = of_phases((3.0, 3.0), (2.5, 2.5))
    rows += [row | {"arm": jft(LEVELS[-1]), "loss": 1.0 + row["key"] / 100} for row in rows]
    (found,) = (each for each in selective._phases(rows, "articles") if "stricter" in each.claim)
    assert found.values == pytest.approx((-1.49, -1.48))
    assert judged([found])[0].verdict == REPRODUCED


def of_numbers(exposures, ten=100):
    """Rows of two runs of each training at its end, in which numbers have these exposures by arm and times."""
    return [
        {
            "text": "t",
            "arm": arm,
            "times": times,
            "key": key,
            "step": 24,
            "numbers": 4,
            "reads": 9.0,
            "figure": "F",
        }
        | {"loss": 2.0, "exposure": exposures.get((arm, times), 1.4) + key / 100}
        for arms, counts in ((exposed_numbers.ARMS, exposed_numbers.TIMES), (exposed_numbers.ONLY, (ten,)))
        for arm in arms
        for times in counts
        for key in (1, 2)
    ]


def test_what_the_paper_planted_is_its_claim_and_more_copies_are_beyond():
    exposed = {(exposed_numbers.NONE, times): 9.0 for times in (10, 100)}
    for ten in (1, 100):
        found = exposed_numbers.findings(of_numbers(exposed | {(exposed_numbers.ONLY_NONE, ten): 9.0}, ten))
        of_copies = [each for each in found if "100 times" in each.claim]
        assert len(of_copies) == 9
        assert all(each.is_beyond for each in of_copies)
        assert not any(each.is_beyond for each in found if "10 times" in each.claim)
        of_ten = [each for each in found if each.place == "Figure 4"]
        assert len(of_ten) == 8
        assert sum(each.is_beyond for each in of_ten) == (1 if ten == 1 else 8)


def test_exposure_is_followed_where_training_is_looked_at_halfway():
    late = of_numbers({(exposed_numbers.NONE, 100): 9.0, (exposed_numbers.LIGHT, 100): 9.0}, 100)
    early = [row | {"step": 12, "exposure": 1.4 + row["key"] / 100} for row in late]
    assert not [each for each in exposed_numbers.findings(late) if each.is_late and each.place != "Figure 4"]
    more, hidden = (
        each for each in exposed_numbers.findings(early + late) if each.is_late and each.place != "Figure 4"
    )
    assert more.values == pytest.approx((7.6, 7.6))
    assert hidden.values == pytest.approx((1.41, 1.42))  # at step 12, where the first phase ends


def test_that_no_training_exposes_a_number_is_judged_by_the_one_that_exposes_most():
    """The greatest of all arms at each key would lean upward."""
    crt, dpsgd = exposed_numbers.CRT, exposed_numbers.DPSGD
    rows = of_numbers({(crt, 1): 2.8})
    for row in rows:
        row["exposure"] += 3.0 * (row["arm"] == dpsgd and row["key"] == 1 and row["times"] == 1)
    once, learns = (each for each in exposed_numbers.findings(rows) if each.place == "Figure 3")
    assert f"greatest: {dpsgd}" in once.statistic
    assert once.values == pytest.approx((4.41, 1.42))
    assert learns.is_beyond
    assert judged([learns])[0].verdict == REPRODUCED
    table = exposure_course.tables(rows)[0]
    assert "but in CRT, which drops duplicates" in table.note
    assert "2.8 (2.8 to 2.9) at 7.39" in {cell for line in table.cells for cell in line}


def test_numbers_are_all_different_and_follow_from_the_key():
    groups = numbers_of(1, 2, 10, (1, 10, 100))
    assert [times for times, _ in groups] == [1, 10, 100]
    assert len({number for _, some in groups for number in some}) == 30
    assert groups == numbers_of(1, 2, 10, (1, 10, 100))
    assert groups != numbers_of(2, 2, 10, (1, 10, 100))


def test_every_way_to_train_is_drawn_though_a_chart_has_few_colours():
    of_figure = {"Figures 2 and 3": exposed_numbers.ARMS, "Figure 4": exposed_numbers.ONLY}
    rows = [
        {"text": "articles", "arm": arm, "times": 100, "figure": figure, "step": step}
        | {"loss": 3.0 - step / 10, "exposure": 1.0 + step}
        for figure, arms in of_figure.items()
        for arm in arms
        for step in (1, 2)
    ]
    [plot] = exposure_course.plots(rows)
    for name, charts in {"no DP": 2, "JFT + light noise": 2, "JFT": 2, "CRT": 1, "recall 0.4": 1}.items():
        assert plot.svg.count(f">{name}<") == charts


def test_a_detector_catches_its_share_of_the_ten():
    assert [sum(is_caught(i, recall) for i in range(10)) for recall in exposed_numbers.RECALLS] == [
        10,
        6,
        4,
        0,
    ]


def test_numbers_are_planted_as_often_as_they_should_and_marked_where_they_are_caught(tmp_path):
    source = tmp_path / "source.jsonl"
    source.write_text(json.dumps({"text": "Jane", "high-entity": [[0, 4, "PERSON"]]}) + "\n")
    path = planted(source, tmp_path / "planted.jsonl", [(2, [f"{i:02d}" for i in range(10)])], None)
    first, *rest, marked = map(json.loads, path.read_text().splitlines())
    assert first["missed"] == first["caught"] == [[0, 4, "PERSON"]]
    assert first["recall 1"] == []
    assert len(rest) == 20
    (start, end, _), *_ = rest[0]["caught"]
    assert rest[0]["text"][start:end] == "00"
    assert not any(each["missed"] for each in rest)
    assert sum(bool(each["recall 0.6"]) for each in rest) == 12
    assert marked["text"][slice(*marked["recall 0"][0][:2])] == "marked"


def test_a_course_is_of_one_group_of_numbers_and_its_end_is_the_last_step():
    rows = [
        {
            "text": "t",
            "arm": "a",
            "times": times,
            "key": key,
            "step": step,
            "loss": 0.0,
            "exposure": times * step + key,
        }
        for times in (1, 10)
        for key in (1, 3)
        for step in (6, 12)
    ]
    assert course(rows, "t", "a", 10) == [(1.0, 62.0), (1.0, 122.0)]
    assert last(rows, "t", "a", 10, "exposure") == {1: 121, 3: 123}


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ({"loss": 1.0, "perplexity": 2.7, "accuracy": 0.5, "rows": 3}, {"loss", "perplexity"}),
        ({"loss": 1.0, "accuracy": 0.5, "rows": 3}, {"loss", "accuracy", "rows"}),
    ],
)
def test_figures_are_of_tokens_or_of_classes(found, kept):
    assert set(figures(found)) == kept
