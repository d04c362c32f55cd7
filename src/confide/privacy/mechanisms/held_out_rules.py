"""Rules for held-out losses that decide about what is released: by `train.patience`, a sweep or a `PrivateTrainer`.

No noise covers these losses, and what they decide is released. Still the claim holds if held-out text is the same in
both worlds: then the losses differ by the weights alone, whose noise is counted. So nothing protected may stand there.

Why that is so, for each kind of mechanism:

- `uls`, `els`, `group`, `concentration` and `owners` protect all rows of a unit. A share holds out whole units, and a
  document with owners on both sides is left out. A file may hold rows of units that train, so names are compared here.
  With `data.eval_within` all held-out rows are of such units.
- `dp-sgd` and `adaptive` protect one row, and `selective`, `redacted` and `crt` what is sensitive in one row. A row
  trains if its document is not held out. The same words in another row are not covered, wherever it stands: each claim
  says so. So held-out text need not be redacted. A file may hold the very documents that train, so names of units are
  compared here as well, though rows of one person need not be the same.
- `secret` protects what all rows tell of a secret. Documents are held out, and not secrets, and held-out text is not
  searched: any of it may hold a secret that trains.
- `none` protects nobody.

Canaries stand in training rows alone, under names of their own. Histograms are counted over training rows, with noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confide.config import registry
from confide.data.both_sides import units_that_train
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Place:
    """Where held-out text stands, in the words of the user.

    Attributes:
        name: the key or argument that names it.
        apart: what to do if units there also train.
        without_unit: how to say that rows belong to nobody.
        no_choice: what to do if it may hold secrets.
    """

    name: str
    apart: str
    without_unit: str
    no_choice: str


DATA_EVAL = Place(
    "data.eval",
    "leave them out of the file, or name a share (data.eval: 0.1), which holds out whole units",
    "if no document stands in both files, set data.unit: null",
    "use neither train.patience nor a sweep",
)
EVAL_DATASET = Place(
    "eval_dataset",
    "split the data by whose it is and not by row, or choose without it",
    "if no row stands in both, leave unit out",
    "choose the model without its losses",
)


@dataclass(frozen=True)
class Choice:
    """Something that is decided by held-out losses.

    Attributes:
        key: the key of the config, or the argument, to change if the mechanism is at fault.
        what: what is decided, and "by"; the sentence goes on with the losses that decide.
        place: where the held-out text stands.
    """

    key: str
    what: str
    place: Place = DATA_EVAL


@dataclass(frozen=True)
class Shared:
    """Units of held-out text that also train.

    Attributes:
        number: how many there are.
        of: how many units the held-out text has.
        what: "units", or "rows" where no unit is named.
        is_of_rows: the claim is of rows, though a unit is named.
    """

    number: int
    of: int
    what: str = "units"
    is_of_rows: bool = False

    def sentence(self, place: Place) -> str:
        """Say how many there are."""
        return f"{place.name}: {self.number:,} of its {self.of:,} {self.what} also train"


PATIENCE = Choice("train.patience", "train.patience ends the run by")
SWEEP = Choice("privacy.mechanism", "a sweep releases a trial by")


def choice_errors(
    mechanism: "type[Mechanism]", config: "Config", choice: Choice
) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) where the config alone tells that held-out text may hold what is protected."""
    if config.data.eval_within is not None:
        yield (
            "data.eval_within",
            f"{choice.what} held-out losses, and these rows are of the units that the guarantee is about: hold out "
            "other units (data.eval)",
        )
    yield from secret_errors(mechanism, choice)


def secret_errors(mechanism: "type[Mechanism]", choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) where the mechanism protects secrets: held-out text is not searched for them."""
    if mechanism.needs.secrets:
        yield (
            choice.key,
            f"mechanism {mechanism.name} does not look for secrets in {choice.place.name}, and {choice.what} its "
            f"losses: no noise covers a secret that stands there, so {choice.place.no_choice}",
        )


def shared_error(shared: Shared, choice: Choice) -> str:
    """Return the sentence that refuses to decide by losses of units that also train."""
    place = choice.place
    also = f". The claim is of rows: {place.without_unit}" * shared.is_of_rows
    return f"{shared.sentence(place)}, and {choice.what} their losses, which no noise covers: {place.apart}{also}"


def check_choice(config: "Config", held_out: UnitGraph, trained: Sequence[UnitGraph], choice: Choice) -> None:
    """Refuse to decide by the losses of held-out text that may hold what is protected.

    Args:
        trained: all graphs that steps are taken on.

    Raises:
        InputError: it may; the sentence says what to do.
    """
    mechanism = registry.mechanism(config.privacy.mechanism)
    if mechanism.notion == "none":
        return
    for key, sentence in choice_errors(mechanism, config, choice):
        raise InputError(f"{key}: {sentence}")
    if number := units_that_train(config.data, held_out, trained):
        is_of_rows = not mechanism.needs.named_unit and config.data.unit is not None
        raise InputError(shared_error(Shared(number, held_out.n_units, is_of_rows=is_of_rows), choice))
