"""All that a config says of where secrets are, as finders."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from confide.sensitive.secrets.finders import Finder, RowList, finders
from confide.sensitive.secrets.repository import RepositorySecrets

if TYPE_CHECKING:
    from confide.config.schema import Config


def searchers(config: "Config") -> list[Finder]:
    """The finders of a config, in the order of its keys.

    Raises:
        InputError: a list, pattern, pipeline or repository is at fault; the sentence names the key.
    """
    found = finders(config.secrets)
    if config.secrets.repository.names_secrets:
        found.append(RepositorySecrets(config.secrets.repository, config.data.train))
    return found


def check_rows(found: Sequence[Finder], read: int) -> None:
    """Raises InputError if a list of rows names one beyond those that were read."""
    for finder in found:
        if isinstance(finder, RowList):
            finder.check(read)


def counts_of(found: Sequence[Finder]) -> dict[str, int]:
    """What was looked through, and what could not be read: a claim of recall rests on it."""
    return {
        name: number
        for finder in found
        if isinstance(finder, RepositorySecrets)
        for name, number in finder.counts.items()
    }
