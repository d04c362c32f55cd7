"""Which attacks an audit makes, and how far each goes."""

from dataclasses import dataclass

from confide.utils.errors import InputError

ATTACKS = ("claim", "exposure", "membership", "users", "extraction")
RANKS = ("exact", "sampled", "extrapolated")


@dataclass(frozen=True)
class Options:
    """The settings of an audit.

    Attributes:
        attacks: names of the attacks to run, out of `ATTACKS`.
        users, rows: for membership and user inference: the most users on each side, and the most rows of each user.
        prefix, suffix: for extraction: how many tokens the model is given, and how many it must give back, either
            greedily or in at least one of `samples` continuations with `probability` (Hayes et al. 2024).
        secrets: the most numbers whose exposure is computed, shared equally among the counts of insertions (0 for
            unplanted numbers).
        ranks: how ranks are found, one of `RANKS`. Sampled and extrapolated ranks use `draws` other numbers for each
            secret.

    Raises:
        InputError: there is no such attack, or no such way to find ranks; it names the option of `confide audit`.
    """

    attacks: tuple[str, ...] = ATTACKS
    users: int = 500
    rows: int = 4
    prefix: int = 16
    suffix: int = 16
    samples: int = 100
    probability: float = 0.5
    secrets: int = 64
    ranks: str = "exact"
    draws: int = 1000

    def __post_init__(self) -> None:
        given = (self.attacks,) if isinstance(self.attacks, str) else self.attacks
        if unknown := [name for name in given if name not in ATTACKS]:
            raise InputError(f"--attacks {unknown[0]}: there are {', '.join(ATTACKS)}")
        if self.ranks not in RANKS:
            raise InputError(f"--ranks {self.ranks}: there are {', '.join(RANKS)}")
        object.__setattr__(self, "attacks", tuple(given))
