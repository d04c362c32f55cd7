"""Draw the next step's batch on another thread, while a device computes this one."""

from concurrent.futures import Future, ThreadPoolExecutor

from confide.privacy.mechanisms.values import Sampler
from confide.privacy.sampling import Draw, StopTraining

Drawn = Draw | StopTraining


class DrawAhead:
    """Asks a sampler for one step more than is needed.

    A draw is a function of the run key and the step, so it does not matter when it is made. Of a sampler that does not
    say so (`depends_on_step_alone`), nothing is drawn ahead.

    Args:
        is_on: draw ahead at all. On a CPU there is no gain: its cores are busy with the step.
    """

    def __init__(self, is_on: bool):
        self._is_on = is_on
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[Sampler, int, Future[Drawn]] | None = None

    def draw(self, sampler: Sampler, step: int) -> Drawn:
        """Return the draw of `step`, and begin that of the step after it."""
        if not (self._is_on and getattr(sampler, "depends_on_step_alone", False)):
            return sampler.draw(step)
        if self._next is not None and self._next[0] is sampler and self._next[1] == step:
            found = self._next[2].result()
        else:
            found = sampler.draw(step)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "confide-draw")
        self._next = sampler, step + 1, self._pool.submit(sampler.draw, step + 1)
        return found
