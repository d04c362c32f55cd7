"""Values of the command line for the config that `confide init` writes. They take the place of what it would guess."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confide.config import yaml_text
from confide.config.data_section import Data
from confide.config.loading import check, parsed
from confide.config.rewriting import inline, with_value
from confide.data.readers.fields import nearest
from confide.utils.errors import InputError

_TEXTS = ("data.text", "data.messages", "data.prompt", "data.completion")
_WORDS = (*_TEXTS, "data.unit", "data.delimiter", "data.encoding")
HOW_READ = ("data.format", "data.split", "data.delimiter", "data.encoding", "data.max_document_bytes")
"""Keys that say how a source is read."""

_KEYS = (*(f"data.{name}" for name in Data.model_fields if name != "train"), "privacy.epsilon", "task")
_ABSENT = object()


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
        """Read values, `key=value`.

        Raises:
            InputError: one is not of this form, is given twice, or is of no key that says what is read or protected;
                or the source cannot be read so.
        """
        values: dict[str, Any] = {}
        for override in overrides:
            key, equals, text = override.partition("=")
            if not equals:
                raise InputError(
                    f"{yaml_text.shown(override)}: DATA is one file or folder; behind it stands key=value, as "
                    "data.unit=customer"
                )
            if key not in _KEYS:
                meant = nearest(key, _KEYS) if key.startswith("data.") else ""
                raise InputError(
                    f"{yaml_text.name(key)}: `confide init` takes keys of data, privacy.epsilon and task{meant}; write "
                    "others into the config that it makes"
                )
            if key in values:
                raise InputError(f"{key} is given twice on the command line: leave one out")
            if not text:
                raise InputError(f"{key}: no value stands behind the =; write null if you mean none")
            values[key] = text if _is_plain(key, text) else parsed(text, override)
        looked_at = {key.removeprefix("data."): values[key] for key in (*_TEXTS, *HOW_READ) if key in values}
        # The mechanism asks for nothing else, so that each fault that is found is one of these keys.
        about = {"data": {"train": source, **looked_at}, "privacy": {"mechanism": "dp-sgd", "epsilon": 1}}
        return cls(values, check(about, "these values").data)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        """Return the value of a key; None if it has none."""
        return self.values.get(key)

    @property
    def has_text(self) -> bool:
        """True if it is said which text is read."""
        return any(self.get(key) is not None for key in _TEXTS)

    def put_into(self, config: str) -> str:
        """Return a drafted config with these values. A value that is changed loses the comment on its line.

        Raises:
            InputError: lists every fault of the config with these values.
        """
        drafted = yaml_text.read(config)
        for key, value in self.values.items():
            *sections, name = key.split(".")
            own = drafted
            for section in sections:
                own = own[section]
            if own.get(name, _ABSENT) == value:
                continue  # the draft follows it, and so does its comment
            config = with_value(config, (*sections, name), value)
            line = f"{'  ' * len(sections)}{name}: {inline(value)}"
            config = re.sub(rf"(?m)^({re.escape(line)}) +#.*$", r"\1", config, count=1)
        if self.values:
            check(yaml_text.read(config), "the config with these values")
        return config


def _is_plain(key: str, text: str) -> bool:
    """Tell whether a value is text as it stands: a template may begin with a brace, and a field may be called 2020."""
    return key in _WORDS and text != "null" and (len(text) == 1 or text[0] not in "\"'[")
