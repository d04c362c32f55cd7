"""Write an entry for the OpenDP deployments registry.

The registry collects what organisations say of their deployments of differential privacy. Its schema is that of
https://github.com/opendp/deployments-registry-data (`schemas/deployments-schema.yaml`).
"""

import math
import re
from datetime import date
from typing import Any

import yaml

from confide import __version__
from confide.privacy.guarantee import Guarantee
from confide.reporting.facts import Facts
from confide.utils.errors import InputError
from confide.utils.rounding import at_least
from confide.utils.sentences import bare, capital

OPEN = "FILL IN"
"""What those who publish must write themselves, since a run does not know it."""


def entry(facts: Facts) -> str:
    """Return the entry, as YAML.

    Raises:
        InputError: nothing is claimed, so there is nothing to register.
    """
    if facts.guarantee.notion == "none":
        raise InputError("--registry: this run claims no privacy, so there is nothing to register")
    return yaml.safe_dump(values(facts), sort_keys=False, allow_unicode=True, width=100)


def values(facts: Facts, published: date | None = None) -> dict[str, Any]:
    """Return the entry's values, of tier 3.

    Args:
        published: when the model is published; today if None.
    """
    g = facts.guarantee
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "_", facts.name.lower()).strip("_") or "model",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"{OPEN}: the name of the model",
                "data_curators": [f"{OPEN}: who publishes it"],
                "intended_use": f"{OPEN}: what the model is for",
                "data_product_type": "Machine learning model",
                "data_product_region": f"{OPEN}: where the text is from, or whose law applies",
                "description": "A language model fine-tuned on private text. " + " ".join(g.short()),
                "publication_date": (published or date.today()).isoformat(),
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if _is_plain(g) else "Custom",
                "data_domain": f"Sets of units. One unit is {bare(g.unit)}. {capital(bare(g.rows_cut))}.",
                "unprotected_quantities": _listed(g.public_facts),
            },
            "privacy_loss": {
                "privacy_unit": g.unit,
                "privacy_unit_details": (
                    f"{capital(g.adjacency)}: the claim compares {bare(g.worlds)}. A unit may contribute "
                    f"{bare(g.contribution)}."
                ),
                "privacy_parameters": _parameters(g),
                "privacy_parameters_details": " ".join([f"{g.notion}.", _status(g), *g.weakness()]),
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": f"{capital(bare(g.trust))}.",
                "release_type": "One release",
                "release_type_details": f"{capital(bare(g.protected_output))}.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Whatever is done with the released weights costs no further privacy.",
                "composition": (
                    f"{g.steps:,} steps, composed numerically by {g.accountant} {g.accountant_version}; "
                    f"sampling: {g.sampling}."
                ),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": f"Not covered by the claim: {_listed(g.not_covered)}",
                "mechanisms": (
                    "Gaussian noise on clipped sums, or as the accountant says. Noise multiplier: "
                    f"{at_least(g.noise_multiplier, 6)}. "
                    f"By confide {__version__}. Randomness: {bare(g.randomness)}."
                ),
                "justification": f"{OPEN}: why these values. Evidence so far: {_listed(g.evidence)}",
            },
            "administrative": {"registry_authors": [f"{OPEN}: who wrote this entry"]},
        },
    }


def _is_plain(g: Guarantee) -> bool:
    return g.notion in ("(epsilon, delta)-DP", "user-level DP", "multi-owner user-level DP")


def _parameters(g: Guarantee) -> dict[str, float]:
    if not math.isfinite(g.epsilon):
        return {}
    return {"epsilon": g.epsilon, "delta": g.delta}


def _status(g: Guarantee) -> str:
    if g.theorem:
        return "The parameters are proved bounds."
    return f"The parameters are an estimate, because {'; '.join(g.estimates)}."


def _listed(items: tuple[str, ...]) -> str:
    return "; ".join(map(bare, items)) + "."
