"""Account for a run of which only numbers are known: any one of epsilon, delta, noise and steps from the others.

It makes up a `Shape` of the counts that are given, and asks the mechanism itself: rates, process, noise and curve come
from the code that a run's claim comes from. Source: Charles et al. 2024, appendix B.1.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from confide.config.fields import MOST_BUFFERS
from confide.data.shape import Shape
from confide.planning.asked import Asked, Unknown, option
from confide.privacy import mechanisms
from confide.privacy.accounting import PrivacyProfile, Trials, most_steps
from confide.privacy.accounting.calibration import MOST_STEPS
from confide.privacy.accounting.fixed_bins import MOST_STEPS as MOST_OF_KEPT_BINS
from confide.privacy.guarantee import PRIORS, WORLDS
from confide.privacy.histograms import Histograms
from confide.privacy.mechanisms.base import Mechanism
from confide.privacy.mechanisms.histogram_rules import accounting_errors
from confide.privacy.mechanisms.statement import CalibratedMechanism, calibrate
from confide.privacy.mechanisms.tuned import UNTUNED, CountedSweep
from confide.privacy.mechanisms.values import DrawSettings
from confide.privacy.sampling import bins_of
from confide.privacy.strength import weaknesses
from confide.utils.chart import Panel, panels_svg
from confide.utils.errors import InputError
from confide.utils.plain import plain
from confide.utils.rounding import at_least, at_most

PROCESSES = ("uls", "els", "group", "dp-sgd")
"""The mechanisms whose claim follows from counts alone; others need to know which rows belong to whom, or more."""

MOST_UNITS = 1e11
"""More units than there can be: about as many as people who ever lived."""

FPRS = (1e-3, 1e-2, 1e-1)
"""False positive rates at which the best test is told."""

_MOST_LISTED = 50_000_000  # users with a count of their own: 400 MB

_OPTIONS = {
    "train.batch": "--batch",
    "train.sampling_rate": "--rate",
    "train.max_batch": "--max-batch",
    "train.steps": "--steps",
    "privacy.epsilon": "--epsilon",
    "privacy.noise_multiplier": "--noise",
    "privacy.delta": "--delta",
    "privacy.adjacency": "--adjacency",
    "privacy.sampling": "--sampling",
    "privacy.bands": "--bands",
    "privacy.buffers": "--buffers",
    "privacy.rows_per_unit": "--rows-per-unit",
    "privacy.histograms.noise_multiplier": "--histograms",
    "privacy.histograms.of": "--histograms",
    "privacy.histograms": "--histograms",
}


@dataclass(frozen=True)
class Account:
    """What follows from the numbers of a question. It is a bound of the run that they describe, and no claim of one.

    Attributes:
        asked: the question.
        found: which number was not stated.
        noise_multiplier: standard deviation of the noise over the clip norm.
        epsilon: at `delta`; inf if no finite one holds. Where it is the target, what is reached, a little less.
        delta: as stated, found, or the default of these counts.
        steps: as stated or found.
        more_steps: steps were asked for, and so many were found that no more were tried.
        sampling_probability: of each row or unit, in the mean over steps.
        units: units in use, None if not known; for els and group without --units the fewest there can be.
        assumptions: (what, in words) that the numbers rest on.
        curve: (epsilon, delta) pairs, where epsilon is finite.
        advantage: true minus false positives of the best test.
        true_positive_rates: (false positive rate, true positive rate of the best test).
        reconstruction: (prior, success of the best attack) of whoever guesses at a unit's text.
        warnings: sentences that a person should read.
        profile: the whole curve.
    """

    asked: Asked
    found: Unknown
    noise_multiplier: float
    epsilon: float
    delta: float
    steps: int
    more_steps: bool
    sampling_probability: float
    units: int | None
    assumptions: tuple[tuple[str, str], ...]
    curve: tuple[tuple[float, float], ...]
    advantage: float
    true_positive_rates: tuple[tuple[float, float], ...]
    reconstruction: tuple[tuple[float, float], ...]
    warnings: tuple[str, ...]
    profile: PrivacyProfile

    @property
    def answer(self) -> str:
        """The number that was asked for, in a sentence."""
        delta = f"at delta {at_most(self.delta, 3)}"
        target = (
            f"epsilon {at_most(self.epsilon if self.asked.epsilon is None else self.asked.epsilon)} {delta}"
        )
        run = f"{self.steps:,} {'step' if self.steps == 1 else 'steps'} of {self.asked.process}"
        noise = f"noise multiplier {at_least(self.noise_multiplier, 5)}"
        if not math.isfinite(self.epsilon):
            return f"No finite epsilon holds {delta} for {run} at {noise}: nothing is protected."
        if self.found == "noise_multiplier":
            verb = "is" if self.steps == 1 else "are"
            return f"{noise[0].upper()}{noise[1:]} is the least with which {run} {verb} within {target}."
        if self.found == "epsilon":
            return f"Epsilon is {target.removeprefix('epsilon ')} for {run} at {noise}."
        if self.found == "delta":
            return (
                f"Delta is {at_most(self.delta, 3)} at epsilon {at_most(self.epsilon)} for {run} at {noise}."
            )
        if self.more_steps:
            return f"Even {run} at {noise} are within {target}; more were not tried."
        return f"At most {run} at {noise} stay within {target}."

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as `confide account --json` prints it; infinity is the string "inf", as JSON has none."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "profile"}
        words = {"asked": asdict(self.asked), "assumptions": dict(self.assumptions)}
        found: dict[str, Any] = plain({"answer": self.answer, **values, **words})
        return found


def account(asked: Asked) -> Account:
    """Find the number that is not stated.

    Raises:
        InputError: the numbers do not go together, or no answer exists; the sentence names the option.
    """
    with _options_named(asked):
        return _account(asked)


@contextmanager
def _options_named(asked: Asked) -> Iterator[None]:
    """Name options where the rules of mechanisms name keys of a config."""
    try:
        yield
    except InputError as error:
        counts = "--rows" if asked.process in mechanisms.NAMES and asked.draws_rows else "--units"
        named = _OPTIONS | {"data.train": counts}
        keys = "|".join(map(re.escape, named))
        raise InputError(re.sub(keys, lambda key: named[key.group()], str(error))) from None


def _account(asked: Asked) -> Account:
    _check(asked)
    unknown = asked.unknown
    shape, mechanism = _shape(asked), _mechanism(asked)
    tuning = UNTUNED if asked.trials is None else CountedSweep(Trials(asked.trials))
    noise, delta, more = asked.noise_multiplier, asked.delta, False
    if unknown == "delta":
        delta = 0.5  # a stand-in, which no part of the process depends on
    elif delta is None and asked.population is None:
        raise InputError(
            f"--delta: without {'--rows' if asked.draws_rows else '--units'} there is no default: state it"
        )
    if unknown == "steps":
        assert noise is not None
        assert asked.epsilon is not None
        first = calibrate(mechanism, shape, None, noise, delta, tuning)
        is_kept = mechanism.sampling == "bins" and not mechanism.correlation.is_independent
        most = MOST_OF_KEPT_BINS if is_kept else MOST_STEPS
        steps = most_steps(
            lambda steps: tuning.parameters(replace(mechanism, steps=steps).parameters(shape)).process,
            noise,
            asked.epsilon,
            first.delta,
            mechanism.steps,
            most,
        )
        mechanism, delta, more = replace(mechanism, steps=steps), first.delta, steps == most
    setting = calibrate(mechanism, shape, asked.epsilon if noise is None else None, noise, delta, tuning)
    curve = setting.curve()
    if unknown == "delta":
        assert asked.epsilon is not None
        setting = replace(setting, delta=_delta(curve, asked.epsilon))
    epsilon = asked.epsilon if unknown == "delta" else curve.epsilon(setting.delta)
    assert epsilon is not None
    parameters, zeroed = setting.parameters, curve
    if parameters.zeroed != parameters.process:
        zeroed = parameters.zeroed.curve(setting.noise_multiplier)
    units = parameters.units if asked.population is not None else None
    advantage = float(curve.advantage())
    reconstruction = tuple((prior, float(zeroed.reconstruction(prior))) for prior in PRIORS)
    return Account(
        asked=asked,
        found=unknown,
        noise_multiplier=setting.noise_multiplier,
        epsilon=epsilon,
        delta=setting.delta,
        steps=mechanism.steps,
        more_steps=more,
        sampling_probability=parameters.sampling.rate,
        units=units,
        assumptions=tuple(_assumptions(asked, setting, curve)),
        curve=tuple(curve.points()),
        advantage=advantage,
        true_positive_rates=tuple((fpr, float(curve.true_positive_rate(fpr))) for fpr in FPRS),
        reconstruction=reconstruction,
        warnings=tuple(weaknesses(setting.delta, units, advantage, reconstruction)),
        profile=curve,
    )


def _delta(curve: PrivacyProfile, epsilon: float) -> float:
    found = curve.delta(epsilon)
    if found >= 1:
        raise InputError(
            f"--noise: at so little noise no delta below 1 goes with epsilon {at_most(epsilon, 6)}"
        )
    return found


def _check(asked: Asked) -> None:
    """Refuse numbers that cannot be, and options that the process does not have; mechanisms check what is left."""
    if asked.process not in PROCESSES:
        raise InputError(
            f"{asked.process}: from counts alone follow {', '.join(PROCESSES)}; for others write a config, and call "
            "confide plan"
        )
    if not 0 <= asked.buffers <= MOST_BUFFERS:
        raise InputError(f"--buffers: {asked.buffers} is not between 0 (none) and {MOST_BUFFERS}")
    counts = ("units", "rows", "rows_per_unit", "steps", "max_batch", "bands")
    for name in (*counts, "batch", "rate", "epsilon", "noise_multiplier", "delta", "histograms"):
        value, given = getattr(asked, name), option(name)
        if value is None:
            continue
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{given}: {value:g} must be a finite number above 0")
        if name in counts and value > MOST_UNITS:
            raise InputError(f"{given}: {value:g} is no whole number of at most {MOST_UNITS:g}")
        if (name == "rate" and value > 1) or (name == "delta" and value >= 1):
            most = "below 1" if name == "delta" else "at most 1"
            raise InputError(f"{given}: {value:g} is a probability, and must be {most}")
    for given, words, allowed in (
        ("--adjacency", asked.adjacency, tuple(WORLDS)),
        ("--sampling", asked.sampling, ("poisson", "truncated", "bins")),
    ):
        if words not in allowed:
            raise InputError(f"{given}: {words!r} is not one of {', '.join(allowed)}")
    if asked.histograms is not None:
        kind = mechanisms.find(asked.process)
        for key, sentence in accounting_errors(kind, asked.adjacency, asked.sampling):
            raise InputError(f"{key}: {sentence}")
    _check_counts(asked)


def _check_counts(asked: Asked) -> None:
    many = "--rows" if asked.draws_rows else "--units"
    is_capped = asked.process in ("els", "group")
    if asked.rows_per_unit is None and is_capped:
        raise InputError(f"--rows-per-unit: {asked.process} needs the most rows that a user may have in use")
    if asked.rows_per_unit is not None and not is_capped:
        raise InputError(
            f"--rows-per-unit: {asked.process} does not depend on it; it is an option of els and group"
        )
    if asked.units is not None and asked.process == "dp-sgd":
        raise InputError("--units: dp-sgd protects rows and knows no users: give --rows")
    if (asked.batch is None) == (asked.rate is None):
        raise InputError(
            f"--batch: give either --batch and {many}, or --rate, the probability of each {many[2:-1]}"
        )
    if asked.population is None and asked.batch is not None:
        raise InputError(f"{many}: say how many there are, of which a step draws --batch")
    units, rows, cap = asked.units, asked.rows, asked.rows_per_unit
    if units is not None and rows is not None and rows < units:
        raise InputError(f"--rows: {rows:,} are fewer than one for each of the {units:,} units")
    if rows is not None and cap is not None:
        if cap > rows:
            raise InputError(f"--rows-per-unit: {cap:,} are more than the {rows:,} rows there are")
        if units is not None and units * cap < rows:
            raise InputError(
                f"--rows: {units:,} units of at most {cap:,} rows have fewer than {rows:,} in use"
            )
        if (units or rows / cap) > _MOST_LISTED:
            raise InputError(
                "--rows: too many users to list; instead give --delta and --rate "
                f"{at_most(asked.rate or (asked.batch or 1) / rows, 6)}, of which all follows"
            )


def _mechanism(asked: Asked) -> Mechanism:
    """Build the mechanism; the fewest steps stand in for steps that are to be found."""
    kind = mechanisms.find(asked.process)
    batch = asked.batch or (asked.rate or 1.0) * (asked.population or 1)
    settings = DrawSettings(
        asked.sampling,
        asked.adjacency,
        batch,
        asked.max_batch,
        asked.rate,
        asked.steps,
        asked.bands,
        asked.buffers,
        0.5 if asked.unknown == "delta" else asked.delta,  # a delta that is found from literals is a literal
        asked.rows_per_unit or 1,
    )
    for key, sentence in kind.draw_errors(settings):
        raise InputError(f"{key}: {sentence}")
    own = {each.name for each in fields(kind)}
    values = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name in own}
    if asked.histograms is not None:
        values["histograms"] = Histograms(("conditions",), asked.histograms)  # of two, the cost is the same
    return kind(**values | {"steps": asked.steps or asked.bands})


def _shape(asked: Asked) -> Shape:
    """Make up data of these counts. If there are none, one unit stands for all: rate and delta are stated then."""
    cap = asked.rows_per_unit
    if cap is not None:
        rows = asked.rows or cap
        units = asked.units or -(-rows // cap)
        return Shape(_rows_of(units, rows, cap), rows, 0, True)
    many = (asked.rows if asked.draws_rows else asked.units) or 1
    return Shape(np.broadcast_to(np.int64(1), many), asked.rows or many, 0, True)


def _rows_of(units: int, rows: int, cap: int) -> np.ndarray:
    """Return rows of each unit, at least 1 and at most `cap`, of which the first ones have as many as there can be."""
    full, rest = divmod(rows - units, cap - 1) if cap > 1 else (0, 0)
    counts = np.ones(units, np.int64)
    counts[:full] = cap
    if rest:
        counts[full] += rest
    return counts


def _assumptions(
    asked: Asked, setting: CalibratedMechanism, curve: PrivacyProfile
) -> Iterator[tuple[str, str]]:
    """Yield what the numbers rest on, as a claim states it."""
    mechanism, parameters = setting.mechanism, setting.parameters
    rate, what = parameters.sampling.rate, "row" if asked.draws_rows else "unit"
    draw = f"each {what} with probability {at_most(rate, 6)}, independently of the others"
    if asked.sampling == "bins":
        kept = "" if mechanism.correlation.is_independent else ", the same one in each"
        draw += f"; it takes part in exactly one step of every {bins_of(rate)}, which are an epoch{kept}"
        if rest := mechanism.steps % bins_of(rate):
            draw += f"; of the last {rest}, which are no whole epoch, in one or none"
        if asked.rate is not None and not math.isclose(asked.rate, rate, rel_tol=0.01):
            draw += " (the rate that was asked for makes no whole number of steps)"
    if asked.max_batch is not None:
        draw += f"; a step of more than {asked.max_batch:,} is drawn anew"
    if asked.population is not None:
        draw += f": {at_most(parameters.mean_rate * asked.population, 6)} of {asked.population:,} on average"
    yield "one unit", mechanism.unit.partition(":")[0]
    if asked.rows_per_unit is not None:
        yield "its rows", f"at most {parameters.rows_per_unit:,} in use, each clipped on its own"
    yield "adjacency", f"{mechanism.adjacency}: compares {WORLDS[mechanism.adjacency]}"
    yield "sampling", f"{asked.sampling}: a step draws {draw}"
    if not mechanism.correlation.is_independent:
        yield (
            "noise",
            f"correlated over {mechanism.correlation.over}; its multiplier is relative to the distance by which one "
            f"clipped gradient moves the release, {at_least(mechanism.sensitivity, 6)} clip norms"
            f"{' with adamw (sgd has other coefficients)' if asked.bands > 1 else ''}",
        )
    if mechanism.histograms is not None:
        yield (
            "histograms",
            f"counted once, with noise multiplier {at_least(mechanism.histograms.noise_multiplier, 6)}: its unit is "
            "what one unit may add to all of them",
        )
    yield "delta", _delta_in_words(asked, parameters.rows, parameters.units)
    if asked.trials is not None:
        yield (
            "sweep",
            f"the best of {asked.trials:g} trials on average is released, and the whole sweep counted",
        )
    yield "process", parameters.process.describe()
    yield "accountant", curve.accountant


def _delta_in_words(asked: Asked, rows: int, units: int) -> str:
    if asked.unknown == "delta":
        return "found"
    if asked.delta is not None:
        return "as stated"
    if asked.process == "uls" and asked.rows is None:
        return f"the default for {units:,} units of one row each; a run with more rows has a smaller one (--rows)"
    return f"the default for {rows:,} rows in use"


def drawn(found: Account) -> str:
    """Draw the curve: epsilon by delta, with the answer on it, and what the best test finds.

    Raises:
        InputError: nothing is protected, so there is no curve.
    """
    if not math.isfinite(found.epsilon):
        raise InputError(f"--plot: there is nothing to draw. {found.answer}")
    name, answer = "of the run", f"epsilon {at_most(found.epsilon)} at delta {at_most(found.delta, 3)}"
    deltas = np.geomspace(min(1e-12, found.delta), max(1e-1, found.delta), 61)
    epsilons = [(float(delta), found.profile.epsilon(float(delta))) for delta in deltas]
    fprs = np.geomspace(1e-4, 1.0, 61)
    rates = [(float(fpr), float(found.profile.true_positive_rate(fpr))) for fpr in fprs]
    return panels_svg(
        f"{found.steps:,} steps of {found.asked.process}, noise multiplier {at_least(found.noise_multiplier, 5)}",
        [
            Panel(
                "Epsilon by delta",
                "delta",
                "epsilon at most",
                {
                    name: [point for point in epsilons if math.isfinite(point[1])],
                    answer: [(found.delta, found.epsilon)],
                },
                log_x=True,
                decades=True,
                above=(name, answer),
            ),
            Panel(
                "Is a unit in it? The best test",
                "false positives",
                "true positives at most",
                {name: rates, "blind guess": [(fpr, fpr) for fpr, _ in rates]},
                log_x=True,
                decades=True,
                above=(name,),
                dashed=("blind guess",),
            ),
        ],
    )
