"""Keys, TLS, limits of connections and calls, traces, health checks and reflection of the gRPC door."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from shared.errors import Unavailable
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import SERVICE, BareClient, bare_channel, bare_client, text_request
from tests.kits.servers import free_port
from tests.kits.tls import Authority
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "secret-key-of-ada"
BEARER = (("authorization", f"Bearer {KEY}"),)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(
        grpc_port=free_port(),
        api_keys=f"{KEY}:ada",
        grpc_max_requests=2,
        rate_limit_rps=1000,
        rate_limit_burst=1000,
    ) as running:
        yield running


async def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_calls_need_a_key_before_their_messages_are_read(gateway: Gateway) -> None:
    async with bare_client(gateway) as client:
        wrong = (("authorization", "Bearer of-somebody-else"),)
        assert await status_of(client.infer(text_request())) is grpc.StatusCode.UNAUTHENTICATED
        assert (
            await status_of(client.infer(text_request(), metadata=wrong)) is grpc.StatusCode.UNAUTHENTICATED
        )
        for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"):
            asked = getattr(pb, f"{method}Request")()
            call = client.unary(method, asked, pb.ModelReadyResponse)
            assert await status_of(call) is grpc.StatusCode.UNAUTHENTICATED
        assert await client.stream().code() is grpc.StatusCode.UNAUTHENTICATED
        live = await client.unary("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        assert live.live
        call = client.infer(text_request(), metadata=(*BEARER, ("traceparent", TRACE)))
        assert (await call).model_name == "demo"
        assert dict(await call.trailing_metadata())["x-ryz-group"] == "g0"
    assert gateway.fleet.requests[-1].tenant == "ada"
    assert gateway.fleet.headers[-1]["traceparent"].split("-")[1] == TRACE.split("-")[1]


@pytest.mark.parametrize("keys", ["", f"{KEY}:ada"], ids=["open", "with keys"])
async def test_metadata_that_says_one_thing_may_come_once(keys: str) -> None:
    """Of two, a proxy before the gateway might have checked the other one."""
    bearer, wrong = ("authorization", f"Bearer {KEY}"), ("authorization", "Bearer of-somebody-else")
    session = ("x-session-id", "my-cat")
    async with (
        running_gateway(grpc_port=free_port(), api_keys=keys) as gateway,
        bare_client(gateway) as client,
    ):
        for twice in ((bearer, bearer), (wrong, bearer), (bearer, wrong), (bearer, session, session)):
            call = client.infer(text_request(), metadata=twice)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"{twice[-1][0]} came twice" in await call.details()
            assert await client.stream(metadata=twice).code() is grpc.StatusCode.INVALID_ARGUMENT
            ready = pb.ModelReadyRequest(name="demo")
            call = client.unary("ModelReady", ready, pb.ModelReadyResponse, metadata=twice)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        state = ("tracestate", "a=1"), ("tracestate", "b=2")  # a list, which may be cut
        assert (await client.infer(text_request(), metadata=(bearer, *state))).model_name == "demo"
    assert not any(request.session and request.session.given for request in gateway.fleet.requests)


async def test_calls_that_are_only_held_open_give_way() -> None:
    """Of all places, calls that send nothing keep none from a caller with a request."""
    async with (
        running_gateway(grpc_port=free_port(), max_concurrent=4) as gateway,
        bare_channel(gateway) as channel,
        bare_client(gateway) as other,
    ):
        held = [channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")() for _ in range(3)]
        held += [channel.stream_stream(f"/{SERVICE}/ModelInfer")() for _ in range(3)]  # no message comes
        watch: Any = health_pb2_grpc.HealthStub(channel)
        held.append(watch.Watch(health_pb2.HealthCheckRequest()))
        state = asyncio.ensure_future(held[-1].read())  # the status of a call comes behind its messages
        shown = cast(Any, ServerReflectionStub(channel)).ServerReflectionInfo()
        held.append(shown)
        # seven are the share of this address: one of the eight, in whatever order they came, has given way
        await until(lambda: any(call.done() for call in held))
        busy = other.stream()
        await busy.write(text_request("stuck", stream=True))
        await gateway.fleet.wait_requests(1)
        for _ in range(12):
            assert (await other.infer(text_request(), timeout=PATIENCE_S)).model_name == "demo"
        ended = [call for call in held if call.done()]
        assert 0 < len(ended) < 8
        for call in ended:
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert "was idle" in await call.details()
        assert not busy.done()
        busy.cancel()
        for call in held:
            call.cancel()
        await asyncio.wait([state])
    await gateway.wait_idle()


async def test_connections_are_counted() -> None:
    async def asked(client: BareClient) -> grpc.StatusCode:
        code: grpc.StatusCode = await client.infer(text_request(), timeout=2).code()
        return code

    async with (
        running_gateway(grpc_port=free_port(), grpc_max_connections=2) as gateway,
        bare_client(gateway) as one,
        bare_client(gateway) as two,
        bare_client(gateway) as three,
    ):
        assert [await asked(client) for client in (one, two)] == [grpc.StatusCode.OK] * 2
        assert await asked(three) is grpc.StatusCode.UNAVAILABLE


async def test_a_silent_connection_is_closed_and_garbage_is_none() -> None:
    async with running_gateway(grpc_port=free_port(), http_tls_handshake_s=0.2) as gateway:
        silent, writer = await asyncio.open_connection("127.0.0.1", gateway.grpc_port)
        other, speaking = await asyncio.open_connection("127.0.0.1", gateway.grpc_port)
        speaking.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await silent.read()  # returns at the end of the connection
            await other.read()
        for end in (writer, speaking):
            end.close()
        async with bare_client(gateway) as client:
            assert (await client.infer(text_request())).model_name == "demo"


async def test_calls_of_a_connection_and_requests_of_a_stream_wait(gateway: Gateway) -> None:
    gateway.fleet.requests.clear()
    async with bare_client(gateway) as client:
        calls = {}
        for name in ("call-0", "call-1", "call-2"):
            request = text_request("stuck")
            request.id = name
            calls[name] = client.infer(request, metadata=BEARER)
        running = [asyncio.ensure_future(call.code()) for call in calls.values()]
        await gateway.fleet.wait_requests(2)
        await asyncio.sleep(0.05)
        assert len(gateway.fleet.requests) == 2
        calls[gateway.fleet.requests[0].request_id[:6]].cancel()  # any two of them may be the first
        await gateway.fleet.wait_requests(3)
        for call in calls.values():
            call.cancel()
        await asyncio.gather(*running)
        await gateway.wait_idle()
        gateway.fleet.requests.clear()
        stream = client.stream(metadata=BEARER)
        for _ in range(3):
            await stream.write(text_request("stuck", stream=True))
        await gateway.fleet.wait_requests(2)
        await asyncio.sleep(0.05)
        assert len(gateway.fleet.requests) == 2
        stream.cancel()
    await gateway.wait_idle()


async def test_broken_messages_end_their_call_only(gateway: Gateway) -> None:
    async with bare_channel(gateway) as channel:
        for garbage in (b"\xff" * 40, struct.pack("<I", 7) * 9, b"\x0a\xff\xff\xff\xff\x0f"):
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")(garbage, metadata=BEARER)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(metadata=BEARER)
            await stream.write(garbage)
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = channel.unary_unary(f"/{SERVICE}/TraceSetting")(b"", metadata=BEARER)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "traceparent" in await call.details()
        live = await channel.unary_unary(f"/{SERVICE}/ServerLive")(b"")
        assert live == b"\x08\x01"


async def test_health_follows_readiness(gateway: Gateway) -> None:
    async with bare_channel(gateway) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        serving, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        for name in ("", SERVICE):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == serving
        unknown = health_pb2.HealthCheckRequest(service="x")
        assert await stub.Check(unknown).code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == serving
        gateway.service.add_check("of-the-test", lambda: False)
        try:
            assert (await watch.read()).status == not_serving
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == not_serving
        finally:
            gateway.service.add_check("of-the-test", lambda: True)
        watch.cancel()
        none = stub.Watch(unknown)
        assert (await none.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        none.cancel()


async def test_reflection_shows_the_protocol(gateway: Gateway) -> None:
    async with bare_channel(gateway) as channel:
        stub = ServerReflectionStub(channel)

        async def asked(request: ServerReflectionRequest) -> Any:
            call: Any = cast(Any, stub).ServerReflectionInfo(iter([request]))
            return await call.read()

        listed = await asked(ServerReflectionRequest(list_services=""))
        names = [service.name for service in listed.list_services_response.service]
        assert {SERVICE, "grpc.health.v1.Health"} <= set(names)
        pool: Any = DescriptorPool()
        for name in names:
            found = await asked(ServerReflectionRequest(file_containing_symbol=name))
            for data in found.file_descriptor_response.file_descriptor_proto:
                pool.Add(FileDescriptorProto.FromString(data))
        kind = GetMessageClass(pool.FindMessageTypeByName("inference.ServerMetadataResponse"))
        answer = await channel.unary_unary(f"/{SERVICE}/ServerMetadata")(b"")
        reported: Any = kind.FromString(answer)
        assert reported.name == "ryzanstein"


async def test_tls_with_the_certificate_of_http(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("localhost")
    trusted = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
    async with running_gateway(grpc_port=free_port(), http_cert=own.cert, http_key=own.key) as gateway:
        address = f"localhost:{gateway.grpc_port}"
        secure: Any = grpc.aio.secure_channel(address, trusted)
        async with secure as channel:
            assert await channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=5) == b"\x08\x01"
        async with bare_channel(gateway) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=5)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_taken_port_is_reported(gateway: Gateway) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{gateway.grpc_port} for gRPC"):
        async with running_gateway(grpc_port=gateway.grpc_port):
            pass
