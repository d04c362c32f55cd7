"""The ways in which a run may end that are not a fault of confide."""


class InputError(Exception):
    """The user's input is at fault: one sentence that names the file, row or key. Exit code 2."""


class Faults(InputError):
    """Several faults of one file: a line that names it, and a line for each of them."""


class Diverged(InputError):
    """The training left the range of numbers: a gradient, a weight or a loss is infinite or not a number."""


class CheckFailed(Exception):
    """A check was made and failed, or a claim does not hold. Exit code 1."""


class RankLost(Exception):
    """Another process of the run has ended; its own message says why."""
