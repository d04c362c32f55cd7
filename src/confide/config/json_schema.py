"""Write the config's JSON Schema, by which editors complete keys, explain them and mark mistakes."""

from typing import Any

from confide.config import registry
from confide.config.schema import Config
from confide.config.sections import schema_of

FILE = "confide.schema.json"


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of all keys that a config may hold.

    It holds the sections of every mechanism and detector side by side, those of other packages too. Rules about several
    keys together are not in it: `confide plan` checks them.
    """
    detectors = [*registry.DETECTORS, *registry.detectors.plugins()]
    with_section = tuple(name for name in detectors if registry.detectors.get(name, object).has_section)
    schema = schema_of(None, with_section, with_section).model_json_schema()
    for name in registry.MECHANISMS:
        section = registry.section(name)
        own = schema_of(name)
        if section in own.model_fields and section not in Config.model_fields:
            found = own.model_json_schema()
            schema["properties"][section] = found["properties"][section]
            schema["$defs"] = found["$defs"] | schema["$defs"]
    _name(schema["properties"]["task"], registry.TASKS)
    _name(schema["$defs"]["Privacy"]["properties"]["mechanism"], registry.MECHANISMS)
    readers = ["auto", *registry.READERS, *registry.readers.plugins()]
    _name(schema["$defs"]["Data"]["properties"]["format"], readers)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "confide config"}


def _name(field: dict[str, Any], names: Any) -> None:
    """Let a field take these names alone."""
    field["enum"] = list(names)
