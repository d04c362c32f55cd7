"""What many tests need: the data beside the project, tiny models and tokenizers, small graphs."""

import gc
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nothing here is compiled by torch. bitsandbytes, which peft imports, would import the compiler in each process.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

if not os.environ.get("CONFIDE_TEST_GPU"):  # what is tested is then the same everywhere: see test_device.py
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis
import pytest
import torch

from tests import light, tiers
from tests.places import SHARED

torch.set_num_threads(1)

# No power is cut here, and thousands of waits for a disk are a tenth of the tests' time. What is written before what is
# tested by the calls, and processes of their own wait.
os.fsync = lambda handle: None

light.spare_second_opinions()
light.build_the_command_once()
light.spare_measured_memory()

# The same examples everywhere: what one machine's tests find, another's find too. `--hypothesis-profile=default` looks
# for others.
hypothesis.settings.register_profile("same", derandomize=True, database=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public data and small models beside the repository."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not there: tests on real text are skipped")
    return SHARED


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny GPT-2 and the bundled tokenizer, which no test changes."""
    from tests.command import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model"))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are no names: a gzip header holds the time, and workers must collect the same tests."""
    return argname if isinstance(val, bytes) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the exhaustive tests as well")
    parser.addoption(
        "--turn", help="which of the tests that run in turn: a number from 0, or all (default: by the commit)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find once whose turn it is: a commit may be made while workers start, and all must collect the same tests."""
    if not hasattr(config, "workerinput"):
        turn = tiers.turn_of(config.getoption("--turn"))
        config.option.turn = "all" if turn is None else str(turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Half a million objects are here to stay: each full collection of garbage would look at all of them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    light.Kept.fresh = "monkeypatch" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests before `-m` chooses among them: see tiers.py."""
    tiers.mark(config, items)
