"""How many calls of a kind run at once."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.handlers import AT_ONCE, Handlers
from services.kvstate.metrics import Metrics
from shared.bus.memory import MemoryBus


@pytest.mark.parametrize(("name", "expected"), [("list", AT_ONCE["list"]), ("get", 10)])
async def test_expensive_calls_wait_for_each_other(name: str, expected: int) -> None:
    bus, running, most = MemoryBus(), 0, 0

    async def call(_: bytes) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return b""

    handlers = Handlers(bus, Metrics(CollectorRegistry()))
    await handlers.start([(name, "calls", call)])
    await asyncio.gather(*(bus.request("calls", b"", timeout_s=5) for _ in range(10)))
    await handlers.stop()
    assert most == expected
