"""The one error of all benchmarks, their callback for progress, and percentiles."""

import math
from collections.abc import Callable, Sequence

Progress = Callable[[str], None]  # called at the beginning of each step with what it does


class BenchError(Exception):
    """A measurement gave no figures; the text says why, and what to change where the caller can."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values; NaN of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def milliseconds(seconds: float, digits: int = 4) -> float:
    """Return seconds as rounded milliseconds."""
    return round(seconds * 1e3, digits)
