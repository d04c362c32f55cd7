"""What many tests need: the data beside the project, tiny models and tokenizers, small graphs."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if not os.environ.get("CONFIDE_TEST_GPU"):  # what is tested is then the same everywhere: see test_device.py
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis
import pytest
import torch

from tests.places import SHARED

torch.set_num_threads(1)

# No power is cut here, and thousands of waits for a disk are a tenth of the tests' time. What is written before what is
# tested by the calls, and processes of their own wait.
os.fsync = lambda handle: None

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


# Tests that take from 5 to 30 seconds each, left out so that all others run in a quarter of an hour on two cores:
# `scripts/test.sh --all` runs them too, and so it should be run before a release.
SLOW = {
    "test_a_disk_that_is_really_full",
    "test_a_lower_learning_rate_and_a_decay_allow_more_steps",
    "test_a_measured_plan_is_of_this_data_and_covered_by_nothing",
    "test_a_plan_prints_no_claimed_number_to_the_nearest",
    "test_a_reader_that_goes_away_is_no_fault",
    "test_a_sweep_that_was_stopped_goes_on_exactly[optuna]",
    "test_as_a_command_of_its_own[arguments1]",
    "test_each_kernel_compiles_once_for_a_gpu",
    "test_eight_candidates_come_as_close_as_theory_says",
    "test_every_verb_on_another_device[bias]",
    "test_every_verb_on_another_device[lora]",
    "test_exposure_tells_what_a_rank_costs",
    "test_it_compares_a_private_run_with_one_on_the_same_draws_that_is_not",
    "test_killed_at_random_moments[audit-4]",
    "test_killed_at_random_moments[two phases-4]",
    "test_memory_of_a_long_text",
    "test_more_layers_keep_the_host_waiting_no_oftener",
    "test_no_guess_beats_the_allowed_posterior_and_with_a_quarter_of_the_noise_it_does",
    "test_runs_end_as_they_would_alone",
    "test_step_measures_each_method_with_its_own_memory",
    "test_stopped_is_130_and_the_same_command_resumes",
    "test_the_benchmark_says_what_it_promises",
    "test_the_bundled_model_equals_brute_force[My ID is {}.]",
    "test_the_memory_estimate_is_near_a_measured_peak[False-adapter0]",
    "test_the_memory_estimate_is_near_a_measured_peak[False-adapter1]",
    "test_the_memory_estimate_is_near_a_measured_peak[True-adapter0]",
    "test_the_memory_estimate_is_near_a_measured_peak[True-adapter1]",
    "test_two_opposite_candidates_reach_the_bound",
    "test_what_is_refused_in_a_process_is_refused_here",
    "test_what_two_thirds_of_the_noise_would_give_away_is_seen_too",
    "test_what_was_chosen_fits_and_four_times_as_much_would_not",
    "test_with_ray_itself",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests out, unless all were asked for or one by its name."""
    if config.getoption("--all") or any("::" in name for name in config.args):
        return
    slow = [item for item in items if SLOW & {item.name, item.name.partition("[")[0]}]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]
