"""Waits for a condition, with a timeout."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 120.0  # ends a test that hangs; what is waited for takes milliseconds on an idle machine


async def until(true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Returns as soon as `true()` holds; fails with `TimeoutError` after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (what is watched has no event)
            await asyncio.sleep(0.005)
