"""Processes, curves and calibration. Knows nothing of mechanisms, models or data."""

from confide.accounting.calibration import least_noise, least_noise_for_kl, least_noise_for_reconstruction
from confide.accounting.curves import Curve, Direction, compose
from confide.accounting.processes import (
    GroupOf,
    MixtureOfGaussians,
    Process,
    TruncatedPoisson,
    delta_default,
)

__all__ = [
    "Curve",
    "Direction",
    "GroupOf",
    "MixtureOfGaussians",
    "Process",
    "TruncatedPoisson",
    "compose",
    "delta_default",
    "least_noise",
    "least_noise_for_kl",
    "least_noise_for_reconstruction",
]
