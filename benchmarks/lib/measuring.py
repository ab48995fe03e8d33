"""The one error of all benchmarks, their callback for progress, percentiles and spreads."""

import math
from collections.abc import Callable, Sequence
from statistics import median

Progress = Callable[[str], None]  # called at the beginning of each step with what it does


class BenchError(Exception):
    """A measurement gave no figures; the text says why, and what to change where the caller can."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values; NaN of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest value, rounded; zeros of none."""
    ordered = sorted(values) or [0.0]
    figures = {"p50": median(ordered), "p99": percentile(ordered, 0.99), "max": ordered[-1]}
    return {name: round(value, 3) for name, value in figures.items()}


def milliseconds(seconds: float, digits: int = 4) -> float:
    """Return seconds as rounded milliseconds."""
    return round(seconds * 1e3, digits)
