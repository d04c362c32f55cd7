"""The recipe study: what it trains, and its table."""

from types import SimpleNamespace

import pytest
from studies.recipe import CHOSEN, EPSILONS, PLAIN, SEEDS

from confide.utils.errors import InputError
from studies import corpora, recipe


def test_recipes_ask_for_as_many_chunks():
    assert len({each.batch * each.rows * each.steps for each in (PLAIN, CHOSEN)}) == 1


def test_the_gap_of_each_key_is_that_of_its_own_twin(tmp_path, monkeypatch):
    asked = []

    def train(self, given, epsilon, seed, twin=False):
        asked.append((given.name, epsilon, seed, twin))
        loss = 4.0 + seed if twin else 5.0 + seed if epsilon == EPSILONS[0] else 6.0
        # as in a run: a twin starts from the private run's base, and measures none
        base = None if twin else {"loss": 8.0}
        guarantee = SimpleNamespace(noise_multiplier=0.0 if twin else 0.512)
        return SimpleNamespace(base=base, final={"loss": loss}, guarantee=guarantee)

    monkeypatch.setattr(recipe._Study, "train", train)
    found = recipe.run(tmp_path, tmp_path / "work")
    assert len(asked) == len(set(asked)) == 3 * SEEDS
    base, chosen, small = found["rows"]
    assert base["closed"] == (1.0,) * SEEDS
    assert chosen["closed"] == (3 / 4, 2 / 3, 1 / 2)
    assert small["closed"] == (2 / 4, 2 / 3, 1.0)
    lines = found["markdown"].splitlines()
    assert lines[3] == (
        "| chosen | 512 | 1 | 60 | 0.004 | 8 | 0.512 | 0.001 | 5.000, 6.000, 7.000 | 6.000 | "
        "75.0%, 66.7%, 50.0% | 63.9% |"
    )
    assert lines[2].startswith("| plain | 256 | 2 | 60 | 0.002 | inf |  |  | 4.000, 5.000, 6.000 |")


def test_a_folder_without_the_data_is_refused(tmp_path):
    with pytest.raises(InputError, match="20newsgroups"):
        recipe.run(tmp_path, tmp_path / "work")


def test_each_run_has_its_own_folder_and_a_published_key(tmp_path):
    source = tmp_path / corpora.POSTS["20newsgroups"]
    source.parent.mkdir(parents=True)
    source.touch()
    made = [
        recipe.config(each, epsilon, seed, tmp_path, tmp_path)
        for each in (PLAIN, CHOSEN)
        for epsilon in EPSILONS
        for seed in range(SEEDS)
    ]
    assert len({config.run for config in made}) == len(made)
    assert len({config.privacy.published_key for config in made}) == SEEDS
