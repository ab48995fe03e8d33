"""WebSockets and gRPC streams that stay open: their next request is refused once their key is gone."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect

from shared.accounts.keys import NewKey
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import bare_client, text_request
from tests.kits.servers import free_port
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port()) as one:
        await one.fleet.accounts.require_keys()
        yield one


def bearer(key: NewKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


async def asked(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The last message of the answer to one request."""
    if kind == "realtime":
        await socket.send(json.dumps({"type": "request", "id": "a", "body": BODY}))
    else:
        body = {"type": "response.create", "model": "demo", "input": "Hi", "store": False}
        await socket.send(json.dumps(body))
    async for raw in socket:
        message: dict[str, Any] = json.loads(raw)
        if message["type"] in {"answer", "error", "response.completed"}:
            return message
    raise AssertionError("the connection was closed")


@pytest.mark.parametrize("kind", ["realtime", "responses"])
async def test_the_next_request_of_a_websocket_is_refused(gateway: Gateway, kind: str) -> None:
    key = await gateway.fleet.accounts.add_key("ada")
    url = f"ws://127.0.0.1:{gateway.port}/v1/{kind}"
    async with connect(url, additional_headers=bearer(key)) as socket:
        if kind == "realtime":
            assert json.loads(await socket.recv())["tenant"] == "ada"
        good = await asked(socket, kind)
        assert good["type"] in {"answer", "response.completed"}
        assert gateway.fleet.requests[-1].key_id == key.key_id
        await gateway.fleet.accounts.revoke(key)
        refused = await asked(socket, kind)
        error = refused["data"]["error"] if kind == "realtime" else refused["error"]
        assert (refused["status"], error["code"]) == (401, "key_revoked")


async def test_the_next_request_of_a_grpc_stream_is_refused(gateway: Gateway) -> None:
    key = await gateway.fleet.accounts.add_key("ada")
    async with bare_client(gateway) as client:
        call = client.stream(metadata=[("authorization", f"Bearer {key.text}")])
        await call.write(text_request())
        assert not (await call.read()).error_message
        await gateway.fleet.accounts.revoke(key)
        await call.write(text_request())
        refused = await call.read()
        assert refused.infer_response.parameters["error_code"].string_param == "invalid_api_key"
        await call.done_writing()
        await call.read()


async def test_a_websocket_without_a_key_is_refused_once_keys_are_required() -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway())
        socket = await stack.enter_async_context(connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime"))
        assert json.loads(await socket.recv())["tenant"] == "default"
        assert (await asked(socket, "realtime"))["type"] == "answer"
        await gateway.fleet.accounts.require_keys()
        refused = await asked(socket, "realtime")
        assert (refused["status"], refused["data"]["error"]["code"]) == (401, "missing_api_key")


async def test_a_parked_stream_ends_with_its_key(gateway: Gateway) -> None:
    """Its client left and may come back; the generation goes on meanwhile."""
    key = await gateway.fleet.accounts.add_key("ada")
    gateway.fleet.requests.clear()
    async with connect(
        f"ws://127.0.0.1:{gateway.port}/v1/realtime", additional_headers=bearer(key)
    ) as socket:
        await socket.recv()
        body = BODY | {"model": "slow", "stream": True}
        await socket.send(json.dumps({"type": "request", "id": "a", "body": body}))
        while json.loads(await socket.recv())["type"] != "event":
            pass
    await until(lambda: gateway.metric("ryz_gateway_parked_streams") == 1)
    await gateway.fleet.accounts.revoke(key, end_streams=True)
    await gateway.fleet.cancel_of(gateway.fleet.requests[0].request_id).wait()
    await gateway.wait_idle()
    assert gateway.metric("ryz_gateway_revoked_streams_total") >= 1
