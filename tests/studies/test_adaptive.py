"""The adaptive study: which settings it trains, and what epsilon its gammas would have if they were public."""

import json
from types import SimpleNamespace

import pytest

from confide.privacy.accounting import MixtureOfGaussians
from studies import adaptive, corpora

NOTHING = {"loss": 3.0, "perplexity": 20.0}


def test_gammas_as_if_public_are_composed_as_what_they_were_at_least():
    rate, sigma, delta = 0.05, 1.2, 1e-5

    def plain(noise, steps):
        return MixtureOfGaussians.bernoulli(rate, steps).curve(noise, 1e-3).epsilon(delta)

    whole = adaptive._public([sigma] * 20, sigma, rate, delta)
    assert whole == pytest.approx(plain(sigma, 20), abs=0.02)
    assert whole >= plain(sigma, 20)
    half = adaptive._public([sigma] * 10 + [sigma / 2] * 10, sigma, rate, delta)
    assert max(whole, plain(sigma / 2, 10)) < half < plain(sigma / 2, 20)
    rounded = adaptive._public([0.999 * sigma] * 20, sigma, rate, delta)  # counts as 0.98
    assert rounded >= plain(0.98 * sigma, 20) > whole


def test_nominal_at_equal_epsilon_has_the_noise_whose_mean_gamma_is_that_of_plain_noise(
    tmp_path, monkeypatch
):
    for name in ("stories", "wikitext", "written"):
        monkeypatch.setattr(corpora, name, lambda *args: tmp_path / "none.jsonl")
    monkeypatch.setattr(corpora, "stories", lambda *args: "bundled")
    trained = []

    def fine_tune(run, console):
        privacy, nominal = run.config.privacy, run.config.adaptive.mode == "nominal"
        trained.append(run.config)
        sigma = privacy.noise_multiplier or (0.0 if privacy.mechanism == "none" else 0.9)
        gammas = [0.5, 0.75] if privacy.mechanism == "adaptive" else [1.0, 1.0]
        run.folder.mkdir(parents=True)
        lines = [{"phase": "main"}, *({"noise_multiplier": sigma * gamma} for gamma in gammas)]
        run.ledger_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        guarantee = SimpleNamespace(
            notion="none" if privacy.mechanism == "none" else "example-level DP",
            noise_multiplier=sigma,
            epsilon=8.0 if nominal else 3.0,
            sampling_probability=(0.05, 0.05),
            delta=1e-5,
            estimates=("gamma tells of the rows",) if nominal and gammas[0] < 1 else (),
        )
        base = {"loss": 4.99, "perplexity": 147.0}
        return SimpleNamespace(finished=True, final=NOTHING, base=base, steps=2, guarantee=guarantee)

    monkeypatch.setattr(adaptive, "fine_tune", fine_tune)
    found = adaptive.run(tmp_path / "data", tmp_path / "work")
    assert len(found["rows"]) == len(trained) == 1 + 2 * 3 + 4
    asked = {config.run.rpartition("/")[2]: config for config in trained}
    assert asked["nominal-equal"].privacy.noise_multiplier == pytest.approx(0.9 / 0.625)
    assert asked["dp-sgd-equal"].privacy.epsilon == asked["private-equal"].privacy.epsilon == 3.0
    assert asked["private-floor"].adaptive.floor == 0.79  # 4.99 / log(512), rounded down
    assert {asked[f"nominal-{sigma}"].adaptive.floor for sigma in (1, 5)} == {adaptive.FLOOR}
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["no DP"]["epsilon"] is None
    assert rows["DP-SGD"]["public"] is None
    assert rows["adaptive, nominal (001)"]["gamma"] == pytest.approx(0.625)
    assert rows["adaptive, private"]["is_theorem"]
    assert not rows["adaptive, nominal (001)"]["is_theorem"]
    assert "an estimate, at the floor" in found["markdown"]
