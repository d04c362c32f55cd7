"""A first config for a file or folder, from a look at its first records. Names and counts only, no text."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from confide.errors import InputError
from confide.text import Record, records
from confide.text.dialogues import is_dialogue, speaker_of

LOOK = 200
_ROLES = 6  # more speakers than these in the records looked at are people
_UNITS = (
    "from",
    "sender",
    "author",
    "user",
    "user_id",
    "customer",
    "speaker",
    "owner",
    "name",
    "id",
    "folder",
)
_TEXTS = ("body", "text", "content", "message", "post")


def write(source: str) -> str:
    """A commented config for `source`, as YAML.

    Raises:
        InputError: nothing can be read there.
    """
    found = list(islice(records(source), LOOK))
    if not found:
        raise InputError(f"{source}: holds no records")
    fields = list(dict.fromkeys(name for record in found for name in record.fields))
    text, unit = _text(found, fields), _unit(found, fields, _text(found, fields))
    template = f'"{{subject}}\\n{{{text}}}"' if "subject" in fields and text != "subject" else text
    chunks = "  rows_per_unit: 1          # chunks of each user drawn: fewer of each leave compute for more users\n"
    held_out = "0.1                 # this share of the units is held out whole"
    return f"""\
# Written by `confide init`; look at `data.text` and `data.unit` first. All keys: docs/config.md
model: bundled              # or a folder or hub name of any causal LM
data:
  train: {source}
  text: {template}          # fields here: {", ".join(fields)}
{_speakers(found, text)}  unit: {unit or "null"}                # whom to protect; null: each document is its own unit
  eval: {held_out}
  strip_quotes: {"true" if "subject" in fields else "false"}        # what is quoted is somebody else's text
  max_length: 128
privacy:
  mechanism: {"uls" if unit else "dp-sgd"}            # `confide plan` shows els and group beside it
  epsilon: 8
{chunks if unit else ""}train:
  steps: 200
  learning_rate: 0.002      # of the bundled model; 0.004 with thousands of users, less for larger models
  schedule: linear
  batch: {_batch(found, unit):<18} # {"units" if unit else "rows"} a step: more means less noise and more compute
run: runs/{_name(source)}
"""


def _text(found: Sequence[Record], fields: Sequence[str]) -> str:
    """The field that is most likely the text: by its name, else turns of a dialogue, else the longest."""
    for name in _TEXTS:
        if name in fields:
            return name
    for name in fields:
        if all(_is_told_by_turns(record.fields.get(name)) for record in found):
            return name

    def length(name: str) -> int:
        return sum(len(value) for r in found if isinstance(value := r.fields.get(name), str))

    return max(fields, key=length)


def _is_told_by_turns(value: Any) -> bool:
    return is_dialogue(value) and any(isinstance(turn, Mapping) for turn in value)


def _speakers(found: Sequence[Record], text: str) -> str:
    """For dialogues a line with the prompts of the speakers, if they are a few roles; names of people are none."""
    turns = [turn for r in found if is_dialogue(r.fields.get(text)) for turn in r.fields[text]]
    names = list(dict.fromkeys(speaker_of(turn) for turn in turns))
    if not turns or not all(names) or len(names) > _ROLES:
        return ""
    return f"  speakers: {json.dumps({name: f'{name}:' for name in names})}   # the prompt of each speaker\n"


def _unit(found: Sequence[Record], fields: Sequence[str], text: str) -> str | None:
    """The field that most likely names a person: a usual name, filled in every record looked at."""
    for name in _UNITS:
        values = [r.fields.get(name) for r in found]
        if name not in fields or name == text or any(value in (None, "", []) for value in values):
            continue
        if name == "id" and len({str(value) for value in values}) == len(values):
            continue  # a number of its own for each document names nobody
        return name
    return None


def _batch(found: Sequence[Record], unit: str | None) -> int:
    """64, or fewer where a look already shows that there are few units."""
    if unit is None or len(found) == LOOK:
        return 64
    return min(64, max(1, len({str(r.fields[unit]) for r in found}) // 2))


def _name(source: str) -> str:
    stem = source.rstrip("/").rpartition("/")[2].partition(".")[0]
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "run"
