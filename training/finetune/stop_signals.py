"""SIGINT and SIGTERM end a training after the step that runs; a second one ends it at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Give a function that says whether a signal has come.

    Args:
        on_first: Called in the handler of the first one.
    """
    seen = 0

    def count(number: int, _: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        on_first()

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: seen > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
