"""The step that the command line uses, from a program: python examples/library.py CONFIG [STEPS]"""

import sys
from pathlib import Path

from confide.config.loading import load
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.utils.console import Console


def main(config: Path, steps: int) -> None:
    job = Job.of(Run(load(config)), Console())
    take = job.phase_runner()
    for number in range(steps):
        report = take(number)  # draw, clip each unit, sum, add noise, divide, move
        print(f"step {number}: {report.units} units, {report.rows} rows, loss {report.loss}")
    print("\n".join(job.guarantee(steps).sentences()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
