"""A safe and forgiving reader of YAML: no text, however odd, does more than give a value or one error sentence.

1e-5 is a number and a date is text; a key is text and stands once. Only those tags are accepted that some key of a
config can use. A document is bounded in its length, depth and size with all aliases written out.
"""

import math
import re
from typing import Any

import yaml

from confide.utils.errors import InputError

LONGEST = 1 << 20
"""The largest number of characters of a document."""

_DEEPEST = 40  # depth of nested lists and mappings
_LARGEST = 200_000  # values, counting all that each alias stands for
_WHOLE = 2**63  # whole numbers are below it, as in every library that takes them
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map", "merge"))


_HINTS = (
    (r"'\\t'", False, "indent with spaces, not tabs"),
    (r"could not find expected ':'", True, "a key is followed by a colon and a space"),
    (r"quoted scalar.*end of stream", True, "the quote that opens in this line is not closed"),
    (
        r"found unknown escape character",
        False,
        "in double quotes a backslash has a meaning: take single quotes",
    ),
    (
        r"but found '<block mapping start>'",
        False,
        "this line begins further to the right than those of its section",
    ),
    (r"but found '(\{|<scalar>|\[)'", False, "put text with braces, brackets or quotes in quotes as a whole"),
)
"""What the parser says, whether the fault lies where it began to read and not where it gave up, and what to do."""


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # of finished nodes, by identity

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias = self.check_event(yaml.AliasEvent)
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call, unused-ignore]
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InputError(f"line {line}: more than {_DEEPEST} lists or sections within one another")
        node = super().compose_node(parent, index)
        assert node is not None
        self._depth -= 1
        if alias:
            if id(node) not in self._sizes:
                raise InputError(f"line {line}: an alias stands within what it names")
        else:
            self._sizes[id(node)] = self._size(node)
        if self._sizes[id(node)] > _LARGEST:
            raise InputError(f"line {line}: more than {_LARGEST:,} values, with all aliases written out")
        return node

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.SequenceNode):
            return 1 + sum(self._sizes[id(item)] for item in node.value)
        if isinstance(node, yaml.MappingNode):
            return 1 + sum(self._sizes[id(key)] + self._sizes[id(value)] for key, value in node.value)
        return 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        line = node.start_mark.line + 1
        if node.tag not in _TAGS:
            tag = "!!" + node.tag.removeprefix(_TAG) if node.tag.startswith(_TAG) else node.tag
            raise InputError(
                f"line {line}: {_short(tag, 40)} is not a tag that a config can use: leave it out"
            )
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError):
            if isinstance(node, yaml.ScalarNode):
                raise InputError(f"line {line}: {_short(node.value)} is not a {_kind(node)}") from None
            raise
        if type(value) is int and not -_WHOLE <= value < _WHOLE:
            raise InputError(f"line {line}: {_short(node.value)} has more digits than any key takes")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):  # a scalar or a list with the tag !!map
            raise InputError(f"line {node.start_mark.line + 1}: has the tag '!!map' and is not a section")
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"line {line}: a key is a name, and neither a list nor a section")
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise InputError(f"line {line}: key {_short(key_node.value)} is not text: put it in quotes")
            if key in seen:
                raise InputError(f"key {_short(key)} stands twice, again at line {line}")
            seen.add(key)
        found = super().construct_mapping(node, deep)
        if not all(isinstance(key, str) for key in found):  # a key of a merged mapping may be no text
            raise InputError(f"line {node.start_mark.line + 1}: a key that is merged is not text")
        return found


# YAML 1.1 takes 1e-5 for a string.
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
# No key takes a date: a run named after one is text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag in _TAGS]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read(text: str) -> Any:
    """Read the value that a YAML document holds; None for an empty one.

    Raises:
        InputError: the text is not such a document; the sentence begins with the line, if it is known.
    """
    if len(text) > LONGEST:
        raise InputError(f"{len(text):,} characters are too many: at most {LONGEST:,} are read")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"line {line}: not valid YAML: the character {_code(error.character)}") from None
    except yaml.MarkedYAMLError as error:
        said = ", ".join(filter(None, [error.context, error.problem]))
        begins, hint = next((found[1:] for found in _HINTS if re.search(found[0], said)), (False, ""))
        mark = error.context_mark if begins else error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{place}not valid YAML: {said}{hint and f'; {hint}'}") from None


def name(key: str) -> str:
    """Write a name for a message: unchanged, or in quotes if it might be misread."""
    return key if key.isprintable() and len(key) <= 80 else shown(key)


def shown(value: Any, longest: int = 60) -> str:
    """Write a value of a config as YAML on one line: true, null, .inf; text in quotes, cut if it is long."""
    if isinstance(value, str):
        return _short(value, longest)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else "-.inf" if value < 0 else ".inf"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(shown(item) for item in value[:20])}{', ...' if len(value) > 20 else ''}]"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{key}: {shown(item)}' for key, item in list(value.items())[:20])}}}"
    else:
        text = str(value)
    return text if len(text) <= longest else text[:longest] + "..."


def _short(text: str, longest: int = 60) -> str:
    return repr(text) if len(text) <= longest else repr(text[:longest]) + "..."


def _kind(node: yaml.Node) -> str:
    kind = node.tag.removeprefix(_TAG)
    return {"int": "whole number", "float": "number", "bool": "true or false", "seq": "list"}.get(kind, kind)


def _code(character: Any) -> str:
    return f"U+{ord(character) if isinstance(character, str) else int(character):04X}"
