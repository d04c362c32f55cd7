"""Make values fit for JSON."""

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value of lists, dicts and numbers in which infinite numbers are text such as "inf": JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value
