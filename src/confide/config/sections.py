"""The schema of one config: the keys common to all, and the sections of its mechanism and its detectors."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model

from confide.config import registry
from confide.config.schema import Config, Detector, Policy, Privacy, Secrets
from confide.config.train_section import Train


def schema_for(raw: Mapping[str, Any]) -> type[Config]:
    """Build the config's schema, with the own sections of its mechanism and its detectors."""
    privacy, secrets = raw.get("privacy"), raw.get("secrets")
    name = privacy.get("mechanism") if isinstance(privacy, Mapping) else None
    of_secrets = secrets.get("detector") if isinstance(secrets, Mapping) else None
    return schema_of(
        name if isinstance(name, str) and name in registry.MECHANISMS else None,
        _detectors(raw.get("detector")),
        _detectors(of_secrets),
    )


def _detectors(section: Any) -> tuple[str, ...]:
    """Return the detectors that a section `detector` of the config names and that have a section of their own."""
    keys = set(section) - set(Policy.model_fields) if isinstance(section, Mapping) else set()
    names = {registry.section(name): name for name in registry.DETECTORS}
    if keys - set(names):
        names |= {registry.section(name): name for name in registry.detectors.plugins()}
    named = [name for key, name in names.items() if key in keys]
    return tuple(name for name in named if registry.detectors.get(name, object).has_section)


@functools.cache
def schema_of(
    mechanism: str | None, detectors: tuple[str, ...] = (), of_secrets: tuple[str, ...] = ()
) -> type[Config]:
    """Build the schema of configs with this mechanism and these detectors.

    The `Settings` of each become a section of its name.

    Args:
        mechanism: one of the registry's.
        detectors: those with a section in `detector`.
        of_secrets: those with a section in `secrets.detector`.
    """
    own = {} if mechanism is None else _section(mechanism)
    # If no detector has a section, the class stays unchanged: objects of one class are compared by their values.
    if detectors:
        own["detector"] = _wider(Config, "detector", _with_sections(Policy, detectors))
    if of_secrets:
        inner = _wider(Secrets, "detector", _with_sections(Detector, of_secrets))
        own["secrets"] = _wider(Config, "secrets", create_model("Secrets", __base__=Secrets, detector=inner))
    return create_model("Config", __base__=Config, **own) if own else Config


def schema_of_all() -> type[Config]:
    """Build a schema with the sections of every mechanism and every detector, those of other packages too."""
    detectors = [*registry.DETECTORS, *registry.detectors.plugins()]
    with_section = tuple(name for name in detectors if registry.detectors.get(name, object).has_section)
    own: dict[str, Any] = {}
    for mechanism in registry.MECHANISMS:
        own |= _section(mechanism)
    return create_model("Config", __base__=schema_of(None, with_section, with_section), **own)


def _section(mechanism: str) -> dict[str, Any]:
    """Return the field for a mechanism's own settings, by its key; empty if it has none."""
    settings = registry.mechanism(mechanism).Settings
    if settings is None:
        return {}
    _check_settings(mechanism, settings)
    section = Field(default_factory=settings, description=f"mechanism {mechanism}")
    return {registry.section(mechanism): (settings, section)}


def _wider(model: type[BaseModel], key: str, section: type[BaseModel]) -> Any:
    """Return the field `key` of a model with a subclass as its section; the default is the section as it was."""
    field = model.model_fields[key]
    assert field.default_factory is not None
    return section, Field(default_factory=field.default_factory, description=field.description)


def _with_sections(base: type[Detector], detectors: tuple[str, ...]) -> type[BaseModel]:
    """Build a section `detector` that holds those of detectors. A detector's section has no default."""
    own: dict[str, Any] = {}
    for name in detectors:
        key, found = registry.section(name), registry.detectors.get(name, object)
        if key in Policy.model_fields:
            raise TypeError(f"detector {name}: `detector` has a key of this name already")
        own[key] = (found.Settings, Field(description=f"detector {name}"))
    return create_model(base.__name__, __base__=base, **own)


def _check_settings(mechanism: str, settings: type[BaseModel]) -> None:
    """Check that a mechanism reads all of its own settings, and that each has one place."""
    if registry.section(mechanism) in Config.model_fields:
        raise TypeError(f"mechanism {mechanism}: the config has a section of this name already")
    taken = {*Train.model_fields, *Privacy.model_fields}
    known = {field.name for field in dataclasses.fields(registry.mechanism(mechanism))}
    for key in settings.model_fields:
        if key in taken or key not in known:
            why = "is a key of train or privacy" if key in taken else "is no field of the mechanism"
            raise TypeError(f"mechanism {mechanism}: {key} of its Settings {why}")
