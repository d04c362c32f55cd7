"""Configs as a slip of the hand, a damaged disk or a hostile hand leaves them, from a seed."""

# ruff: noqa: E501 - one case a line

import random
import types
import typing
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from confide.config import registry
from confide.config.schema import Config

TREES: tuple[dict[str, Any], ...] = (
    {"data": {"train": "text.jsonl", "unit": "user"}, "privacy": {"epsilon": 8}},
    {
        "model": "bundled",
        "task": "classification",
        "data": {"train": "text.jsonl", "unit": "user", "label": "kind", "speakers": {"a": "A:", "b": "B:"}},
        "privacy": {"mechanism": "els", "noise_multiplier": 1.0, "delta": 1e-5, "rows_per_unit": 2},
        "adapter": {"kind": "lora", "rank": 4, "targets": ["q", "v"]},
        "train": {"steps": 20, "batch": 8.0, "betas": [0.9, 0.99], "average": {"kind": "ema", "share": 0.5}},
    },
    {
        "data": {"train": "text.jsonl", "unit": None, "eval": None},
        "privacy": {"mechanism": "secret", "delta": 1e-6},
        "secrets": {
            "patterns": {"account": "[0-9]{8}", "mail": r"\S+@\S+"},
            "prior": [0.1, 0.5],
            "posterior": [0.3, 0.9],
            "program": {"c": 0.5, "solver": "highs"},
        },
        "canaries": {"count": 10, "family": "digits", "insertions": [1, 2]},
    },
)

_PRIVACY: dict[str, dict[str, Any]] = {
    "uls": {"privacy": {"epsilon": 8, "rows_per_unit": 2}},
    "els": {"privacy": {"epsilon": 8}},
    "group": {"privacy": {"epsilon": 8}},
    "dp-sgd": {"privacy": {"epsilon": 8}},
    "owners": {"privacy": {"epsilon": 8}},
    "secret": {"secrets": {"patterns": {"place": "printer|floor|store"}, "prior": [0.1], "posterior": [0.5]}},
    "adaptive": {"privacy": {"epsilon": 8}},
    "concentration": {"privacy": {"epsilon": 8, "tau": 0.5}},
    "selective": {"privacy": {"epsilon": 8}, "detector": {"expressions": {"place": "printer|floor"}}},
    "crt": {"privacy": {"epsilon": 8}, "detector": {"expressions": {"place": "printer|floor"}}},
}
"""For each mechanism what it needs, of texts as `tests.command.World` writes them."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.0, 0.5, 1e-320, 1e308,
    float("inf"), float("-inf"), float("nan"), "", " ", "x", "x" * 5000, "\0", "a\0b", "../../etc", "/dev/zero",
    "\x1b]0;owned\x07", "\x1b[2J", "\r", "\u202e", "\u2028", "\x85", "{text", "{}", "{0.__class__}", "(a+)+$", "(", "%s%n",
    [], [[]], [1], ["x"], [None], [True, False], [1, 2], [float("nan"), 1], {}, {"a": 1}, {"": ""}, {"kind": "lora"}, [{}],
)  # fmt: skip

FRAGMENTS = (
    "? [a]: b", "{[1]: 2}", "{{a: 1}: 2}", "? {a: 1}\n: 2", "!!int abc", "!!float x", "!!bool maybe", "!!null x",
    "!!timestamp 2001-99-99", "2001-99-99", "2001-12-31", "2001-12-31 25:61:00", "!!binary '@@@'", "!!binary AAAA",
    "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]", "!!python/object/apply:os.system [id]", "!!python/name:os.system",
    "!mine x", "!<tag:x> y", "!!str [a]", "!!map [a]", "!!seq {a: b}", "!!int {a: b}", "!!int ''", "!!float ''",
    "9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0b" + "1" * 5000, "0" + "7" * 5000, "9:" * 3000 + "9", "1e999999",
    "9" * 5000 + ".5", ".inf", "-.inf", ".nan", "9223372036854775808", "1_000", "0o17", "1:30", "[" * 900 + "]" * 900,
    "{a: " * 900 + "1" + "}" * 900, "- " * 900, "&a [*a]", "&a {b: *a}", "&a {<<: *a}", "*nobody", "<<: 3", "<<: [1]",
    "<<: {1: 2}", "<<: {train: y}", "=", "= : 1", "~", "? ", ": ", "on: 1", "1: 2", "null: 3", "1.5: 3", "2001-01-01: 3",
    '"\\0"', '"\\ud800"', '"\\U0010ffff"', '"\\x1b[2J"', '"\\u202e"', "'", '"', "|", ">", "|9", "%YAML 9.9", "---", "...",
    "--- a\n--- b", "\t", "a:\tb", "@x", "`x", "#", "&", "*", "!", "\x00", "\x07", "\x1b", "\ufeff", "\ud7ff", "\u2028", "\x85",
    "a: &l [x, x, x, x, x, x, x, x]\nb: &m [*l, *l, *l, *l, *l, *l, *l, *l]\nc: &n [*m, *m, *m, *m, *m, *m, *m, *m]\n"
    "d: &o [*n, *n, *n, *n, *n, *n, *n, *n]\ne: &p [*o, *o, *o, *o, *o, *o, *o, *o]\nf: &q [*p, *p, *p, *p, *p, *p, *p]\n"
    "g: [*q, *q, *q, *q, *q, *q, *q, *q]",
    "k" * 5000 + ": 1", "\n".join(f"key{n}: {n}" for n in range(300)), "a." * 500 + "b: 1",
)  # fmt: skip


def _sections(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _sections(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


_KEYS = dict(_sections()) | {"task": typing.Literal[*registry.TASKS]}


def _likely(kind: Any, generator: random.Random) -> Any:
    """A value of the right type, often at the edge of what it takes."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return generator.choice(parts)
    if origin in (typing.Union, types.UnionType):
        return _likely(generator.choice(parts), generator)
    if origin is typing.Annotated:
        return _likely(parts[0], generator)
    if origin in (list, tuple):
        return [_likely(parts[0], generator) for _ in range(generator.randint(0, 3))]
    if origin is dict:
        return {generator.choice("ab"): generator.choice(("x", "a+", ""))}
    simple: dict[Any, tuple[Any, ...]] = {
        int: (0, 1, 2, 7, 100, 10**4, 10**9, 2**31, 2**53, 2**63 - 1, -1),
        float: (0.0, 1e-320, 1e-12, 0.01, 0.5, 0.999, 1.0, 3, 64.0, 1e6, 1e15, 1e300, -1.0),
        bool: (True, False),
        str: ("user", "text", "kind", "text.jsonl", "nowhere", "random", "", "bundled"),
    }
    return generator.choice(simple.get(kind, (None,)))


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    place = tree
    for section in sections:
        found = place.get(section)
        if not isinstance(found, dict):
            found = place[section] = {}
        place = found
    place[last] = value


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _typed(generator: random.Random) -> str:
    """Values of the right type at odd places: much of it loads, and must then be planned or refused."""
    tree = _copy(generator.choice(TREES))
    for _ in range(generator.randint(1, 3)):
        key = generator.choice(list(_KEYS))
        _put(tree, key, _likely(_KEYS[key], generator))
    return yaml.safe_dump(tree, allow_unicode=generator.random() < 0.5)


def _wrong(generator: random.Random) -> str:
    tree = _copy(generator.choice(TREES))
    for _ in range(generator.randint(1, 4)):
        key = generator.choice(
            [*_KEYS, "data", "privacy", "train.average", "nothing", "data.nothing", "secrets.program"]
        )
        _put(tree, key, generator.choice(VALUES))
    return yaml.safe_dump(tree, allow_unicode=generator.random() < 0.5)


def _fragment(generator: random.Random) -> str:
    """A line that holds a hostile fragment, at some depth and after some key."""
    lines = yaml.safe_dump(generator.choice(TREES)).splitlines()
    at = generator.randrange(len(lines) + 1)
    fragment = generator.choice(FRAGMENTS)
    if generator.random() < 0.6:  # as a value of what stands there
        at = min(at, len(lines) - 1)
        lines[at] = lines[at].partition(":")[0] + ": " + fragment
    else:
        lines.insert(at, " " * generator.choice((0, 0, 2, 4)) + fragment)
    return "\n".join(lines) + "\n"


def _damaged(generator: random.Random) -> bytes:
    """Bytes flipped, lost, doubled or moved; a file cut short."""
    data = bytearray(yaml.safe_dump(generator.choice(TREES)).encode())
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(data) or 1)
        what = generator.random()
        if what < 0.3 and data:
            data[at] = generator.randrange(256)
        elif what < 0.5:
            del data[at : at + generator.randint(1, 20)]
        elif what < 0.7:
            data[at:at] = data[generator.randrange(len(data) or 1) :][: generator.randint(1, 40)]
        elif what < 0.9:
            data[at:at] = generator.choice(
                ("\n", " ", ":", "- ", "{", "[", "'", '"', "#", "&a ", "*a", "!!", "\t")
            ).encode()
        else:
            del data[at:]
    return bytes(data)


def configs(seed: int, count: int) -> Iterator[bytes]:
    """So many mutated configs, the same for the same seed."""
    generator = random.Random(seed)
    kinds = (_typed, _wrong, _fragment, _damaged)
    for number in range(count):
        made = kinds[number % len(kinds)](generator)
        yield made if isinstance(made, bytes) else made.encode("utf-8", "surrogatepass")


def planned(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Configs of every mechanism with one number or choice at the edge of what its type takes: most load."""
    generator = random.Random(seed)
    for number in range(count):
        mechanism = list(_PRIVACY)[number % len(_PRIVACY)]
        tree = _copy(_PRIVACY[mechanism])
        tree.setdefault("privacy", {}).update(mechanism=mechanism)
        tree["data"] = {"train": "text.jsonl", "unit": "user", "eval": 0.3, "max_length": 16}
        tree["train"] = {"steps": 10} if mechanism == "concentration" else {"steps": 10, "batch": 4.0}
        keys = [
            key
            for key in _KEYS
            if key.partition(".")[0] in ("train", "privacy", "adapter", "canaries", *tree)
        ]
        key = generator.choice(keys)
        if key.startswith("canaries."):
            tree["canaries"] = {"count": 4}
        if key not in ("data.train", "privacy.mechanism", "data.format"):
            _put(tree, key, _likely(_KEYS[key], generator))
        yield tree


def overrides(seed: int, count: int) -> Iterator[str]:
    """Arguments `key=value`, hostile on either side."""
    generator = random.Random(seed)
    for _ in range(count):
        key = generator.choice(
            [*_KEYS, "", ".", "a..b", "a." * 3000 + "b", "data", "\x1b[2J", "data.\ud800", "x" * 4000]
        )
        yield f"{key}{generator.choice(('=', '=', '=', '', '=='))}{generator.choice((*FRAGMENTS, *map(str, VALUES)))}"
