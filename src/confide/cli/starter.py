"""Write a first config for a file or folder, from its first records. It holds names and counts only, no text."""

import hashlib
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from confide.cli.look import Candidate, Look, look, named
from confide.config.json_schema import FILE
from confide.data.chat import OTHER_NAMES, ROLES
from confide.data.documents import side_of

if TYPE_CHECKING:
    from confide.planning.what_fits import Fits, Way

BUNDLED, MAX_LENGTH, RANK = "bundled", 128, 16
_ROWS_PER_UNIT = {
    "uls": "1          # of each user in a step: fewer of each leave compute for more users",
    "owners": "8          # of each user in the whole run; no other rows are trained on",
}
_SHARES = (0.1, 0.2)  # shares of held-out units: the second is used if the first would hold out none


@dataclass(frozen=True)
class Draft:
    """A config as YAML, and what its reader must know: whom it protects, and what `prepare` will refuse."""

    config: str
    warnings: tuple[str, ...]


def write(source: str) -> str:
    """Return a commented config for `source`, as YAML.

    Raises:
        InputError: nothing can be read there, or no field holds text.
    """
    found = look(source)
    return draft(found, found.unit()).config


def draft(found: Look, unit: Candidate | None, model: str = BUNDLED, fits: "Fits | None" = None) -> Draft:
    """Draft a commented config for an inspected source, with a unit of one's choice.

    Args:
        fits: how the base of the model can be held; None for the bundled model, which is trained whole.

    Raises:
        InputError: the values that were given make no config.
    """
    given = found.given
    warnings = (*_warnings(found, unit), *([] if fits is None else _of_fits(model, fits)))
    train_units, share = _held_out(found, unit)
    batch = min(64, max(1, (unit.people if unit else found.documents) // 2), max(1, train_units))
    mechanism = "dp-sgd" if unit is None else "owners" if unit.several else "uls"
    fields = f"fields here: {named(found.fields)}"
    said = given.get("data.speakers")
    said = (
        {name: role for name, role in said.items() if isinstance(role, str)} if isinstance(said, dict) else {}
    )
    roles = _chat_roles(found.roles, said)
    if given.get("data.text"):
        roles = {}
    is_chat = bool(roles) or given.get("data.messages") is not None
    unknown = [name for name, role in roles.items() if role not in ROLES]
    if unknown:
        warnings = (*warnings, _unknown_roles(unknown))
    above = [f"# WARNING: {line}" for warning in warnings for line in _wrapped(warning)]
    lines = [
        f"# yaml-language-server: $schema={FILE}",
        "# Written by `confide init`; look at what `data` says of text and unit first. All keys: docs/config.md",
        *above,
        *_of_model(model, fits),
        *(_TEMPLATE if is_chat and not (fits and fits.has_chat_template) else []),
        *(_MARKS if is_chat and fits is None else []),
        "data:",
        f"  train: {_quoted(found.source)}",
        *_of_text(found, roles, fields),
        f"  unit: {_quoted(unit.name) if unit else 'null'}   # {_protected(unit)}",
        *(
            ["  # without_unit: drop       # what to do with documents that name nobody: refuse, drop or own"]
            if unit and unit.without and "data.without_unit" not in given
            else []
        ),
        _of_eval(share, given.get("data.eval_within") is not None),
        f"  strip_quotes: {'true' if found.is_mail else 'false'}        # what is quoted is somebody else's text",
        f"  max_length: {MAX_LENGTH}",
        "privacy:",
        f"  mechanism: {mechanism}            # `confide plan` shows others beside it",
        "  epsilon: 8",
        *([f"  rows_per_unit: {_ROWS_PER_UNIT[mechanism]}"] if unit else []),
        *(
            ["  # selection: random        # whole rows in place of random chunks: docs/concepts.md"]
            if mechanism == "uls"
            else []
        ),
        "train:",
        "  steps: 200",
        "  learning_rate: 0.002      # of the bundled model; `confide plan --suggest` names one for batch and steps"
        if fits is None
        else "  learning_rate: 0.001      # of LoRA; try half and twice as much",
        "  schedule: linear",
        f"  batch: {batch:<18} # {'rows' if mechanism != 'uls' else 'units'} a step: more means less noise and more "
        "compute",
        *(["# canaries: {count: 100}    # uncomment before training to audit the claim"] if unit else []),
        f"run: {_quoted(f'runs/{run_name(found.source)}')}",
    ]
    return Draft(given.put_into("\n".join(lines) + "\n"), warnings)


def _of_eval(share: float | None, holds_rows: bool) -> str:
    """Return the line that says which units are held out whole."""
    if holds_rows:
        return "  eval: null                # rows of each unit are held out in place of whole units"
    why = "this share of the units is held out whole" if share else "too few units to hold any out"
    return f"  eval: {share or 'null'}                 # {why}"


def _of_model(model: str, fits: "Fits | None") -> list[str]:
    """Return the lines that say what is trained."""
    if fits is None:
        return ["model: bundled              # or a folder or hub name of any causal LM"]
    base = fits.chosen.base
    coarse = f"{{precision: {base.precision}, quantise: {base.quantise}}}"
    needed = ", ".join(f"{_named(way)} {_size(way.bytes)}" for way in fits.ways)
    room = "" if fits.free is None else f"; {_size(fits.free)} are free for it here"
    return [
        f"model: {_quoted(model)}",
        f"adapter: {{kind: lora, rank: {RANK}}}   # kind: full trains all weights, and takes several times the memory",
        *_comment(f"Memory of a LoRA step, by how the base is held (estimate): {needed}{room}."),
        f"base: {coarse}" + ("   # pip install 'confide[quantise]'" if base.quantise != "none" else ""),
    ]


def _of_fits(model: str, fits: "Fits") -> list[str]:
    """Warn of a model that `train` will refuse, or that memory does not hold."""
    told = (
        [] if fits.tokenizer_fault is None else [f"`confide train` will refuse this: {fits.tokenizer_fault}"]
    )
    if not fits.fits and fits.free is not None:
        told.append(
            f"model: a LoRA step of {model} needs about {_size(fits.chosen.bytes)} even in 4 bits, and "
            f"{_size(fits.free)} are free for it here (estimates): choose a smaller model or a larger machine"
        )
    return told


def _named(way: "Way") -> str:
    return (
        way.base.precision if way.base.quantise == "none" else f"{way.base.quantise} and {way.base.precision}"
    )


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in _wrapped(text)]


_TEMPLATE = [
    "chat_template: chatml        # the bundled model has none of its own: remove this for a model that has"
]


_MARKS = ['special_tokens: ["<|im_start|>", "<|im_end|>"]   # its marks, a token each: remove them together']
_SIDES = {
    "customer": "user",
    "client": "user",
    "caller": "user",
    "agent": "assistant",
    "support": "assistant",
}


def _chat_roles(speakers: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the role of each speaker, if a user and an assistant are among them; a name that is no role stays."""
    known = {**_SIDES, **OTHER_NAMES}
    roles = {name: given.get(name) or known.get(name.lower(), name.lower()) for name in speakers}
    if set(roles.values()) == {"user", "system"}:  # of the two, the system is the one that answers
        roles = {name: "assistant" if role == "system" else role for name, role in roles.items()}
    return roles if {"user", "assistant"} <= set(roles.values()) else {}


def _unknown_roles(names: Sequence[str]) -> str:
    return (
        f"data.messages: {', '.join(map(repr, names))} {'are' if len(names) > 1 else 'is'} none of the roles "
        f"{', '.join(ROLES)}: say in data.speakers which role each has, as in speakers: "
        f"{{{_quoted(names[0])}: assistant}}; `confide prepare` refuses it until then"
    )


def _of_text(found: Look, roles: Mapping[str, str], fields: str) -> list[str]:
    """Return the lines that say which text is read, and which of it is learnt."""
    if roles:
        own = {
            name: role
            for name, role in roles.items()
            if OTHER_NAMES.get(name.lower(), name.lower()) != role and role in ROLES
        }
        listed = ", ".join(f"{_quoted(name)}: {role}" for name, role in own.items())
        return [
            f"  messages: {_quoted(found.text)}   # what the assistant says is learnt, see train.loss_on; {fields}",
            *([f"  speakers: {{{listed}}}   # the role of each speaker"] if own else []),
        ]
    if found.chosen == "given" and found.given.get("data.text") is None:
        return []  # other keys say it, and are put in with the rest
    if found.chosen == "pair":
        prompt, completion = found.pair
        return [
            f"  prompt: {_quoted(prompt)}   # read, and not learnt",
            f"  completion: {_quoted(completion)}   # learnt; {fields}",
        ]
    return [
        f"  text: {_quoted(found.text)}   # {_HOW.get(found.chosen, '')}{fields}",
        *([f"  speakers: {_speakers(found)}   # the prompt of each speaker"] if found.roles else []),
    ]


_HOW = {
    "longest": "the longest, as no name says which field is the text; ",
}


def _protected(unit: Candidate | None) -> str:
    if unit is None:
        return "ROW-LEVEL PROTECTION ONLY: each document by itself, and nobody who has several"
    return "whom to protect: all documents of one value together"


def _quoted(text: str) -> str:
    """Quote text so that YAML reads it back, whatever is in it."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30).strip()


def _speakers(found: Look) -> str:
    return "{" + ", ".join(f"{_quoted(name)}: {_quoted(f'{name}:')}" for name in found.roles) + "}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 105, break_long_words=False, break_on_hyphens=False)


def share_without(found: Look, unit: Candidate) -> str:
    """Format the share of documents that name nobody in a field: "1.7%", "none"."""
    share = unit.without / max(found.documents, 1)
    return "none" if not unit.without else "under 0.1%" if share < 0.001 else f"{share:.1%}"


def _warnings(found: Look, unit: Candidate | None) -> list[str]:
    """Warn where the config protects less than a reader may think, and what `prepare` or `plan` will refuse."""
    looked = f"{'all' if found.whole else 'the first'} {found.documents:,} documents"
    told = []
    if unit is None:
        told.append(_row_level(found, looked))
    elif unit.people == 1:
        told.append(
            f"data.unit: {unit.name!r} holds one and the same in {looked}; one person alone cannot be hidden among "
            "others, so `confide plan` will find no useful setting"
        )
    elif unit.people and unit.people == found.documents - unit.without:
        told.append(
            f"data.unit: {unit.name!r} differs in every one of {looked}, so each document is protected by itself; set "
            "data.unit to the field that a person's documents have in common, if there is one"
        )
    elif not unit.sure:
        told.append(
            f"data.unit: {unit.name!r} has {unit.people:,} different values in {looked}, and its name does not say "
            "that these are people: what is protected is all documents of one value together"
        )
    if unit is not None and unit.alike:
        told.append(
            f"data.unit: {unit.alike:,} of the {unit.people:,} values of {unit.name!r} in {looked} differ from another "
            "only in capitals or spaces; if these are one person, write them alike: each spelling is protected as a "
            "person of its own"
        )
    if unit is not None and unit.without and found.given.get("data.without_unit") in (None, "refuse"):
        told.append(
            f"data.unit: {share_without(found, unit)} of {looked} name nobody in {unit.name!r}, and `confide prepare` "
            "refuses them; give them a unit, or say with data.without_unit what to do with them (drop: leave them "
            "out; own: each by itself)"
        )
    if found.chosen == "pair":
        told.append(
            f"data.prompt, data.completion: no field holds all of the text, so {_quoted(found.pair[0])} is read and "
            f"{_quoted(found.pair[1])} is learnt; change them if fields are missing or in the wrong order"
        )
    elif found.chosen == "longest":
        told.append(
            f"data.text: no field is named like a text, so {found.text!r} is taken, the longest; name another or put "
            "several together in a template if that is not all of the text"
        )
    if found.fault is not None:
        told.append(f"`confide prepare` will refuse this: {found.fault}")
    elif found.whole and found.documents == 1:
        told.append(
            "one text alone cannot be hidden among others, so `confide plan` will find no useful setting"
        )
    return told


def _row_level(found: Look, looked: str) -> str:
    empty = [each.name for each in found.people if not each.repeats and not each.people]
    others = [f"{each.name!r} ({each.people:,} values)" for each in found.people if each.people > 1][:8]
    if "data.unit" in found.given:
        why = "data.unit is null, as you said"
    elif empty:
        names = "name" if len(empty) > 1 else "names"
        why = f"{', '.join(map(repr, empty))} {names} nobody in {looked}, so data.unit is null"
    else:
        why = f"no field of {looked} was seen to name people, so data.unit is null"
    return (
        f"{why}: ROW-LEVEL PROTECTION ONLY. Each document is protected by itself, and a person "
        "with several documents is not. Set data.unit to the field that names whom to protect"
        + (
            f"; fields whose values repeat: {', '.join(others)}"
            if others
            else f" (fields: {named(found.fields)})"
        )
    )


def _held_out(found: Look, unit: Candidate | None) -> tuple[int, float | None]:
    """Return the number of units left to train on, by the inspected records, and the share that is held out."""
    owners = (
        unit.owners
        if unit is not None
        else frozenset((f"row:{number}",) for number in range(found.documents))
    )
    for share in _SHARES:
        sides = Counter(side_of(each, share) for each in owners)
        if sides["eval"] and sides["train"]:
            people = {p for each in owners if side_of(each, share) == "train" for p in each}
            return len(people), share
    return len({person for each in owners for person in each}), None


def run_name(source: str) -> str:
    """Return a name for the run folder: that of the source, distinct from its neighbours' and earlier runs'."""
    path = Path(source)
    name = _safe(path.name.partition(".")[0])
    try:
        others = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except OSError:
        others = []
    if name in {_safe(other.partition(".")[0]) for other in others}:
        name = _safe(path.name)
        if name in {_safe(other) for other in others}:
            name += "-" + hashlib.sha256(path.name.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    number, free = 1, name
    while (Path("runs") / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-") or "run"
