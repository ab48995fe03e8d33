"""Waits for a condition, with a timeout."""

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 120.0  # ends a test that hangs; what is waited for takes milliseconds on an idle machine


async def until(
    true: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENCE_S, *, every_s: float = 0.005
) -> None:
    """Returns as soon as `true()` holds; fails with `TimeoutError` after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = true()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(every_s)


def wait_for(condition: Callable[[], bool], what: str = "a condition", timeout_s: float = PATIENCE_S) -> None:
    """Waits, without an event loop, until the condition holds; fails with the words given."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
