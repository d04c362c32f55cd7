"""Processes, curves and calibration. This package knows nothing of mechanisms, models or data."""

from confide.privacy.accounting.bins import BallsInBins
from confide.privacy.accounting.calibration import (
    least_noise,
    least_noise_for_kl,
    least_noise_for_reconstruction,
    most_steps,
    nearly_least_noise,
)
from confide.privacy.accounting.curves import Direction, PrivacyProfile, between, compose
from confide.privacy.accounting.filter import RenyiBudget, RenyiFilter, SampledGaussian, Scaled
from confide.privacy.accounting.fixed_bins import FixedBins
from confide.privacy.accounting.pairs import (
    DominatingPair,
    GroupOf,
    MixtureOfGaussians,
    delta_default,
)
from confide.privacy.accounting.phases import After, Untouched
from confide.privacy.accounting.population import Population, Targets
from confide.privacy.accounting.repetition import Repeated, Trials
from confide.privacy.accounting.replacement import Exchanged, Replacement, replaced
from confide.privacy.accounting.stairs import Accountant, achieved, least_noise_for_secrets

__all__ = [
    "Accountant",
    "After",
    "BallsInBins",
    "Direction",
    "DominatingPair",
    "Exchanged",
    "FixedBins",
    "GroupOf",
    "MixtureOfGaussians",
    "Population",
    "PrivacyProfile",
    "RenyiBudget",
    "RenyiFilter",
    "Repeated",
    "Replacement",
    "SampledGaussian",
    "Scaled",
    "Targets",
    "Trials",
    "Untouched",
    "achieved",
    "between",
    "compose",
    "delta_default",
    "least_noise",
    "least_noise_for_kl",
    "least_noise_for_reconstruction",
    "least_noise_for_secrets",
    "most_steps",
    "nearly_least_noise",
    "replaced",
]
