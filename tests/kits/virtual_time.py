"""Runs a coroutine on a virtual clock: where nothing is ready, time goes on to the next timer at once.

For timing that a test states exactly: a machine without a free core does not change what is due when.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Advances its clock where a real one would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0.0)
        if not ready and timeout is not None:
            self.now_s += max(0.0, timeout)
        return ready


def _virtual_loop() -> asyncio.AbstractEventLoop:
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    return loop


def run_in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Runs it to its end."""
    with asyncio.Runner(loop_factory=_virtual_loop) as runner:
        runner.run(main)
