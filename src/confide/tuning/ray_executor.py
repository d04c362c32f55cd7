"""Run trials of a sweep in parallel on a Ray cluster, whose machines share the disk of the run folder."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from confide.utils.errors import InputError
from confide.utils.ray_workers import joined

if TYPE_CHECKING:
    from confide.tuning.sweep import Executor, Trial, Tried


def on_ray(address: str) -> "Executor":
    """Run trials as tasks of a Ray cluster: one processor each, and one GPU if there are any.

    Keys stay on the shared disk: only their location travels.

    Args:
        address: address of the cluster; `local` starts one on this machine, `auto` finds the one it belongs to.

    Raises:
        InputError: Ray is not installed, no cluster answers, or one of its processes is lost.
    """

    def spread(function: "Callable[[Trial], Tried]", trials: "Sequence[Trial]") -> "Iterator[Tried]":
        ray, _ = joined(address)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task: Any = ray.remote(num_cpus=1, num_gpus=gpus)(lambda trial: function(trial))
        running = [task.remote(trial) for trial in trials]
        for one in running:
            try:
                yield ray.get(one)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise InputError(
                    f"--ray {address}: a trial ended with its process or machine ({type(error).__name__}); the same "
                    "command goes on where it stopped"
                ) from error

    return spread
