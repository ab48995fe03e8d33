"""Errors, deadlines, cancellation, slow readers and the end of the gateway, as callers of gRPC see them."""

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from shared import subjects
from shared.errors import TABLE
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import BareClient, bare_client, text_request
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.servers import free_port
from tests.kits.waiting import until
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUMBERS = {status.value[0]: status for status in grpc.StatusCode}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port(), max_body_bytes=64 * 1024) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[BareClient]:
    async with bare_client(gateway) as connected:
        yield connected
    await gateway.wait_idle()


async def refused(
    client: BareClient, request: pb.ModelInferRequest, **options: object
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.infer(request, timeout=5, **options)
    return caught.value


@pytest.mark.parametrize("code", sorted(set(TABLE) - {"group_lost"}))  # it is tried again until the deadline
async def test_each_error_has_its_status(client: BareClient, code: str) -> None:
    error = await refused(client, text_request(f"fails-{code}"))
    metadata = dict(error.trailing_metadata() or ())
    assert error.code() is NUMBERS[TABLE[code].grpc_status]
    assert metadata["x-ryz-code"] == code
    assert metadata["x-request-id"]
    if code in {"overloaded", "unavailable", "rate_limited"}:
        assert metadata["retry-after"] == "3"
        assert metadata["grpc-retry-pushback-ms"] == "3000"
    elif code in {"conflict", "deadline_exceeded", "poison"}:
        assert metadata["grpc-retry-pushback-ms"] == "-1"


async def test_pieces_need_a_stream(client: BareClient) -> None:
    error = await refused(client, text_request("demo", stream=True))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ModelStreamInfer" in (error.details() or "")


async def test_an_error_in_the_middle_of_a_stream(client: BareClient) -> None:
    call = client.stream()
    await call.write(text_request("breaks", stream=True))
    await call.write(text_request("late-refusal", stream=True))
    await call.done_writing()
    answers = [answer async for answer in call]
    errors = {answer.infer_response.model_name: answer for answer in answers if answer.error_message}
    lost = errors["breaks"].infer_response.parameters
    assert errors["breaks"].error_message == "group g0 is gone"
    assert (lost["error_code"].string_param, lost["grpc_status"].string_param) == (
        "group_lost",
        "UNAVAILABLE",
    )
    late = errors["late-refusal"].infer_response.parameters
    assert (late["error_code"].string_param, late["grpc_status"].string_param) == (
        "context_length_exceeded",
        "INVALID_ARGUMENT",
    )
    assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_may_end_with_its_first_error(client: BareClient) -> None:
    call = client.stream(metadata=(("triton_grpc_error", "true"),))
    await call.write(text_request("none"))
    assert await call.code() is grpc.StatusCode.NOT_FOUND


async def test_a_deadline_ends_the_generation(gateway: Gateway, client: BareClient) -> None:
    gateway.fleet.requests.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.infer(text_request("stuck"), timeout=0.6)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await gateway.wait_cancelled()
    assert int(gateway.fleet.headers[-1][subjects.HEADER_TIMEOUT]) <= 600
    by_parameter = text_request("stuck")
    by_parameter.parameters["timeout"].int64_param = 200_000
    error = await refused(client, by_parameter)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert dict(error.trailing_metadata() or ())["x-ryz-code"] == "deadline_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_cancels_its_generations(
    gateway: Gateway, client: BareClient, stream: bool
) -> None:
    gateway.fleet.requests.clear()
    if stream:
        call = client.stream()
        for _ in range(3):
            await call.write(text_request("slow", stream=True))
        await call.read()
        await gateway.fleet.wait_requests(3)
    else:
        call = client.infer(text_request("stuck"))
        waiting = asyncio.ensure_future(call.code())
        await gateway.fleet.wait_requests(1)
        call.cancel()
        await waiting
    call.cancel()
    await gateway.wait_cancelled()
    await gateway.wait_idle()
    await until(lambda: not gateway.metric("ryz_gateway_grpc_open_streams"))


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with (
        running_gateway(grpc_port=free_port(), write_timeout_s=0.5) as gateway,
        bare_client(gateway) as client,
    ):
        call = client.stream()
        await call.write(text_request("flood", stream=True))
        await gateway.fleet.wait_requests(1)
        await until(lambda: gateway.metric("ryz_gateway_grpc_slow_readers_total") > 0)
        await gateway.wait_cancelled()
        call.cancel()


async def test_large_messages_are_refused(client: BareClient) -> None:
    request = text_request()
    request.inputs[0].contents.bytes_contents[0] = b"x" * 80_000
    error = await refused(client, request)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata() or ())["x-ryz-code"] == "request_too_large"
    request.inputs[0].contents.bytes_contents[0] = b"x" * 200_000
    assert (await refused(client, request)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_turns_of_a_session_keep_their_order(gateway: Gateway, client: BareClient) -> None:
    gateway.fleet.requests.clear()
    call = client.stream()
    for index in range(8):
        request = text_request("demo", session_id="turns")
        request.id = str(index)
        await call.write(request)
    await call.done_writing()
    assert [answer.infer_response.id async for answer in call] == [str(index) for index in range(8)]


async def test_a_gateway_that_stops_finishes_what_runs() -> None:
    async with running_gateway(grpc_port=free_port()) as gateway, bare_client(gateway) as client:
        idle, busy = client.stream(), client.stream()
        await idle.write(text_request("demo"))
        await idle.read()
        await busy.write(text_request("slow", stream=True))
        await busy.read()
        draining = asyncio.create_task(gateway.service.drain())
        assert await idle.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(await idle.trailing_metadata())["x-ryz-reason"] == "draining"
        refusal = await refused(client, text_request())
        assert refusal.code() is grpc.StatusCode.UNAVAILABLE
        assert not busy.done()
        busy.cancel()
        await draining


async def test_what_is_cancelled_is_free_at_the_leader() -> None:
    """On leaving, the kit waits until the leader holds no request, block or queue place."""
    slow = {"engine": null_engine(delay_s=0.01)}
    async with (
        gateway_with_leader(leader=slow, grpc_port=free_port()) as gateway,
        bare_client(gateway) as client,
    ):
        forever = text_request("demo", stream=True)
        forever.parameters["max_tokens"].int64_param = 1900
        forever.parameters["ignore_eos"].bool_param = True
        whole = pb.ModelInferRequest.FromString(forever.SerializeToString())
        del whole.inputs[1]  # `stream`
        late = client.infer(whole, timeout=0.2)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        left = client.infer(whole)
        stream = client.stream()
        for _ in range(3):
            await stream.write(forever)
        await gateway.fleet.wait_requests(5)
        await stream.read()
        left.cancel()
        stream.cancel()
        await gateway.wait_idle()
        measured = gateway.leader_metric
        assert measured is not None

        def ended(outcome: str) -> float:
            return measured("requests_total", outcome=outcome)

        # the leader keeps the deadline as well, and may be first
        await until(lambda: ended("cancelled") + ended("deadline_exceeded") == 5)
        assert ended("cancelled") >= 4


@pytest.mark.parametrize(("code", "calls"), [("poison", 1), ("invalid_request", 3)])
async def test_what_must_not_be_repeated_is_not_by_a_client_that_retries(
    gateway: Gateway, code: str, calls: int
) -> None:
    gateway.fleet.requests.clear()
    retry = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.02s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["FAILED_PRECONDITION", "INVALID_ARGUMENT"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry}]})
    async with bare_client(gateway, **{"grpc.service_config": config}) as client:
        await refused(client, text_request(f"fails-{code}"))
    assert len(gateway.fleet.requests) == calls
