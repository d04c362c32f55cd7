"""Make sentences of the lines of a claim, which are clauses."""


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
