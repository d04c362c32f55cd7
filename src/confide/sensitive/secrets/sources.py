"""Make the finders of all sources of secrets that a config names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confide.sensitive.secrets.finders import Detected, Finder, RowList, finders
from confide.sensitive.secrets.repository import RepositorySecrets
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config


def searchers(config: "Config", crew: Crew | None = None) -> list[Finder]:
    """Return the finders of a config, in the order of its keys.

    Args:
        crew: who runs its detector; by default all processors do.

    Raises:
        InputError: a list, pattern, pipeline or repository has an error; the message names the key.
    """
    found = finders(config.secrets, crew)
    if config.secrets.repository.names_secrets:
        found.append(RepositorySecrets(config.secrets.repository, config.data.train))
    return found


def close(found: Sequence[Finder]) -> None:
    """End the processes of a detector."""
    for finder in found:
        if isinstance(finder, Detected):
            finder.close()


def check_rows(found: Sequence[Finder], read: int) -> None:
    """Raise InputError if a list of rows names a row beyond the `read` rows of the data."""
    for finder in found:
        if isinstance(finder, RowList):
            finder.check(read)


def counts_of(found: Sequence[Finder]) -> dict[str, int]:
    """Return the counts of what was searched and what could not be read; a claim of recall rests on them."""
    return {
        name: number
        for finder in found
        if isinstance(finder, RepositorySecrets)
        for name, number in finder.counts.items()
    }
