"""Write the config's JSON Schema, by which editors complete keys, explain them and mark mistakes.

`python -m confide.config.json_schema > src/confide/bundled/confide.schema.json` makes the one that is shipped.
"""

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from confide.config import registry
from confide.config.sections import schema_of_all

FILE = "confide.schema.json"
SHIPPED = files("confide").joinpath("bundled", FILE)
"""The schema of confide without other packages: making it imports every mechanism, which takes seconds."""


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of all keys that a config may hold.

    It holds the sections of every mechanism and detector side by side, those of other packages too. Rules about several
    keys together are not in it: `confide plan` checks them.
    """
    schema = schema_of_all().model_json_schema()
    _name(schema["properties"]["task"], registry.TASKS)
    _name(schema["$defs"]["Privacy"]["properties"]["mechanism"], registry.MECHANISMS)
    readers = ["auto", *registry.READERS, *registry.readers.plugins()]
    _name(schema["$defs"]["Data"]["properties"]["format"], readers)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "confide config"}


def _name(field: dict[str, Any], names: Iterable[str]) -> None:
    """Let a field take these names alone."""
    field["enum"] = list(names)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
