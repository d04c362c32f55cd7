"""Write the page of findings and those of the papers from the register and the measurements; nothing is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confide.utils.files import write_text
from confide.utils.rounding import at_least
from studies.registry import names, study
from studies.runner import register, store
from studies.runner.findings import CONFIDENCE, NOT_REPRODUCED, REPRODUCED, RUN_KEYS, UNDECIDED
from studies.runner.grid import TRIAL
from studies.runner.study import Row, Scale, Study
from studies.runner.tables import percent

DOCS = Path(__file__).parents[2] / "docs"
PAPERS = {
    "000": "User-level DP for language models (Chua et al. 2024)",
    "001": "Adaptive DP (Wu et al. 2022)",
    "002": "Secret protection (Ganesh et al. 2025)",
    "003": "Example- and user-level sampling (Charles et al. 2024)",
    "004": "Just Fine-tune Twice (Shi et al. 2022)",
    "": "Beyond the papers",
}
_ORDER = (NOT_REPRODUCED, UNDECIDED, REPRODUCED)  # what does not reproduce is said first
_OWN_WORDS = {REPRODUCED: "holds", NOT_REPRODUCED: "does not hold", UNDECIDED: UNDECIDED}
"""Verdicts of claims that no paper makes, so that there is nothing to reproduce."""
_NEARLY = 1e-6
_SHORT = {paper: name.partition("(")[2].rstrip(")") for paper, name in PAPERS.items() if paper}
_MADE = "<!-- Made by `confide study --pages`; do not edit by hand. -->\n\n"

Entry = Mapping[str, Any]


def write(docs: Path = DOCS, folder: Path = register.KEPT) -> None:
    """Write the page of findings and a page for each paper."""
    entries = register.kept(folder)
    pages: dict[str, list[str]] = {}
    for name in names():
        chosen = study(name)
        for scale in (Scale.SMALL, Scale.FULL):
            path = folder / f"{name}-{scale}.parquet"
            if path.exists():
                own = [each for each in entries if (each["study"], each["scale"]) == (name, str(scale))]
                rows = store.read(path)
                draw(chosen, rows, docs / "results")
                title = _titles(folder, name)[scale]
                pages.setdefault(chosen.paper, []).append(section(chosen, rows, own, title))
    for paper, sections in pages.items():
        title = f"# {PAPERS[paper]}: what was found\n\n"
        write_text(docs / "results" / f"{_file(paper)}.md", _MADE + title + "\n".join(sections))
    docs.mkdir(parents=True, exist_ok=True)
    write_text(docs / "results.md", _MADE + _findings(entries, folder) + _shown(folder))


def draw(chosen: Study, rows: Sequence[Row], folder: Path) -> None:
    """Write the pictures of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in chosen.plots(rows):
        write_text(folder / f"{plot.name}.svg", plot.svg)


def _on(entry: Entry) -> str:
    """Name what measured, unless it was a CPU alone, as the reader expects."""
    return "" if entry["devices"] in ([], ["CPU"]) else f", on: {', '.join(entry['devices'])}"


def _keys(rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Name the run keys that findings are measured over, and the one of the trials."""
    if all(each["confidence"] is None for each in entries):
        return ", computed: there are no run keys"
    if all(each["confidence"] is None or each["over"] != RUN_KEYS for each in entries):
        return ", without run keys: what is drawn at random has seeds that stand in the study"
    keys = {int(row["key"]) for row in rows if row.get("key") not in (None, TRIAL)}
    if not keys:
        return ""
    first, last = min(keys), max(keys)
    words = f", run key {first}" if first == last else f", run keys {first} to {last}"
    has_trials = any(row.get("part") == "validation" for row in rows)
    return words + f"; settings were chosen with run key {TRIAL}" * has_trials


def _titles(folder: Path, name: str) -> dict[str, str]:
    """Return the titles of a study's sections by scale: its name, and for a second one which scale it is of."""
    scales = [scale for scale in (Scale.SMALL, Scale.FULL) if (folder / f"{name}-{scale}.parquet").exists()]
    return {str(scale): f"{name} at {scale}" if place else name for place, scale in enumerate(scales)}


def section(chosen: Study, rows: Sequence[Row], entries: Sequence[Entry], title: str | None = None) -> str:
    """Return a study's part of a page: findings, tables, and how they were made.

    Args:
        title: of the section; by default the study's name.
    """
    lines = [f"## {title or chosen.name}", "", chosen.question, ""]
    if entries:
        lines += [
            "| verdict | of | claim | found | claim holds | what is measured |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {said(each)} | {_source(each)} | {_claim(each)} | {shown(each)} | {holds(each)} "
            f"| {each['statistic']} |"
            for each in _sorted(entries)
        ]
        first = entries[0]
        lines += [
            "",
            f"Made by `{first['command']}` on {first['date']}, confide {', '.join(first['versions'])}{_on(first)}"
            f"{_keys(rows, entries)}.",
            "",
        ]
    lines += [table.markdown() for table in chosen.tables(rows)]
    lines += [plot.markdown() for plot in chosen.plots(rows)]
    if chosen.deviations:
        what = "Otherwise than in the paper" if chosen.paper else "How it was measured"
        lines += [f"*{what}*: {chosen.deviations}", ""]
    return "\n".join(lines)


def _claim(entry: Entry) -> str:
    """Write a claim, marked if it was written when its figures were known."""
    return f"{entry['claim']}{' †' * entry['is_late']}"


def shown(entry: Entry) -> str:
    """Write the statistic of a finding with its interval."""
    write = percent if entry["unit"] == "nats" else "{:.4g}".format
    low, high = (None if limit is None else write(limit) for limit in entry["interval"])
    if entry["confidence"] is None:
        return write(entry["mean"]) if low == high else f"{low} to {high}"
    if low is None or high is None:
        return f"{write(entry['mean'])}, of one run key"
    freedom = f", {entry['freedom']} degrees of freedom" if entry["freedom"] else ""
    wider = f" at {at_least(100 * entry['confidence'], 3)}%" if entry["confidence"] > CONFIDENCE else ""
    return f"{write(entry['mean'])} ({low} to {high}{wider}; {entry['keys']} {entry['over']}{freedom})"


def holds(entry: Entry) -> str:
    """Write between which bounds the statistic lies if the claim holds."""
    write = percent if entry["unit"] == "nats" else "{:.4g}".format
    low, high = entry["holds_between"]
    if low is not None and high is not None:
        return f"{write(low)} to {write(high)}"
    bound, words = (high, ("below", "at most")) if low is None else (low, ("above", "at least"))
    if bound is None:
        return ""
    if 0 < abs(bound) < _NEARLY:  # stands for a statistic that must not be 0
        return f"{words[0]} {write(0.0)}"
    return f"{words[1]} {write(bound)}"


def _findings(entries: Sequence[Entry], folder: Path) -> str:
    lines = [
        "# Findings",
        "",
        "What the experiments of the papers came to here. [Papers](papers.md) says it in a few words, paper by paper, "
        "and explains the terms. Below, each line is a claim of a paper and what was found of it; what was not "
        "reproduced stands first. The name of a study leads to its tables, to claims that go beyond the paper, to its "
        "run keys, and to the command that made the figures.",
        "",
        *_summary(entries),
        "## How claims are judged",
        "",
        "A claim says that a statistic lies between two bounds (*claim holds*). It is *reproduced* if the statistic's "
        "95% interval lies between them, *not reproduced* if all of it lies outside, and *undecided* otherwise. "
        "Where the statistic is computed and not measured there is no interval: the range of "
        "its values is shown, and one value outside refutes the claim. Claims of the same kind are judged together, "
        "most of them by text (Holm 1979). Where a claim is of the greatest of several statistics, the interval is "
        "widened for all of them. An interval that is wider than 95% names its percentage. In the tables each interval "
        "has 95% by itself. "
        "Claims that no paper makes are judged by the same rule, and *hold* or do *not hold*. A *check* is what nobody "
        "would doubt, or what the construction of the study makes true. If it does not hold, the study is at fault or "
        "too small. Checks are not counted as findings.",
        "",
        "Claims marked † were written on 2026-11-30, when an independent reader had looked in the papers for claims "
        "that no study judged. Their figures were known by then, so that claims and bounds could have been fitted to "
        "them. On that day older claims changed as well: `group-or-user` says that user-wise DP-SGD outperforms group "
        "privacy, in place of that it is not worse by 1%. `blow-up` has the paper's 20,000 as its bound, in place of "
        "1.01. `extraction` judges whether text that is given back was learnt as a share of it, and only where some is "
        "given back. `user-k` judges at all epsilons together whether each further row adds less.",
        "",
        "Intervals are over run keys, for these texts and the settings that were chosen. A page names its run keys, "
        "where there are any. Where a study trains on a text, run key 2 on newsgroups is `published_key: study "
        "newsgroups 2` in the run's "
        "config. The version beside a study is a digest of the code that measured: `python scripts/commit_of.py "
        "0.1.0+28890f2e` names its commit. Most studies have three run keys. An interval then reaches 4.3 standard "
        "errors to each side, and "
        "further where claims are judged together, so that *undecided* often asks for more keys. Where several arms "
        "of one mechanism differ only in which rows they take, or in how many, the standard error comes from all of "
        "them (a randomised block design with the run key as block): such a finding names its degrees of freedom. "
        "That rule was made on 2026-11-27, after the first figures of `user-selection` and `user-k` were seen; their "
        "claims and bounds stayed as they were.",
        "",
        '"A less B" is A minus B. Differences of loss are shown as changes of the perplexity. The ways of training '
        "that a study compares are its *arms*. Arms with one run key have the same draws and noise, so that their "
        "difference does not depend on these. In `mask-token` and, on newsgroups, in `user-k`, which are older, each "
        "arm had its own draws, so that the intervals are wider.",
        "",
        "On 2026-11-29 an independent reader held all claims against the papers' text, after they had been measured. "
        "Where a claim went further than its paper, or differed from it, it was mended: about a dozen are *beyond* "
        "the paper now, or have its own words or bound. Measurements stayed, but for `blow-up`, which was made anew "
        "with the paper's numbers.",
        "",
    ]
    for paper, name in PAPERS.items():
        if own := [each for each in entries if each["paper"] == paper]:
            lines += _of_paper(name, own, folder)
    return "\n".join(lines)


def _summary(entries: Sequence[Entry]) -> list[str]:
    """Count what was found of each paper, and of confide's own claims."""
    lines = [
        "| paper | not reproduced | undecided | reproduced | beyond it: do not hold | beyond it: undecided "
        "| beyond it: hold |",
        "|---|---|---|---|---|---|---|",
    ]
    for paper, name in PAPERS.items():
        own = [each for each in entries if each["paper"] == paper and not each["is_check"]]
        counts = Counter((each["is_beyond"], each["verdict"]) for each in own)
        cells = [str(counts[kind, verdict] or "") for kind in (False, True) for verdict in _ORDER]
        if own:
            lines.append(f"| [{name}](results/{_file(paper)}.md) | {' | '.join(cells)} |")
    return [*lines, ""]


def _of_paper(name: str, entries: Sequence[Entry], folder: Path) -> list[str]:
    """List the claims of a paper, and the checks that failed."""
    listed = [
        each
        for each in _sorted(entries)
        if (each["verdict"] != REPRODUCED if each["is_check"] else not each["is_beyond"])
    ]
    if not listed:
        return []
    lines = [f"## {name}", "", "| verdict | of | claim | found | claim holds | what is measured | study |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for each in listed:
        title = _titles(folder, each["study"])[each["scale"]]
        link = f"[{title}](results/{_file(each['paper'])}.md#{title.replace(' ', '-')})"
        lines.append(
            f"| {said(each)} | {_place(each)} | {_claim(each)} | {shown(each)} | {holds(each)} "
            f"| {each['statistic']} | {link} |"
        )
    return [*lines, ""]


def said(entry: Entry) -> str:
    """Return the verdict in the words that its claim is judged by."""
    is_papers = not entry["is_beyond"] and not entry["is_check"]
    return str(entry["verdict"] if is_papers else _OWN_WORDS[entry["verdict"]])


def _source(entry: Entry) -> str:
    """Write where a claim comes from: the paper's table or figure, or what it adds to that."""
    if entry["is_check"] or not entry["paper"]:
        return _place(entry)
    return f"{_SHORT[entry['paper']]}, {_place(entry)}"


def _place(entry: Entry) -> str:
    """Write where in its paper a claim stands."""
    if entry["is_check"]:
        return "check"
    return f"{'beyond ' * (entry['is_beyond'] and bool(entry['paper']))}{entry['place']}"


def _shown(folder: Path) -> str:
    """List the papers' tables and figures, each with its study and whether that was run."""
    lines = [
        "",
        "## The papers' tables and figures",
        "",
        "A study has the shape of the table or figure that stands before it. One that was not run yet has no findings "
        "above. Where a text is missing, so are the findings of what the paper shows of such text. All run as "
        "`confide study NAME`.",
        "",
        "| paper | shown | study | run |",
        "|---|---|---|---|",
    ]
    found = []
    for chosen in map(study, names()):
        run = "; ".join(_ran(chosen, folder)) or "not yet"
        for place in chosen.shows:
            paper, _, own = place.rpartition(": ")
            lacks = f"; without {chosen.lacks[place]}" if place in chosen.lacks else ""
            found.append(
                (
                    _SHORT.get(paper or chosen.paper, paper),
                    *_order(own),
                    own,
                    chosen.name,
                    run + lacks,
                )
            )
    for paper, place, why in _NOT_REPEATED:
        found.append((_SHORT[paper], *_order(place), place, "", why))
    lines += [f"| {' | '.join((paper, *rest))} |" for paper, _, _, *rest in sorted(found)]
    return "\n".join(lines) + "\n"


_NOT_REPEATED = (("003", "Table 2", "not repeated: counts of the C4 rows that the model was pretrained on"),)
"""Tables with data that no study repeats: paper, name, why."""


def _ran(chosen: Study, folder: Path) -> Iterator[str]:
    """Yield the scales at which a study was run, each with the texts that are missing."""
    for scale in (Scale.SMALL, Scale.FULL):
        path = folder / f"{chosen.name}-{scale}.parquet"
        if path.exists():
            texts = chosen.texts if scale is Scale.SMALL else ()
            measured = {row.get("text") for row in store.read(path)} if texts else set()
            missing = [text for text in texts if text not in measured]
            yield f"{scale}, not yet on {' and '.join(missing)}" if missing else str(scale)


def _order(place: str) -> tuple[str, int]:
    """Sort `Table 10` behind `Table 9`."""
    word, _, number = place.partition(" ")
    return word, int(number) if number.isdigit() else 0


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda each: (each["is_check"], _ORDER.index(each["verdict"])))


def _file(paper: str) -> str:
    return f"paper-{paper}" if paper else "beyond"


__all__ = ["draw", "said", "section", "shown", "write"]
