"""Run by torchrun: what two ranks find for the tests, all in one launch, of which importing is the longer part.

torchrun --nproc-per-node 2 -m tests.two_ranks_all FOLDER two_ranks_loading two_ranks

Each module named has `find(folder, ranks)`. What it returns goes to FOLDER/NAME.json; nothing is printed.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

from confide.distributed.ranks import Ranks

MODULES = ("two_ranks_loading", "two_ranks_coarse", "two_ranks")  # the last changes how units are dealt out


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    with Ranks.joined() as ranks:
        assert ranks.size == 2
        for name in names:
            own = folder / name
            own.mkdir(exist_ok=True)
            found = importlib.import_module(f"tests.{name}").find(own, ranks)
            if ranks.first:
                (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
