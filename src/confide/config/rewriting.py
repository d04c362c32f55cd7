"""A config file with other values, but otherwise unchanged: comments, order and all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from confide.config.loading import check, load, parsed
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config


def rewritten(path: Path, config: "Config") -> str:
    """Return the text of the config file at `path`, with the values of `config` where these differ.

    If that cannot be done exactly (a file with anchors, or in an unusual notation) the text is all of `config`.
    """
    file = path / "config.yaml" if path.is_dir() else path
    changes = dict(_changes(load(file).model_dump(mode="json"), config.model_dump(mode="json")))
    text = file.read_text("utf-8")
    try:
        for key, value in changes.items():
            text = with_value(text, key, value)
        if check(parsed(text, str(file)), str(file)) == config:
            return text
    except (yaml.YAMLError, InputError, UnknownNotation):
        pass
    return config.to_yaml()


class UnknownNotation(Exception):
    """A notation in which no value can be replaced."""


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield keys, with the sections that they are in, and their values where these differ."""
    for name, value in after.items():
        own = before.get(name)
        if value == own:
            continue
        if isinstance(value, Mapping) and isinstance(own, Mapping):
            yield from _changes(own, value, (*above, name))
        else:
            yield (*above, name), value


def with_value(text: str, key: tuple[str, ...], value: Any) -> str:
    """Return the text of a config with one value changed, or added to the innermost of its sections that exists.

    Raises:
        UnknownNotation: it stands where no value can be replaced, as in a block of lines.
    """
    node = yaml.compose(text, yaml.SafeLoader)
    for depth, name in enumerate(key):
        if not isinstance(node, yaml.MappingNode):
            raise UnknownNotation
        found = [own for label, own in node.value if label.value == name]
        if not found:
            return _added(text, node, key[depth], _nested(key[depth + 1 :], value))
        node = found[0]
    if node is None or (isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")):
        raise UnknownNotation
    start, end = node.start_mark.index, node.end_mark.index
    space = " " if start == end else ""  # nothing stood behind the colon
    return text[:start] + space + inline(value) + text[end:]


def _nested(names: tuple[str, ...], value: Any) -> Any:
    for name in reversed(names):
        value = {name: value}
    return value


def _added(text: str, section: yaml.MappingNode, name: str, value: Any) -> str:
    """Return the text with a new key at the end of its section."""
    if not section.value:
        start, end = section.start_mark.index, section.end_mark.index
        return text[:start] + inline({name: value}) + text[end:]
    first, last = section.value[0][0], section.value[-1][1]
    if section.flow_style:
        place = _end(last)
        return f"{text[:place]}, {inline(name)}: {inline(value)}{text[place:]}"
    place = text.find("\n", _end(last))
    line = f"{' ' * first.start_mark.column}{inline(name)}: {inline(value)}"
    return f"{text}\n{line}\n" if place < 0 else f"{text[: place + 1]}{line}\n{text[place + 1 :]}"


def _end(node: yaml.Node) -> int:
    """Return where a value ends; the end mark of a block section stands before the text that follows it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def inline(value: Any) -> str:
    """Write a value as YAML within a line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=1 << 30)
    return text.removesuffix("\n").removesuffix("\n...")
