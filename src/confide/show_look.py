"""What `confide init` shows and asks: which fields may name people, and which of them is the unit."""

import sys
from pathlib import Path

from confide.looking import Candidate, Look
from confide.show import number, table
from confide.starter import Draft, share_without

_MOST = 8


def people(found: Look) -> None:
    """The fields that may name people, numbered, with how many records name nobody there."""
    listed = found.people[:_MOST]
    looked = f"{'all' if found.whole else 'the first'} {number(found.records)} records"
    print(f"looked at {looked} of {found.source!r}")
    if not listed:
        return
    rows = [
        [str(place), repr(each.name)[1:-1], number(each.people), share_without(found, each), _why(each)]
        for place, each in enumerate(listed, 1)
    ]
    table(["", "field", "different", "records without", "because of"], rows)


def _why(each: Candidate) -> str:
    return "its values repeat" if each.repeats else "its name" if each.sure else "its name, perhaps"


def asked(found: Look) -> Candidate | None:
    """The unit that is chosen at the terminal; the proposal if nothing is said."""
    proposal = found.unit()
    default = proposal.name if proposal else "none"
    print("\nWho is protected? All records of one value of the unit are protected together.")
    while True:
        try:
            answer = input(f"a number or a field's name, or none for each record by itself [{default}]: ").strip()
        except EOFError:
            print()
            return proposal
        if not answer:
            return proposal
        if answer == "none":
            return None
        if answer.isdecimal() and 1 <= int(answer) <= len(found.people[:_MOST]):
            return found.people[int(answer) - 1]
        chosen = found.candidate(answer)
        if chosen is not None:
            return chosen
        print(f"{answer!r} is none of them")


def drafted(draft: Draft, unit: Candidate | None, out: Path) -> None:
    """Where the config is, whom it protects, and what comes next; warnings on standard error."""
    whom = "each document by itself" if unit is None else f"all records of one {unit.name!r} together"
    print(f"wrote {out}: protects {whom}; look at data.text and data.unit, then `confide prepare {out}`")
    sys.stdout.flush()
    for warning in draft.warnings:
        print(f"warning: {warning}", file=sys.stderr)
