"""The one error of all benchmarks, their callback for progress, percentiles and spreads."""

import math
from collections.abc import Callable, Sequence
from statistics import median

Progress = Callable[[str], None]  # called at the beginning of each step with what it does
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}  # what every bench tells of times


class BenchError(Exception):
    """A measurement gave no figures; the text says why, and what to change where the caller can."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values; NaN of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def percentiles(
    values: Sequence[float], name: str, unit: str = "ms", *, scale: float = 1e3, digits: int = 4
) -> dict[str, float]:
    """Return the 50th, 95th and 99th percentiles as fields of a report, such as `ttft_p95_ms`; NaN of none.

    Args:
        name: First part of the fields; may be empty.
        unit: Their last part.
        scale: How many of that unit are one of `values`.
        digits: Decimals that are kept.
    """
    ordered, first = sorted(values), f"{name}_" if name else ""
    return {
        f"{first}{which}_{unit}": round(percentile(ordered, share) * scale, digits)
        for which, share in SHARES.items()
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th and 99th percentile and largest value, rounded; zeros of none."""
    ordered = sorted(values) or [0.0]
    figures = {name: percentile(ordered, share) for name, share in SHARES.items()}
    figures |= {"p50": median(ordered), "max": ordered[-1]}
    return {name: round(value, 3) for name, value in figures.items()}


def milliseconds(seconds: float, digits: int = 4) -> float:
    """Return seconds as rounded milliseconds."""
    return round(seconds * 1e3, digits)
