import numpy as np
import pytest
from scipy import stats

from confide.privacy.sampling import OwnRates, Sampling
from confide.randomness.streams import RunKey

KEY = RunKey.from_text("test")


def sizes(sampling: Sampling, n: int, steps: int) -> np.ndarray:
    return np.array([len(sampling.draw(n, KEY, "main", step)) for step in range(steps)])


def test_poisson_draws_are_binomial_and_independent():
    drawn = sizes(Sampling("poisson", 0.2), 50, 2000)
    expected = stats.binom(50, 0.2).pmf(np.arange(51)) * 2000
    seen = np.bincount(drawn, minlength=51)
    usual = expected > 5
    assert ((seen[usual] - expected[usual]) ** 2 / expected[usual]).sum() < stats.chi2(usual.sum()).ppf(
        0.9999
    )


def test_each_thing_is_drawn_equally_often():
    counts = np.zeros(40)
    for step in range(3000):
        counts[Sampling("poisson", 0.1).draw(40, KEY, "main", step)] += 1
    assert stats.chisquare(counts).pvalue > 1e-4


def test_empty_draws_happen_and_stay_empty():
    """Pitfall 2: an empty draw is a draw; it is neither skipped nor filled."""
    drawn = sizes(Sampling("poisson", 0.01), 20, 500)
    assert (drawn == 0).sum() > 350


def test_truncated_draws_hold_the_cap_and_are_not_biased_to_low_numbers():
    sampling = Sampling("truncated", 0.25, 10)
    counts = np.zeros(40)
    for step in range(2000):
        drawn = sampling.draw(40, KEY, "main", step)
        assert len(drawn) <= 10
        counts[drawn] += 1
    assert stats.chisquare(counts).pvalue > 1e-4


def test_shuffled_batches_cover_everything_once_an_epoch():
    sampling = Sampling("shuffle", 8 / 40)
    epoch = np.concatenate([sampling.draw(40, KEY, "main", step) for step in range(5)])
    assert sorted(epoch) == list(range(40))
    other = np.concatenate([sampling.draw(40, KEY, "main", step) for step in range(5, 10)])
    assert sorted(other) == list(range(40))
    assert list(epoch) != list(other)


@pytest.mark.parametrize(("n", "bins"), [(40, 5), (1000, 7), (3, 8), (10, 1)])
def test_in_bins_each_takes_part_once_an_epoch(n, bins):
    sampling = Sampling("bins", 1 / bins)
    for epoch in range(4):
        drawn = [sampling.draw(n, KEY, "main", bins * epoch + place) for place in range(bins)]
        assert sorted(np.concatenate(drawn).tolist()) == list(range(n))


def test_bins_are_uniform_and_independent_of_one_another_and_of_other_epochs():
    n, bins, epochs = 60, 4, 800
    sampling = Sampling("bins", 1 / bins)
    where = np.empty((epochs, n), int)
    for step in range(bins * epochs):
        where[step // bins, sampling.draw(n, KEY, "main", step)] = step % bins
    for pairs in (
        bins * where[:, :-1] + where[:, 1:],  # neighbours of one epoch
        bins * where[:-1] + where[1:],  # one item in two epochs
    ):
        assert stats.chisquare(np.bincount(pairs.ravel(), minlength=bins**2)).pvalue > 1e-4
    assert stats.chisquare((where == 0).sum(axis=0)).pvalue > 1e-4  # each item alike
    held = (where == 2).sum(axis=1)
    assert held.var() == pytest.approx(n * (1 / bins) * (1 - 1 / bins), rel=0.2)  # binomial, and not fixed


@pytest.mark.parametrize("kind", ["poisson", "truncated", "bins", "shuffle"])
def test_a_draw_is_a_function_of_key_phase_and_step(kind):
    sampling = Sampling(kind, 0.3, 30 if kind == "truncated" else None)
    here = sampling.draw(100, KEY, "main", 4)
    assert (here == sampling.draw(100, KEY, "main", 4)).all()
    for other in (
        sampling.draw(100, KEY, "main", 5),
        sampling.draw(100, KEY, "second", 4),
        sampling.draw(100, RunKey.from_text("x"), "main", 4),
    ):
        assert list(here) != list(other)


def test_indices_are_distinct_and_ascending():
    """Pitfall 3: nothing enters a step twice."""
    for kind in ("poisson", "truncated", "bins", "shuffle"):
        drawn = Sampling(kind, 0.4, 40).draw(100, KEY, "main", 1)
        assert (np.diff(drawn) > 0).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling("poisson", 0.2),
        Sampling("poisson", 0.05, bands=4),
        Sampling("truncated", 0.2, 30_000),
        Sampling("bins", 1 / 6),
        Sampling("bins", 1 / 6, bands=3),
        OwnRates(np.full(20_000, 0.2)),
        OwnRates(np.linspace(0.1, 0.3, 20_000)),
    ],
    ids=["poisson", "in groups", "truncated", "bins", "kept bins", "own rates", "own rates that differ"],
)
def test_draws_are_as_many_as_is_accounted_for_to_half_a_percent(sampling):
    """Two million chances: drawing at 1.01 times the rate would be seven standard deviations off."""
    mean = sizes(sampling, 20_000, 100).mean() / 20_000
    assert mean == pytest.approx(sampling.rate, rel=0.005)
    if isinstance(sampling, OwnRates):  # each at its own
        counts = np.zeros(20_000)
        for step in range(100):
            counts[sampling.draw(20_000, KEY, "main", step)] += 1
        for part in np.split(np.arange(20_000), 4):
            assert counts[part].mean() / 100 == pytest.approx(sampling.rates[part].mean(), rel=0.01)


def test_rates_of_rows_are_recorded_under_the_key_alone():
    """Pitfall 31: they follow from who owns how much, and a plain hash would let others test guesses of that."""
    sampling = OwnRates(np.array([0.1, 0.2]))
    first, second = (sampling.record(RunKey(bytes([n]) * 32).fingerprint) for n in (1, 2))
    assert first["rates"] != second["rates"]
    assert first == sampling.record(RunKey(bytes([1]) * 32).fingerprint)
