"""The Enron cleaning of Chua et al. 2024 appendix B on raw messages, with the count of every step."""

from pathlib import Path
from typing import Any

import numpy as np

from confide.data.readers import Counts, documents, records
from confide.data.readers.enron import clean_enron
from confide.utils.errors import InputError
from studies import main


def run(data: Path, folder: Path) -> dict[str, Any]:
    """Read the maildir through the raw reader and the cleaning; statistics as in Chua et al. 2024 Table 1."""
    source = data / "enron-maildir" / "maildir.tar.xz"
    if not source.exists():
        raise InputError(f"{source}: no such file; give the folder that holds enron-maildir")
    counts, senders = Counts(), Counts()
    for document in documents(clean_enron(records(str(source)), counts), "body", "from"):
        senders[document.units[0]] += 1
    rows = np.array(list(senders.values()))
    statistics = {
        "senders": len(rows),
        "records": int(rows.sum()),
        "mean": float(rows.mean()),
        "median": float(np.median(rows)),
        "min": int(rows.min()),
        "max": int(rows.max()),
    }
    lines = [
        "| step | records |",
        "|---|---|",
        *(f"| {name} | {number:,} |" for name, number in counts.items()),
    ]
    lines += ["", "| senders | records | mean a sender | median | min | max |", "|---|---|---|---|---|---|"]
    lines.append(
        f"| {statistics['senders']} | {statistics['records']:,} | {statistics['mean']:.0f} | "
        f"{statistics['median']:g} | {statistics['min']} | {statistics['max']:,} |"
    )
    return {"counts": dict(counts), "statistics": statistics, "markdown": "\n".join(lines)}


if __name__ == "__main__":
    main(run)
