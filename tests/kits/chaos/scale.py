"""The length of long tests: short in `make test`, full in `make chaos` (`RYZ_CHAOS=full`)."""

import os
from typing import TypeVar

T = TypeVar("T")
full = os.environ.get("RYZ_CHAOS") == "full"


def scaled(short: T, long: T) -> T:
    """The value for this run's length."""
    return long if full else short
