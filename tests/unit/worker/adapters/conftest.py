"""Fixtures of the tests of adapters in a worker group."""

from collections.abc import AsyncIterator

import pytest

from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    """A leader over the null engine, which holds nothing at the end of a test."""
    async with Kit(memory_bus) as kit:
        yield kit
        await kit.all_free()
