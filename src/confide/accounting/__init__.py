"""Processes, curves and calibration. Knows nothing of mechanisms, models or data."""

from confide.accounting.calibration import (
    least_noise,
    least_noise_for_kl,
    least_noise_for_reconstruction,
    nearly_least_noise,
)
from confide.accounting.curves import Curve, Direction, between, compose
from confide.accounting.filter import RenyiBudget, RenyiFilter, SampledGaussian, Scaled
from confide.accounting.phases import After, Untouched
from confide.accounting.population import Population, Targets
from confide.accounting.processes import (
    GroupOf,
    MixtureOfGaussians,
    Process,
    TruncatedPoisson,
    delta_default,
)
from confide.accounting.repetition import Repeated, Trials
from confide.accounting.replacement import Exchanged, Replacement, replaced
from confide.accounting.stairs import Accountant, achieved, least_noise_for_secrets

__all__ = [
    "Accountant",
    "After",
    "Curve",
    "Direction",
    "Exchanged",
    "GroupOf",
    "MixtureOfGaussians",
    "Population",
    "Process",
    "RenyiBudget",
    "RenyiFilter",
    "Repeated",
    "Replacement",
    "SampledGaussian",
    "Scaled",
    "Targets",
    "Trials",
    "TruncatedPoisson",
    "Untouched",
    "achieved",
    "between",
    "compose",
    "delta_default",
    "least_noise",
    "least_noise_for_kl",
    "least_noise_for_reconstruction",
    "least_noise_for_secrets",
    "nearly_least_noise",
    "replaced",
]
