"""Show what `confide init` finds, and ask: which fields may name people, and which of them is the unit."""

import sys
from pathlib import Path

from confide.cli.look import Candidate, Look, look, named, plain
from confide.cli.show import number, table
from confide.cli.starter import Draft, share_without
from confide.utils.errors import InputError

_MOST = 8


def people(found: Look) -> None:
    """Show the fields that may name people, numbered, with how many documents name nobody there."""
    listed = found.people[:_MOST]
    looked = f"{'all' if found.whole else 'the first'} {number(found.records)} records"
    print(f"looked at {looked} of {found.source!r}, {number(found.documents)} of them with text")
    if not listed:
        return
    rows = [
        [str(place), repr(each.name)[1:-1], number(each.people), share_without(found, each), _why(each)]
        for place, each in enumerate(listed, 1)
    ]
    table(["", "field", "different", "documents without", "because of"], rows)


def _why(each: Candidate) -> str:
    return "its values repeat" if each.repeats else "its name" if each.sure else "its name, perhaps"


def at_terminal() -> bool:
    """Return True if somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(found: Look) -> Candidate | None:
    """Ask for the unit at the terminal; the proposal if the answer is empty."""
    proposal = found.unit()
    default = proposal.name if proposal else "none"
    print("\nWho is protected? All documents of one value of the unit are protected together.")
    while True:
        try:
            answer = input(
                f"a number or a field's name, or none for each document by itself [{default}]: "
            ).strip()
        except EOFError:
            print()
            return proposal
        if not answer:
            return proposal
        if answer.lower() == "none" and answer not in found.fields:
            return None
        if answer.isdecimal() and 1 <= int(answer) <= len(found.people[:_MOST]):
            return found.people[int(answer) - 1]
        meant = [name for name in found.fields if answer == name] or [
            name for name in found.fields if plain(answer) == plain(name)
        ]
        chosen = _counted(found, meant[0]) if len(meant) == 1 else None
        if chosen is not None:
            return chosen
        if len(meant) == 1:
            print(f"{meant[0]!r} is the text: choose a field that says whose it is")
        else:
            fault = (
                f"several fields may be meant by {answer!r}" if meant else f"no field is called {answer!r}"
            )
            print(f"{fault}; the fields are: {named(found.fields)}")


def unit(found: Look, yes: bool) -> Candidate | None:
    """Return the unit: the one that is given, or else the answer of somebody who can be asked, or else the proposal.

    Raises:
        InputError: what is given is no field, or the text.
    """
    if "data.unit" not in found.given:
        return found.unit() if yes or not at_terminal() else asked(found)
    name = found.given.get("data.unit")
    if name is None:
        return None
    if not isinstance(name, str):
        raise InputError("data.unit: give one field here; write a list of them into the config that is made")
    if name not in found.fields:
        raise InputError(f"data.unit: no field is called {name!r} (fields: {named(found.fields)})")
    chosen = found.candidate(name)
    if chosen is None:
        raise InputError(f"data.unit: {name!r} is the text: give a field that says whose it is")
    return chosen


def _counted(found: Look, name: str) -> Candidate | None:
    """Return a field of the records as a unit, counted now if it was not; None if it is the text."""
    return found.candidate(name) or look(found.source, (name,), found.given).candidate(name)


def drafted(draft: Draft, unit: Candidate | None, out: Path) -> None:
    """Show where the config is, whom it protects, and what comes next; warnings go to standard error."""
    whom = "each document by itself" if unit is None else f"all documents of one {unit.name!r} together"
    print(f"wrote {out}: protects {whom}; look at what `data` says, then `confide prepare {out}`")
    sys.stdout.flush()
    for warning in draft.warnings:
        print(f"warning: {warning}", file=sys.stderr)
