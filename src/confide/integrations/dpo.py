"""TRL's DPOTrainer is not built: refused with the reason."""

from typing import Any, NoReturn

from confide.utils.errors import InputError


class PrivateDPOTrainer:
    """Not built.

    Raises:
        InputError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(
            "PrivateDPOTrainer: not built. A preference pair may belong to two people, who wrote it and who judged it, "
            "so the unit of a pair has to be settled first; and the loss needs a reference model beside the one that "
            "trains, which confide's loop does not hold. Train on the chosen answers with PrivateSFTTrainer"
        )
