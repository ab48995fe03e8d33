"""The call about leases on a real broker and a real Redis."""

from uuid import uuid4

import pytest

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.errors import InvalidRequest
from shared.messages import LeaseClaim, LeaseHeld
from tests.kits.kvstate.service import running
from tests.kits.waiting import PATIENCE_S


async def claim(bus: Bus, holder: str, ttl_ms: int, name: str = "models") -> LeaseHeld:
    asked = LeaseClaim(name=name, holder=holder, ttl_ms=ttl_ms)
    return await call(bus, subjects.LEASE, asked, LeaseHeld, timeout_s=PATIENCE_S)


async def test_a_lease_outlives_the_service_that_gave_it(
    nats_url: str, redis_url: str, nats_bus: Bus
) -> None:
    first, second = f"a-{uuid4().hex}", f"b-{uuid4().hex}"
    async with running(nats_url, redis_url):
        taken = await claim(nats_bus, first, 60_000)
        assert taken.holder == first
    async with running(nats_url, redis_url):
        held = await claim(nats_bus, second, 60_000)
        assert (held.holder, held.epoch) == (first, taken.epoch)
        assert (await claim(nats_bus, first, 0)).holder == ""
        assert (await claim(nats_bus, second, 60_000)).epoch > taken.epoch
        await claim(nats_bus, second, 0)
        with pytest.raises(InvalidRequest, match="name"):
            await claim(nats_bus, second, 1000, name="No such:name")
