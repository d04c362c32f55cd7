"""The suggestion study: a grid at one budget, the suggestion beside it, and its table."""

import json
import lzma
from math import exp
from types import SimpleNamespace

import pytest

from confide.console import Console
from confide.errors import InputError
from confide.runs import Run
from confide.studies import corpora, recipe, suggestion
from confide.studies.suggestion import EPSILONS, FASTER, GRID, ROWS, START

LINES = [{"from": f"s{i % 40}", "subject": "s", "body": f"{i} words of sender {i % 40}"} for i in range(120)]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data" / corpora.POSTS["20newsgroups"]
    path.parent.mkdir(parents=True)
    with lzma.open(path, "wt") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in LINES)
    return tmp_path / "data"


def test_every_setting_spends_the_same():
    assert len({(each.batch, each.rows, each.steps, each.learning_rate) for each in GRID}) == 12
    assert {each.batch * each.rows * each.steps for each in (*GRID, START, FASTER)} == {ROWS}
    assert START.learning_rate in {each.learning_rate for each in GRID}


def test_the_suggestion_is_that_of_the_planner_in_a_folder_of_its_own(tmp_path, data, monkeypatch):
    asked = []

    def suggest(config, shape, size, rows, count):
        asked.append((config.privacy.epsilon, shape.units, rows))
        return {"ranked": [{"settings": {"privacy.rows_per_unit": 3, "train.batch": 7.0, "train.steps": 11}}]}

    monkeypatch.setattr(suggestion, "suggest", suggest)
    found = suggestion.suggested(3.0, data, tmp_path / "work", Console(quiet=True))
    [(epsilon, units, rows)] = asked
    assert (epsilon, rows) == (3.0, ROWS)
    assert 30 < units < 40  # some of the 40 senders are held out
    assert (found.privacy.rows_per_unit, found.train.batch, found.train.steps) == (3, 7.0, 11)
    assert found.train.learning_rate == START.learning_rate
    assert found.run == str(tmp_path / "work" / "suggested-3-1")


def test_the_table_puts_the_best_first_and_measures_from_the_grids_best(tmp_path, data, monkeypatch):
    first, second, third = EPSILONS
    losses = {
        recipe.config(each, epsilon, 0, data, tmp_path).run: later + 5 + i / 10
        for later, epsilon in enumerate(EPSILONS)
        for i, each in enumerate(GRID)
    }
    own = {epsilon: recipe.config(START, epsilon, 0, data, tmp_path) for epsilon in EPSILONS}
    monkeypatch.setattr(suggestion, "suggested", lambda epsilon, *_: own[epsilon])
    losses |= {own[first].run: 5.05, own[second].run: 5.9, own[third].run: 7.0}
    plain, correlated = suggestion.faster(data, tmp_path)
    losses |= {plain.run: 7.0, correlated.run: 4.9}

    def fine_tune(run: Run, console):
        return SimpleNamespace(
            finished=True,
            final={"loss": losses[run.config.run]},
            guarantee=SimpleNamespace(noise_multiplier=0.64),
        )

    monkeypatch.setattr(suggestion, "fine_tune", fine_tune)
    found = suggestion.run(data, tmp_path)
    assert found["8"]["of_the_best"] == pytest.approx(exp(0.05))
    assert found["3"]["of_the_best"] == pytest.approx(exp(-0.1))
    assert found["3"]["others"] == []
    titles, tables = found["markdown"].split("\n\n")[::2], found["markdown"].split("\n\n")[1::2]
    assert titles == ["epsilon 8", "epsilon 3", "epsilon 1"]
    lines, later, last = (table.splitlines()[2:] for table in tables)
    assert (len(lines), len(later), len(last)) == (15, 13, 13)
    assert last[0].endswith("| 7.000 | 1096.6 | +0.0% |")
    assert later[0].startswith("| **suggested** |")
    assert later[0].endswith("| 5.900 | 365.0 | -9.5% |")
    assert lines[0] == (
        "| beside | uls | 240 | 1 | 32 | 0.006 | correlated over 32 steps | 0.64 | 4.900 | 134.3 | -9.5% |"
    )
    assert lines[1].startswith("| grid |")
    assert lines[1].endswith("| 5.000 | 148.4 | +0.0% |")
    assert (
        lines[2]
        == "| **suggested** | uls | 64 | 2 | 60 | 0.004 | independent | 0.64 | 5.050 | 156.0 | +5.1% |"
    )
    assert lines[-1].startswith("| beside | uls | 240 | 1 | 32 | 0.006 | independent |")


def test_a_folder_without_the_data_is_refused(tmp_path):
    with pytest.raises(InputError, match="20newsgroups"):
        suggestion.run(tmp_path, tmp_path / "work")
