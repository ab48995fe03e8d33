"""The calls about responses on a real broker and a real Redis."""

from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import RateLimited, RequestTooLarge, ResponseNotFound
from shared.lifecycle import Service
from shared.messages import ResponseName, ResponseRecord
from tests.kits.kvstate.service import new_tenant, running
from tests.kits.waiting import PATIENCE_S


@pytest.fixture
async def kvstate(nats_url: str, redis_url: str) -> AsyncIterator[Service]:
    limits = {"session_max_bytes": 100_000, "response_bytes_per_tenant": 2**20}
    async with running(nats_url, redis_url, **limits) as service:
        yield service


def response(
    tenant: str, name: str, parent: str = "", text: str = "hi", *, ended: bool = True
) -> ResponseRecord:
    return ResponseRecord(
        response_id=name, tenant=tenant, model="m", parent=parent, ended=ended, input_items=f'["{text}"]'
    )


async def test_a_conversation_is_put_read_and_deleted(kvstate: Service, nats_bus: Bus) -> None:
    tenant, client = new_tenant(), ResponsesClient(nats_bus, owner="a", timeout_s=PATIENCE_S, lease_ms=15_000)
    long = "x" * 60_000  # so that the chain does not fit into one answer
    names = [f"resp_{number}" for number in range(12)]
    for number, name in enumerate(names):
        parent = names[number - 1] if number else ""
        assert await client.put(response(tenant, name, parent, long), is_new=True)
    found = await client.chain(tenant, names[-1], 10_000_000)
    assert [one.response_id for one in found] == names
    assert found[3] == response(tenant, "resp_3", "resp_2", long)
    with pytest.raises(RequestTooLarge):
        await client.chain(tenant, names[-1], 100_000)
    assert not (await client.get(tenant, "resp_3")).abandoned
    await client.delete(tenant, "resp_3")
    for ask in (
        client.get(tenant, "resp_3"),
        client.chain(tenant, names[-1], 10**7),
        client.delete("x", "resp_1"),
    ):
        with pytest.raises(ResponseNotFound):
            await ask


async def test_limits_are_reported(kvstate: Service, nats_bus: Bus) -> None:
    tenant, client = new_tenant(), ResponsesClient(nats_bus, owner="a", timeout_s=PATIENCE_S, lease_ms=15_000)
    for size in (150_000, 1_500_000):  # over the store's limit, and over that of a message
        with pytest.raises(RequestTooLarge, match="store: false"):
            await client.put(response(tenant, "large", text="x" * size), is_new=True)
    for number in range(11):
        await client.put(response(tenant, f"r{number}", text="x" * 90_000, ended=False), is_new=True)
    with pytest.raises(RateLimited, match="RYZ_RESPONSE_BYTES_PER_TENANT"):  # none of them has ended
        await client.put(response(tenant, "last", text="x" * 90_000), is_new=True)


async def test_a_response_without_an_owner_is_claimed_once(kvstate: Service, nats_bus: Bus) -> None:
    tenant, first = (
        new_tenant(),
        ResponsesClient(nats_bus, owner="first", timeout_s=PATIENCE_S, lease_ms=60_000),
    )
    second, third = (
        ResponsesClient(nats_bus, owner=name, timeout_s=PATIENCE_S, lease_ms=60_000)
        for name in ("second", "third")
    )
    await first.put(response(tenant, "r", ended=False), is_new=True)
    assert not await second.lease(tenant, "r")
    assert await first.lease(tenant, "r", gives_back=True)
    assert (await second.get(tenant, "r")).abandoned
    assert await second.claim(16) == [ResponseName(tenant=tenant, response_id="r")]
    assert await third.claim(16) == []
    assert await second.put(response(tenant, "r"), is_new=False)
    assert not await first.put(response(tenant, "r", text="other"), is_new=False)
    assert not await first.lease(tenant, "r", takes_over=True)
