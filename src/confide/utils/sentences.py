"""Make sentences of the lines of a claim, which are clauses, and name numbers of things and kinds of values."""

from typing import Any


def bare(text: str) -> str:
    """Return a text without its full stop."""
    return text.strip().rstrip(".")


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def sentence(clause: str) -> str:
    """Make a sentence of a clause."""
    return f"{capital(bare(clause))}."


def sentences(clauses: str) -> list[str]:
    """Make a sentence of each clause of a line."""
    return [sentence(clause) for clause in clauses.split("; ")]


def many(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural ends with s: `1 unit`, `2,000 units`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def kind_of(value: Any) -> str:
    """Name the kind of a value as data formats do: "an object", "a list", "a number", "a text", "null"."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case bytes():
            return "bytes"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
    return f"a value of type {type(value).__name__}"
