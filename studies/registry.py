"""The studies by name, in the order of the papers. A new study is a file with a `STUDY` and a line here."""

from importlib import import_module

from confide.utils.errors import InputError
from studies.runner.study import Study

_MODULES = {
    "user-statistics": "user_statistics",
    "group-or-user": "group_or_user",
    "user-selection": "user_selection",
    "user-k": "user_k",
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
    "blow-up": "blow_up",
    "user-inference": "user_inference",
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
        raise InputError(f"there is no study {name!r}: {', '.join(_MODULES)}")
    found: Study = import_module(f"studies.{_MODULES[name]}").STUDY
    return found
