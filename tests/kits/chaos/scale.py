"""How long chaos tests are: short in `make test`, in full in `make chaos` (`RYZ_CHAOS=full`)."""

import os
from typing import TypeVar

T = TypeVar("T")
full = os.environ.get("RYZ_CHAOS") == "full"


def scaled(short: T, long: T) -> T:
    """The one of the two that this run is to have."""
    return long if full else short
