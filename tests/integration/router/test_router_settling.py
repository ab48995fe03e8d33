"""A router that has just started says so, and callers that look for a model ask it again."""

import asyncio

import pytest

from shared.bus.nats import NatsBus
from shared.client import ModelsClient
from shared.client.calls import models_client
from shared.errors import Unavailable
from tests.kits.router.agent import HostAgent
from tests.kits.router.hosts import GIB, offer
from tests.kits.router.live import router
from tests.kits.waiting import PATIENCE_S


async def test_a_host_that_reports_late_is_waited_for(
    nats_url: str, nats_bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_client, "SETTLE_S", PATIENCE_S)
    agent = HostAgent(nats_bus, "late-host", [offer("late")], 4 * GIB, 0.2)
    async with router(nats_url, reconnect_s=PATIENCE_S):
        client = ModelsClient(nats_bus)
        finding = asyncio.create_task(client.find_model("late"))
        listing = asyncio.create_task(client.list_models())
        await asyncio.sleep(0.3)
        assert not finding.done()
        assert not listing.done()
        await agent.start()
        try:
            assert (await finding).card.name == "late"
            assert [one.card.name for one in await listing] == ["late"]
        finally:
            await agent.stop()


async def test_without_a_host_it_is_said_when_the_router_has_listened_for_long_enough(
    nats_url: str, nats_bus: NatsBus
) -> None:
    async with router(nats_url, reconnect_s=0.5):
        client = ModelsClient(nats_bus)
        with pytest.raises(Unavailable) as refused:
            await client.find_model("any")
        assert refused.value.data["reason"] == "no_host"
        assert await client.list_models() == []
