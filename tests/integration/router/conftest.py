"""Fixtures: a unique model for each test, a caller that requests it, and two leaders that serve it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from shared.bus.nats import NatsBus
from tests.kits.router.live import Caller, Leader


@pytest.fixture
def model_name() -> str:
    return f"m-{uuid4().hex[:8]}"


@pytest.fixture
async def caller(nats_bus: NatsBus, model_name: str) -> Caller:
    caller = Caller(nats_bus, model_name)
    await caller.start()
    return caller


@pytest.fixture
async def leaders(nats_bus: NatsBus, model_name: str) -> AsyncIterator[list[Leader]]:
    made = [Leader(nats_bus, f"{model_name}-g{i}", model_name) for i in range(2)]
    for leader in made:
        await leader.start()
    yield made
    for leader in made:
        await leader.stop()
