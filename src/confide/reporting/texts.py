"""Tell of text that a model has written: what it is, and on a private page what it is worth and what attacks found."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.reporting.claim_lines import Table
from confide.reporting.facts import Facts
from confide.synthesis.remembered import NOT_OWN

_COVERED = (
    "This text was computed from what was released: {source}. So the claim holds of it, for the same unit, and it cost "
    "nothing further."
)
_PROMPTS = (
    " The claim does not cover prompts: were they taken from private text, they would tell what they say."
)


@dataclass(frozen=True)
class Looked:
    """What was measured of one text.

    Attributes:
        name: of its file.
        is_own: the run remembers writing it.
    """

    name: str
    is_own: bool
    tables: tuple[Table, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """The section of a page.

    Attributes:
        says: that it is covered; "" if nothing is known to have been written.
        table: one line for each text.
        looked: what was measured on private text.
    """

    says: str
    table: Table | None
    looked: tuple[Looked, ...]


def section(facts: Facts) -> Section | None:
    """Return the section; None if the run knows of no text."""
    looked = {} if facts.measured is None else facts.measured.texts
    if not facts.texts and not looked:
        return None
    names = _names([*facts.texts.values(), *looked.values()])
    rows = [_row(each, names) for each in facts.texts.values()]
    head = (
        "file",
        "documents",
        "samples drawn",
        "prompts or kinds",
        "temperature",
        "top-p",
        "tokens at most",
    )
    return Section(
        _covered(facts.texts.values()) if rows else "",
        Table(head, rows) if rows else None,
        tuple(_looked(found, digest in facts.texts, names) for digest, found in looked.items()),
    )


def _covered(texts: Iterable[Mapping[str, Any]]) -> str:
    """Say what texts were computed from, and what of that the claim covers."""
    asked = [each["asked"] for each in texts]
    counts = any(each.get("counted") or each.get("bounds") for each in asked)
    source = "the model, and the counts beside it" if counts else "the model"
    return _COVERED.format(source=source) + _PROMPTS * any(
        each["prompts"] and not each.get("named") for each in asked
    )


def _names(found: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what each path is called: its file, and the folder too where files of two folders have one name."""
    paths = {each["path"]: Path(each["path"]) for each in found}
    often = Counter(path.name for path in paths.values())
    return {
        name: path.name if often[path.name] == 1 else f"{path.absolute().parent.name}/{path.name}"
        for name, path in paths.items()
    }


def _row(found: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    asked = found["asked"]
    return [
        names[found["path"]],
        f"{found['documents']:,}",
        f"{found['drawn']:,}",
        f"{asked['prompts']:,}",
        f"{asked['temperature']:g}",
        f"{asked['top_p']:g}",
        f"{asked['max_new_tokens']:,}",
    ]


def _looked(found: Mapping[str, Any], is_own: bool, names: Mapping[str, str]) -> Looked:
    tables, sentences = [], []
    if "evaluation" in found:
        for kind, head in (
            ("texts", ("this text", "real text that trained")),
            ("models", ("released", "base")),
        ):
            rows = [
                [each["what"], _value(each["of_corpus"]), _value(each["of_real"])]
                for each in found["evaluation"]["measures"]
                if each["kind"] == kind
            ]
            tables.append(Table(("", *head), rows))
    if "leaks" in found:
        leaks = found["leaks"]
        rows = [
            [f"longest run of words in common with {what}", f"{own['median']:g}", f"{own['most']}"]
            for what, own in (
                ("all text that trained", leaks["all_trained"]),
                ("as much of it as was held out", leaks["trained"]),
                ("held-out text of other units", leaks["held_out"]),
            )
        ]
        tables.append(Table(("", "median, in words", "longest"), rows))
        rows = [
            [f"units that trained, told by {name}", _value(rates["auroc"])]
            for name, rates in leaks["membership"].items()
        ]
        if leaks["planted"] is not None:
            planted = leaks["planted"]
            rows += [
                ["canaries that were planted and found", f"{planted['found']} of {planted['planted']}"],
                [
                    "canaries that were not planted and found",
                    f"{planted['found_absent']} of {planted['absent']}",
                ],
            ]
        if rows:
            tables.append(Table(("attack", "AUROC (0.5 is a guess), or how many"), rows))
        sentences.append(leaks["bound"])
    if not is_own:
        sentences = [NOT_OWN]
    return Looked(names[found["path"]], is_own, tuple(tables), tuple(sentences))


def _value(value: Mapping[str, Any]) -> str:
    if value["low"] is None:
        return f"{value['value']:.4g}"
    return f"{value['value']:.4g} ({value['low']:.4g} to {value['high']:.4g})"
