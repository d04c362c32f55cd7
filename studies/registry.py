"""The studies by name, in the order of the papers. A new study is a file with a `STUDY` and a line here."""

import difflib
from importlib import import_module

from confide.utils.errors import InputError
from studies.runner.study import Study

_MODULES = {
    "user-statistics": "user_statistics",
    "group-or-user": "group_or_user",
    "user-selection": "user_selection",
    "user-k": "user_k",
    "clip-norm": "clip_norm",
    "adapters": "adapters",
    "model-sizes": "model_sizes",
    "els-uls": "els_uls",
    "group-size": "group_size",
    "cohorts": "cohorts",
    "users-what-if": "users_what_if",
    "personalisation": "personalisation",
    "step-time": "step_time",
    "concentration": "concentration",
    "enron-cleaning": "enron_cleaning",
    "accountants": "accountants",
    "noise-variance": "noise_variance",
    "mean-estimation": "mean_estimation",
    "adaptive": "adaptive",
    "exposure": "exposure",
    "secret-protection": "secret_protection",
    "blow-up": "blow_up",
    "extraction": "extraction",
    "dp-sgd-grid": "dp_sgd_grid",
    "mask-token": "mask_token",
    "selective": "selective",
    "selective-imperfect": "selective_imperfect",
    "selective-classes": "selective_classes",
    "membership": "membership",
    "exposure-course": "exposure_course",
    "user-inference": "user_inference",
    "synthetic": "synthetic",
    "user-level": "user_level",
    "users-needed": "users_needed",
    "recipe": "recipe",
    "rows-or-chunks": "rows_or_chunks",
    "suggestion": "suggestion",
    "optimisers": "optimisers",
    "schedules": "schedules",
    "rate-factors": "rate_factors",
    "scales": "scales",
    "bands": "bands",
    "audit": "audit",
    "owners": "owners",
    "code-base": "code_base",
}


def names() -> list[str]:
    """Return the names of all studies."""
    return list(_MODULES)


def study(name: str) -> Study:
    """Return a study.

    Raises:
        InputError: there is none of this name.
    """
    if name not in _MODULES:
        near = difflib.get_close_matches(name, _MODULES, 1, 0.5)
        raise InputError(
            f"there is no study {name!r}"
            + (f", did you mean {near[0]}?" if near else f": `--list` shows them ({', '.join(_MODULES)})")
        )
    found: Study = import_module(f"studies.{_MODULES[name]}").STUDY
    return found
