"""Waits for a condition, with a timeout."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

PATIENCE_S = 120.0  # ends a test that hangs; what is waited for takes milliseconds on an idle machine
_FIRST_S, _GROWTH = 0.002, 1.15


def pauses(longest_s: float = 0.025) -> Iterator[float]:
    """Seconds to sleep between checks: a long wait checks more rarely, since each check takes CPU time."""
    pause_s = _FIRST_S
    while True:
        yield pause_s
        pause_s = min(_GROWTH * pause_s, longest_s)


async def until(
    true: Callable[[], bool | Awaitable[bool]],
    timeout_s: float | None = PATIENCE_S,
    *,
    longest_s: float = 0.025,
) -> None:
    """Returns as soon as `true()` holds; fails with `TimeoutError` after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        for pause_s in pauses(longest_s):
            holds = true()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(pause_s)


def wait_for(condition: Callable[[], bool], what: str = "a condition", timeout_s: float = PATIENCE_S) -> None:
    """Waits, without an event loop, until the condition holds; fails with the words given."""
    give_up = time.monotonic() + timeout_s
    for pause_s in pauses(longest_s=0.1):
        if condition():
            return
        assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what}"
        time.sleep(pause_s)
