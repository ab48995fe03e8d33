"""Every transport has the same keys, limits, sessions, names of models and errors: one core answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.gateway.transports import CHAT, TRANSPORTS, TransportAnswer
from tests.kits.servers import free_port
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY, OTHER = "secret-key-of-ada", "secret-key-of-bob"
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
# a caller on the bus is not seen to leave: its time limit ends the call
each_connection = pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name != "bus"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(
        api_keys=f"{KEY}:ada,{OTHER}:bob", grpc_port=free_port(), model_aliases="gpt=demo", max_concurrent=8
    ) as running:
        yield running


@each_transport
async def test_the_answer_is_counted_under_its_route_and_its_tenant(gateway: Gateway, transport: str) -> None:
    counted = {"route": CHAT, "status": "200"}
    before = gateway.metric("ryz_gateway_requests_total", **counted)
    assert (await TRANSPORTS[transport](gateway, key=KEY)).text == "".join(WORDS)
    await until(lambda: gateway.metric("ryz_gateway_requests_total", **counted) == before + 1)
    assert gateway.fleet.requests[-1].tenant == "ada"
    await gateway.wait_idle()


@each_transport
@pytest.mark.parametrize(("key", "code"), [("", "missing_api_key"), ("secret-key-of-eve", "invalid_api_key")])
async def test_a_key_is_needed(gateway: Gateway, transport: str, key: str, code: str) -> None:
    reported = await TRANSPORTS[transport](gateway, key=key)
    assert reported.code == code


@each_transport
async def test_a_session_is_named_by_its_header(gateway: Gateway, transport: str) -> None:
    reported = await TRANSPORTS[transport](gateway, key=KEY, session="talk-1")
    assert reported.session_id == "talk-1"
    session = gateway.fleet.requests[-1].session
    assert session is not None
    assert (session.session_id, session.given) == ("talk-1", True)


@each_transport
async def test_a_model_is_found_by_another_name(gateway: Gateway, transport: str) -> None:
    assert (await TRANSPORTS[transport](gateway, key=KEY, model="gpt")).text == "".join(WORDS)
    assert gateway.fleet.requests[-1].model == "demo"


@each_transport
async def test_errors_have_one_code_and_one_message(gateway: Gateway, transport: str) -> None:
    ask = TRANSPORTS[transport]
    missing = await ask(gateway, key=KEY, model="none")
    assert (missing.code, "'none'" in missing.message) == ("model_not_found", True)
    wrong = await ask(gateway, key=KEY, temperature=9)
    assert (wrong.code, wrong.message) == ("invalid_request", "`temperature` must be at most 2, got 9")
    costly = await ask(gateway, key=KEY, max_tokens=1_000_000)
    assert costly.code == "invalid_request"
    assert "entries, and" in costly.message
    late = await ask(gateway, key=KEY, model="fails-overloaded")
    assert late.code == "overloaded"
    await gateway.wait_idle()


@each_transport
async def test_a_tenant_has_its_share_of_the_slots(gateway: Gateway, transport: str) -> None:
    """`ada` takes half of the eight places: no transport lets it have one more, and `bob` is answered."""
    gateway.fleet.requests.clear()
    share = 4
    running = [
        asyncio.create_task(TRANSPORTS["http"](gateway, key=KEY, model="stuck", timeout=60.0))
        for _ in range(share)
    ]
    await gateway.fleet.wait_requests(share)
    refused = await TRANSPORTS[transport](gateway, key=KEY)
    assert refused.code == "rate_limited"
    assert (await TRANSPORTS[transport](gateway, key=OTHER)).text == "".join(WORDS)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await gateway.wait_idle()


@each_connection
async def test_a_caller_that_leaves_ends_its_generation(gateway: Gateway, transport: str) -> None:
    gateway.fleet.requests.clear()
    asking = asyncio.create_task(TRANSPORTS[transport](gateway, key=KEY, model="stuck"))
    await gateway.fleet.wait_requests(1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await gateway.wait_cancelled()
    await gateway.wait_idle()


@each_transport
async def test_the_rate_of_a_tenant_holds_for_all(transport: str) -> None:
    async with running_gateway(grpc_port=free_port(), rate_limit_rps=0.01, rate_limit_burst=2) as gateway:
        reported: list[TransportAnswer] = [await TRANSPORTS[transport](gateway) for _ in range(3)]
        assert [one.code for one in reported] == ["", "", "rate_limited"]
        assert "over its limit of 0.01 requests a second" in reported[2].message
