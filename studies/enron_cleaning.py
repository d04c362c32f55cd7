"""The Enron cleaning of Chua et al. 2024, appendix B, on raw messages, with the count of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from confide.data.readers import Counts, documents, records
from confide.data.readers.documents import Record
from confide.data.readers.enron import COPIES, FORWARDED, KEPT, READ, clean_enron, most_repeats
from studies.runner.findings import Finding
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work

STEP, SENDER, REPEATS = "step", "sender", "repeats"
PAPER_READ, PAPER_KEPT = 500_000, 240_173
"""Mails before ("approximately 500,000") and after the cleaning (Chua et al. 2024, appendix B.1)."""

_MOST = {Scale.TINY: 300, Scale.SMALL: None, Scale.FULL: None}  # messages that are read


def measure(work: Work) -> list[Row]:
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    raw = islice(records(str(work.source("enron-maildir/maildir.tar.xz"))), _MOST[work.scale])
    return [columns | row for row in counted(raw)]


def counted(raw: Iterator[Record]) -> list[Row]:
    """Return the count of each step of the cleaning, of each sender's records, and of repeats in what is kept."""
    counts, senders, repeats = Counts(), Counts(), 0
    for document in documents(clean_enron(raw, counts), "body", "from"):
        senders[document.units[0]] += 1
        repeats = max(repeats, most_repeats(document.text))
    rows: list[Row] = [{"what": STEP, "name": name, "value": number} for name, number in counts.items()]
    rows += [{"what": SENDER, "value": number} for number in senders.values()]  # no address is kept
    return [*rows, {"what": REPEATS, "value": repeats}]


def findings(rows: Sequence[Row]) -> list[Finding]:
    counts = _counts(rows)
    share, most = PAPER_KEPT / PAPER_READ, next(row["value"] for row in rows if row["what"] == REPEATS)
    return [
        Finding(
            f"Of the sent folders of four mailboxes the cleaning leaves {share:.0%} as many records as mails, as "
            "it does of the whole corpus in the paper.",
            "appendix B.1",
            "records kept / mails read; a tenth more or less counts as the same, since the paper rounds the mails read",
            (counts[KEPT] / counts[READ],),
            0.9 * share,
            1.1 * share,
            is_exact=True,
            unit="share",
            is_beyond=True,  # the paper's mail has folders of all kinds, in which a mail lies several times
        ),
        Finding(
            "No mail that is kept has a run of 20 words twice.",
            "appendix B.1",
            "how often the most frequent such run stands in a mail, at most",
            (most,),
            high=1.0,
            is_exact=True,
            unit="times",
            is_check=True,  # such mails are what the cleaning removes
        ),
    ]


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    return {row["name"]: row["value"] for row in rows if row["what"] == STEP}


def tables(rows: Sequence[Row]) -> list[Table]:
    counts = _counts(rows)
    paper = {READ: f"about {PAPER_READ:,}", KEPT: f"{PAPER_KEPT:,}"}
    steps = Table(
        "Appendix B: the steps of the cleaning",
        ["step", "records", "paper"],
        [[name, f"{number:,}", paper.get(name, "")] for name, number in counts.items()],
        f'Each distinct receiver of a mail gives a record ("{COPIES}"). "{FORWARDED}" is a Fw: or Fwd: subject, a '
        'forwarding banner, or an "Original Message" under a subject that is not a reply.',
    )
    own = np.array([row["value"] for row in rows if row["what"] == SENDER])
    ours = [len(own), own.sum(), own.mean(), np.median(own), own.min(), own.max()]
    heads = ["", "senders", "records", "mean a sender", "median", "min", "max"]
    cells = [
        ["here", *(f"{value:,.5g}" for value in ours)],
        ["paper, training part", "", "240,173", "13.2", "2", "1", "5,049"],
    ]
    note = "The paper calls 240,173 both the records that are left and those to train on."
    return [steps, Table("Table 1, left: records of a sender", heads, cells, note)]


STUDY = Study(
    name="enron-cleaning",
    paper="000",
    shows=("Table 1", "appendix B"),
    question="What does the paper's cleaning leave of raw Enron mail?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=0.5,
    deviations="The sent folders of four mailboxes, 6,153 mails, in place of all folders of 150. A sent mail lies "
    "there once, so few repeat and each has all of its receivers, and seven senders are left.",
    reads=("enron-maildir",),
)
