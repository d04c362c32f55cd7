"""The study of rows and chunks: its claims against made-up losses, and what it measures from random places on."""

import math

import pytest
import torch
from studies.rows_or_chunks import ANYWHERE, CHUNKS, EPSILON, ROWS, STARTS, loss_of
from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console
from studies import rows_or_chunks as study
from tests.test_resume import config


def rows(starts, anywhere):
    """Made-up runs: the losses of chunks and of rows, where text is read in each of the two ways."""
    return [
        {"text": "posts", "arm": arm, EPSILON: 8.0, "part": "test", "key": key, STARTS: at, ANYWHERE: other}
        | {"settings": "{}"}
        for arm, at, other in zip((CHUNKS, ROWS), starts, anywhere, strict=True)
        for key in (1, 2, 3)
    ]


def test_each_way_to_read_is_judged_by_its_own_loss():
    def verdicts(starts, anywhere):
        return [each.verdict for each in judged(study.findings(rows(starts, anywhere)))]

    assert verdicts((3.0, 2.9), (3.0, 3.1)) == [REPRODUCED, REPRODUCED]
    assert verdicts((3.0, 2.9), (3.0, 2.9)) == [REPRODUCED, NOT_REPRODUCED]
    assert verdicts((3.0, 3.1), (3.0, 3.1)) == [NOT_REPRODUCED, REPRODUCED]


def test_a_table_shows_both_ways_to_read():
    [table] = study.tables(rows((3.0, 2.9), (3.0, 3.1)))
    assert [row[2] for row in table.cells] == ["as rows", "from random places on"]
    assert table.cells[0][3].startswith(f"{math.exp(3.0):.2f}")
    assert table.cells[1][4].startswith(f"{math.exp(3.1):.2f}")


def test_the_loss_from_random_places_is_that_of_the_model_on_chunks(tmp_path, monkeypatch):
    """It is the mean over all predicted tokens, as transformers compute each chunk. All runs have the same chunks."""
    cut = study.random_chunks
    met = []

    def noted(*arguments):
        met.append(cut(*arguments))
        return met[-1]

    monkeypatch.setattr(study, "random_chunks", noted)
    same = {"data__eval": str(tmp_path / "common" / "text.jsonl")}
    runs = [Run(config(tmp_path / key, privacy__published_key=key, **same)) for key in ("one", "other")]
    jobs = [Job.of(run, Console(quiet=True)) for run in runs]
    for job in jobs:
        found, total, tokens = loss_of(job, 2), 0.0, 0
        for chunk in met[-1][0]:
            ids = torch.from_numpy(chunk.astype("int64"))[None]
            with torch.no_grad():
                total += job.model(input_ids=ids, labels=ids).loss.item() * (len(chunk) - 1)
            tokens += len(chunk) - 1
        assert found == pytest.approx(total / tokens, rel=1e-5)
    (first, places), (second, _) = met
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert len(places) == len(first) <= 2 * jobs[0].prepared.held_out.n_units
    assert {len(chunk) for chunk in first} <= set(range(1, 17))
