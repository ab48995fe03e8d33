"""Measures for longer where a busy machine gave too few answers in a short time."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from benchmarks.lib.measuring import BenchError

T = TypeVar("T")
FACTORS = (1, 8, 64)


async def long_enough(
    measure: Callable[[float], Awaitable[T]], seconds: float, enough: Callable[[T], bool] = bool
) -> T:
    """The first measurement that gives enough figures, of times up to 64 times as long.

    Args:
        measure: Measures for so many seconds, with a server of its own.
        seconds: The shortest time, enough for an idle machine.
        enough: Whether the figures are enough.

    Raises:
        BenchError: The longest time gave no figures.
    """
    for factor in FACTORS[:-1]:
        try:
            found = await measure(factor * seconds)
        except BenchError:
            continue
        if enough(found):
            return found
    return await measure(FACTORS[-1] * seconds)
