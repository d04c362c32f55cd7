"""Write a corpus of sampled documents, with a card beside it, so that an interrupted command goes on."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

from confide.privacy.guarantee import Guarantee
from confide.synthesis.rules import REPEATS, Rules
from confide.synthesis.sampling import Asked, Batch, Document, Sampling, claim_of, planned
from confide.utils.console import Console
from confide.utils.errors import InputError
from confide.utils.files import whole_file, write_text
from confide.utils.workers import Crew

FORMATS = (".jsonl", ".parquet")
_ENDS = {
    "max-new-tokens": "the most tokens that were asked for",
    "longest row": "the most tokens that the model reads",
}
_MOST = 10
"""Samples that are drawn for each document before it is said that the model writes too few that can be kept."""


@dataclass(frozen=True)
class Corpus:
    """A corpus that was written.

    Attributes:
        path: its file; the card lies beside it, with the ending `.md`.
        documents: how many it has.
        drawn: how many samples were looked at.
        left_out: how many each rule left out.
        ended: how many documents ended in which way.
    """

    path: Path
    documents: int
    drawn: int
    left_out: dict[str, int]
    ended: dict[str, int]

    @property
    def card(self) -> Path:
        return _card(self.path)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path), "card": str(self.card)}


def synthesize(release: Path, asked: Asked, path: Path, crew: Crew, console: Console) -> Corpus:
    """Sample documents from a released folder and write them, with a card that says what protects them.

    The file depends on the model and on `asked` alone: not on how many processes draw, nor on interruptions.

    Formal guarantee: the documents are computed from the released model and the counts that lie beside it, if there are
    some, from draws that are independent of the private text, and from the prompts. The claim is about model and counts
    together. So whatever the claim says of them, it says of the documents (post-processing), and they cost no further
    epsilon. Prompts that are taken from private text are not covered.

    Raises:
        InputError: the file is there, or parts of another command are, or the model writes too little that can be kept.
    """
    _named(path)
    if path.exists():
        raise InputError(f"--out {path}: is there already; remove it, or give another name")
    if _card(path).exists():
        raise InputError(
            f"--out {path}: its card would replace {_card(path)}; give another name, or move that file"
        )
    claim = claim_of(release)
    parts = _parts(path, release, asked)
    rules, kept, drawn = Rules(), list[Document](), 0
    missing = asked.quotas()

    def looked_at(batch: Batch, documents: list[Document]) -> int:
        """Keep what is wanted of a batch. Return how many documents that were."""
        before = len(kept)
        for document in documents:
            if missing[batch.prompt] and rules.keeps(document["text"]):
                kept.append(document)
                missing[batch.prompt] -= 1
        return len(kept) - before

    console.say("loading the model, and drawing the first documents")
    batches = _batches(release, asked, parts, crew, missing)
    first = next(batches)
    drawn += len(first[1])
    looked_at(*first)  # the time that is left is judged without it: it loads the model
    with console.track("documents", asked.documents, len(kept)) as track:
        for batch, documents in batches:
            drawn += len(documents)
            track(looked_at(batch, documents))
            if drawn >= _MOST * asked.documents + 10 * asked.batch and len(kept) < asked.documents:
                raise InputError(
                    f"of {drawn:,} samples only {len(kept):,} can be kept ({_told(rules.left_out)}): a higher "
                    "--temperature may help, or a longer training"
                )
    if len(asked.prompts) > 1:  # else the documents of a prompt would stand together
        Random(asked.seed).shuffle(kept)
    ended = Counter(document["ended"] for document in kept)
    found = Corpus(path, len(kept), drawn, dict(rules.left_out), dict(ended))
    _write(path, kept)
    write_text(found.card, card(found, asked, claim))
    shutil.rmtree(parts)
    return found


def _card(path: Path) -> Path:
    return path.with_suffix(".md")


def _named(path: Path) -> None:
    """Refuse a name that says no format."""
    if path.suffix not in FORMATS:
        raise InputError(f"--out {path}: give a name that ends in {' or '.join(FORMATS)}")


def kept_seed(path: Path, fresh: int) -> int:
    """Return the seed of the interrupted command that was writing this corpus, or a fresh one if there is none.

    Raises:
        InputError: what that command left is damaged, or the name says no format.
    """
    _named(path)
    kept = _folder(path) / "asked.json"
    if not kept.is_file():
        return fresh
    try:
        return int(json.loads(kept.read_text("utf-8"))[1]["seed"])
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(_damaged(kept)) from None


def _damaged(path: Path) -> str:
    return f"{path} is damaged: remove the folder {path.parent}, and the same command begins anew"


def _folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.parts")


def _parts(path: Path, release: Path, asked: Asked) -> Path:
    """Make the folder of finished batches, or find it as this same command left it."""
    folder = _folder(path)
    settings, kept = json.dumps([str(release.resolve()), asdict(asked)]), folder / "asked.json"
    is_other = kept.is_file() and kept.read_text("utf-8") != settings
    if is_other and any(folder.glob("[0-9]*.json")):
        raise InputError(
            f"{folder}: holds batches of a command that was interrupted, with {_differing(kept, settings)}: give the "
            "same command to go on, or remove that folder, or give another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(kept, settings)
    return folder


def _differing(kept: Path, settings: str) -> str:
    """Name the settings of an interrupted command that differ from those of this one."""
    try:
        (release, asked), (own_release, own) = json.loads(kept.read_text("utf-8")), json.loads(settings)
        other = {"the model": release, **asked}
    except (OSError, ValueError, TypeError):
        raise InputError(_damaged(kept)) from None
    now = {"the model": own_release, **own}
    found = [
        f"{name.replace('_', '-')} {other.get(name)}"
        if isinstance(other.get(name), int | float | str)
        else f"other {name}"
        for name in now
        if other.get(name) != now[name]
    ]
    return ", ".join(found)


def _batches(
    release: Path, asked: Asked, parts: Path, crew: Crew, missing: list[int]
) -> Iterator[tuple[Batch, list[Document]]]:
    """Yield batches with their documents until none is missing: finished ones from their files, then new ones.

    They are planned in rounds, each from what the rounds before it have left, so that the plan depends on nothing else.

    Args:
        missing: documents of each prompt that are still wanted; whoever takes the batches counts them down.
    """
    first = drawn = 0
    with ExitStack() as stack:
        workers = None
        while any(missing):
            kept = asked.documents - sum(missing)
            rate = max(kept / drawn, 1 / _MOST) if drawn else 1.0
            plan = planned([ceil(count / rate) for count in missing], first, asked.batch)
            first, drawn = first + len(plan), drawn + sum(batch.size for batch in plan)
            finished = list(takewhile(lambda batch: _file(parts, batch).exists(), plan))
            for batch in finished:
                yield batch, _finished(_file(parts, batch))
            rest = plan[len(finished) :]
            if rest and workers is None:
                job = Sampling(str(release), asked)
                workers = stack.enter_context(crew.workers(job, "a process that samples"))
            if workers is not None:
                for batch, documents in zip(rest, workers.map(rest), strict=True):
                    write_text(_file(parts, batch), json.dumps(documents))
                    yield batch, documents


def _file(parts: Path, batch: Batch) -> Path:
    return parts / f"{batch.number:08d}.json"


def _finished(file: Path) -> list[Document]:
    try:
        found: list[Document] = json.loads(file.read_text("utf-8"))
    except ValueError:
        raise InputError(_damaged(file)) from None
    return found


def _write(path: Path, documents: list[Document]) -> None:
    with whole_file(path) as building:
        if path.suffix == ".jsonl":
            with open(building, "w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in documents)
        else:
            import pyarrow as arrow
            from pyarrow import parquet

            parquet.write_table(arrow.Table.from_pylist(documents), building)


def card(found: Corpus, asked: Asked, claim: Guarantee) -> str:
    """Write the card of a corpus: what it is, what protects it, and how it was drawn."""
    prompts = [prompt for prompt in asked.prompts if prompt]
    source, they, of = "the released model", "the model does", "the model"
    if asked.counted or asked.bounds:
        source, they, of = "the released model and the counts beside it", "these do", "both together"
    lines = [
        "# Text sampled from a model",
        "",
        f"A language model wrote these {found.documents:,} documents. What they say may be wrong.",
        "",
        f"The model was fine-tuned with confide. The documents were computed from {source} alone. So they "
        f"tell no more about anyone than {they}. What was claimed of {of} holds of them, for the same "
        "unit, at no further cost.",
        "",
    ]
    if asked.named:
        fields = ", ".join(asked.named[0])
        stated = (
            "The kinds are a list that somebody stated for the training. The shares were counted in the private text, "
            "with noise. The claim covers them."
            if asked.counted
            else "Kinds and shares are a list that somebody stated for the training. confide did not compute it from "
            "the text."
        )
        lines += [
            f"Each document is of one of {len(prompts):,} kinds ({fields}), which are drawn by shares. {stated}",
            "",
        ]
    elif prompts:
        lines += [
            f"Each document goes on from one of {len(prompts):,} prompts. The claim does not cover the prompts: were "
            "they taken from private text, they would tell what they say.",
            "",
        ]
    if asked.bounds:
        lines += [
            "How many tokens a document has at most was drawn for each. How long documents are was counted in the "
            "private text, with noise. The claim covers it. Where a document would have been longer, it is cut.",
            "",
        ]
    lines += [line for doubt in asked.doubts for line in (f"{doubt[0].upper()}{doubt[1:]}.", "")]
    spare = found.drawn - found.documents - sum(found.left_out.values())
    lines += [claim.model_card_section(), "## How it was drawn", "", "| what | value |", "|---|---|"]
    facts = {
        "samples that were drawn": f"{found.drawn:,}",
        **{f"left out: {why}": f"{number:,}" for why, number in sorted(found.left_out.items())},
        **({"not needed: enough of their kind were there": f"{spare:,}"} if spare else {}),
        "documents": f"{found.documents:,}",
        **{
            f"of these, ended by {_ENDS.get(how, how)}": f"{number:,}"
            for how, number in sorted(found.ended.items())
        },
        **({"turns at most": f"{asked.turns:,}"} if asked.turns else {}),
        "temperature": f"{asked.temperature:g}",
        "top-p": f"{asked.top_p:g}",
        "tokens at most" + (", of a turn" if asked.turns else ""): f"{asked.max_new_tokens:,}",
        "seed": str(asked.seed),
    }
    lines += [f"| {what} | {value} |" for what, value in facts.items()]
    lines += [
        "",
        "Samples are left out by rules that look at the samples alone. A sample is degenerate if it repeats itself: "
        f"{REPEATS:.0%} of its runs of four words, or more, occurred before in the same sample.",
    ]
    return "\n".join(lines) + "\n"


def _told(left_out: Counter[str]) -> str:
    return ", ".join(f"{number:,} {why}" for why, number in left_out.most_common())
