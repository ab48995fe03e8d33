"""Waiting for something to become true, within a bound."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 20.0  # a bound for what takes milliseconds on a machine that is not busy


async def until(true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Returns as soon as `true()` holds; fails with `TimeoutError` after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (what is watched has no event)
            await asyncio.sleep(0.005)
