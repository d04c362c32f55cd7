"""Values of the command line for the config that `confide init` writes. They take the place of what it would guess."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confide.config import yaml_text
from confide.config.data_section import Data
from confide.config.loading import check, with_overrides
from confide.config.rewriting import inline, with_value
from confide.utils.errors import InputError

_ELSEWHERE = {"data.train": "DATA, the first argument", "model": "--model"}
_HOW_READ = ("format", "split", "delimiter", "encoding", "max_document_bytes")
TEXTS = ("text", "messages", "prompt", "completion")
"""Keys of `data` that say which text is read."""


@dataclass(frozen=True)
class Given:
    """Values of keys, which need no guess.

    Attributes:
        values: by the whole name of a key, as `data.unit`.
        data: how the source is read, and which text of it.
    """

    values: dict[str, Any]
    data: Data

    @classmethod
    def of(cls, source: str, overrides: Sequence[str] = ()) -> "Given":
        """Read overrides, `key=value`.

        Raises:
            InputError: one is not of this form, is given twice, or has an argument of its own; or the source cannot
                be read so.
        """
        raw = with_overrides({}, overrides)
        values = {}
        for key in (override.partition("=")[0].strip() for override in overrides):
            if key in _ELSEWHERE:
                raise InputError(f"{key}: give it as {_ELSEWHERE[key]}")
            value: Any = raw
            for name in key.split("."):
                value = value[name]
            values[key] = value
        known = {name: values[f"data.{name}"] for name in (*_HOW_READ, *TEXTS) if f"data.{name}" in values}
        # The mechanism asks for nothing else, so that each fault that is found is one of these keys.
        about = {"data": {"train": source, **known}, "privacy": {"mechanism": "dp-sgd", "epsilon": 1}}
        return cls(values, check(about, "these values").data)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def has_text(self) -> bool:
        """True if it is said which text is read."""
        return any(f"data.{name}" in self.values for name in TEXTS)

    def put_into(self, config: str) -> str:
        """Return a drafted config with these values. A value that is changed loses the comment on its line.

        Raises:
            InputError: lists every fault of the config with these values.
        """
        if not self.values:
            return config
        drafted = yaml_text.read(config)
        for key, value in self.values.items():
            *sections, name = key.split(".")
            own = drafted
            for section in sections:
                own = own.get(section) if isinstance(own, dict) else None
            before = own.get(name) if isinstance(own, dict) else None
            if isinstance(before, dict):
                raise InputError(f"{key}: is a section; give its keys, as {key}.{next(iter(before))}=...")
            if value is not None and before == value:
                continue  # the draft follows it, and so does its comment
            config = with_value(config, (*sections, name), value)
            line = f"{'  ' * len(sections)}{name}: {inline(value)}"
            config = re.sub(rf"(?m)^({re.escape(line)}) +#.*$", r"\1", config, count=1)
        check(yaml_text.read(config), "the config with these values")
        return config
