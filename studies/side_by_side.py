"""Runs that do not wait for each other, a core each: small models gain little by threads."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import torch

from confide.config.schema import Config
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.utils.console import Console


def fine_tuned(runs: Sequence[Config], console: Console, processes: int | None = None) -> dict[str, Outcome]:
    """Train runs, or resume them, each to its end.

    Args:
        processes: default: one for each core, or one in all where a GPU is.

    Returns:
        By each run's folder, its outcome.

    Raises:
        KeyboardInterrupt: somebody interrupted; what is checkpointed is resumed another time.
    """
    cores = os.cpu_count() or 1
    processes = min(processes or (1 if torch.cuda.is_available() else cores), len(runs))
    spawn = multiprocessing.get_context("spawn")
    outcomes: dict[str, Outcome] = {}
    left, running = list(reversed(runs)), dict[Future[Outcome], str]()
    threads = (max(1, cores // processes),)
    # A process for each run: over many runs of one process, what it holds grows to several times what a run needs.
    with ProcessPoolExecutor(processes, spawn, torch.set_num_threads, threads, max_tasks_per_child=1) as pool:
        while left or running:
            while left and len(running) < processes:  # a queued one would begin even after Ctrl-C
                each = left.pop()
                running[pool.submit(_fine_tuned, each)] = each.run
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                folder, outcome = running.pop(future), future.result()
                if not outcome.finished:
                    raise KeyboardInterrupt
                outcomes[folder] = outcome
                console.say(f"{Path(folder).name}: {len(outcomes)} of {len(runs)}")
    return outcomes


def _fine_tuned(run: Config) -> Outcome:
    return fine_tune(Run(run))
