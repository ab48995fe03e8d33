"""A router that has just started says so, and callers that look for a model ask it again."""

import asyncio

import pytest

from services.router.constants import RouterConstants
from shared.bus.nats import NatsBus
from shared.client import ModelsClient
from shared.errors import ModelNotFound, Unavailable
from tests.kits.router.agent import HostAgent
from tests.kits.router.hosts import GIB, offer
from tests.kits.router.live import router
from tests.kits.waiting import until


async def test_a_host_that_reports_late_is_waited_for(nats_url: str, nats_bus: NatsBus) -> None:
    agent = HostAgent(nats_bus, "late-host", [offer("late")], 4 * GIB, 0.2)
    async with router(nats_url, reconnect_s=RouterConstants().reconnect_s) as service:
        client = ModelsClient(nats_bus)
        assert service.status().detail["models"] == {}
        finding = asyncio.create_task(client.find_model("late"))
        listing = asyncio.create_task(client.list_models())
        await asyncio.sleep(0.3)
        assert not finding.done()
        assert not listing.done()
        await agent.start()
        try:
            assert (await finding).card.name == "late"
            assert [one.card.name for one in await listing] == ["late"]
            with pytest.raises(ModelNotFound, match="models that are: late"):
                await client.find_model("none")
        finally:
            await agent.stop()


async def test_without_a_host_it_is_said_when_the_router_has_listened_for_long_enough(
    nats_url: str, nats_bus: NatsBus
) -> None:
    async with router(nats_url, reconnect_s=0.5) as service:
        client = ModelsClient(nats_bus)
        with pytest.raises(Unavailable) as refused:
            await client.find_model("any")
        assert refused.value.data["reason"] == "no_host"
        await until(lambda: service.status().detail["models"] == {})
        assert await client.list_models() == []
