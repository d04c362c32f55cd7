"""Define the class of every section of the config, and types that several sections use."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_BUFFERS = 16
"""So many buffers of past noise reach some 400 steps back."""

Share = Annotated[float, Field(ge=0, lt=1)]

UNSHOWN = "unshown"
"""The type of a fault whose message says it all: the value, which may be a secret, is not shown."""


class Section(BaseModel):
    """A section of the config. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
