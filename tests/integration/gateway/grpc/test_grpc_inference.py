"""Triton's client infers and streams, and reads what the server and its models are."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tritonclient.utils import InferenceServerException

from shared.messages import SessionRecord
from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.gateway.grpc_client import chat, number, streamed, texts, triton_client
from tests.kits.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANSWER = "".join(WORDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port()) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[Any]:
    async with triton_client(gateway) as connected:
        yield connected


def said(result: Any, name: str = "text_output") -> list[str]:
    found = result.as_numpy(name)
    return [] if found is None else [text.decode() for text in found]


async def streaming(client: Any, *requests: dict[str, Any]) -> list[tuple[Any, Any]]:
    async def asked() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    return [answer async for answer in client.stream_infer(asked())]


async def test_the_server_tells_what_it_is(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert (await client.get_server_metadata()).name == "ryzanstein"
    assert [model.name for model in (await client.get_model_repository_index()).models] == ["demo", "a/b"]


async def test_a_model_tells_its_tensors(client: Any) -> None:
    assert await client.is_model_ready("demo")
    assert await client.is_model_ready("a/b", "1")
    assert not await client.is_model_ready("none")
    metadata = await client.get_model_metadata("demo")
    assert {"text_input", "messages", "stream", "sampling_parameters"} <= {
        one.name for one in metadata.inputs
    }
    assert metadata.outputs[0].name == "text_output"
    config = (await client.get_model_config("demo")).config
    assert config.model_transaction_policy.decoupled
    assert {one.name for one in config.input} == {one.name for one in metadata.inputs}
    with pytest.raises(InferenceServerException, match="no group serves model 'none'; models that are"):
        await client.get_model_metadata("none")


async def test_a_text_is_continued(gateway: Gateway, client: Any) -> None:
    inputs = [texts("text_input", "Hi"), texts("sampling_parameters", '{"max_tokens": "9", "seed": 4}')]
    result = await client.infer("demo", inputs, request_id="seven")
    assert said(result) == [ANSWER]
    assert said(result, "finish_reason") == ["stop"]
    assert result.as_numpy("num_input_tokens")[0] == 3
    assert result.as_numpy("num_output_tokens")[0] == 4
    assert result.get_response().id == "seven"
    request = gateway.fleet.requests[-1]
    assert (request.sampling.max_tokens, request.sampling.seed) == (9, 4)
    several = await client.infer("demo", [texts("text_input", "a", "b")])
    assert said(several) == [ANSWER, ANSWER]


async def test_a_chat_has_its_message_and_session(gateway: Gateway, client: Any) -> None:
    result = await client.infer("parts", [chat()], sequence_id="s-1", sequence_start=True)
    assert said(result) == ["Looking."]
    (message,) = said(result, "message")
    assert [call["function"]["name"] for call in json.loads(message)["tool_calls"]] == ["weather", "time"]
    assert result.get_response().parameters["session_id"].string_param == "s-1"
    session = gateway.fleet.requests[-1].session
    assert session is not None
    assert (session.session_id, session.given, session.mode) == ("s-1", True, "replace")
    sessions = gateway.fleet.sessions
    for name in ("12", "é/?#"):
        sessions.records["default", name] = SessionRecord(
            session_id=name, tenant="default", model="demo", version=1
        )
        await client.infer("demo", [chat()], sequence_id=name)
        assert ("default", name) in sessions.records
        await client.infer("demo", [chat()], sequence_id=name, sequence_end=True)
        assert ("default", name) not in sessions.records
    plain = await client.infer("demo", [chat()])
    assert plain.as_numpy("message") is None


async def test_pieces_come_as_they_are_made(client: Any) -> None:
    asked = {"model_name": "demo", "inputs": [texts("text_input", "Hi"), streamed()], "request_id": "r"}
    answers = await streaming(client, asked)
    assert not any(error for _, error in answers)
    assert [said(result) for result, _ in answers] == [*([word] for word in WORDS), [""]]
    final = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in answers]
    assert final == [False] * len(WORDS) + [True]
    last = answers[-1][0]
    assert said(last, "finish_reason") == ["stop"]
    assert last.as_numpy("num_output_tokens")[0] == 4


async def test_requests_share_a_stream(client: Any) -> None:
    tools = [chat(), streamed()]
    answers = await streaming(
        client,
        {"model_name": "parts", "inputs": tools, "request_id": "a"},
        {"model_name": "none", "inputs": [texts("text_input", "Hi")], "request_id": "b"},
        {"model_name": "demo", "inputs": [texts("text_input", "Hi")], "request_id": "c"},
        {"model_name": "demo", "inputs": [], "request_id": "d"},
    )
    errors = [error.message() for _, error in answers if error]
    assert sorted(error[:20] for error in errors) == ["a request needs the ", "no group serves 'non"]
    found: dict[str, list[Any]] = {}
    for result, error in answers:
        if error is None:
            found.setdefault(result.get_response().id, []).append(result)
    assert [said(result) for result in found["c"]] == [[ANSWER]]
    assert "".join(text for result in found["a"] for text in said(result)) == "Looking."
    deltas = [json.loads(text) for result in found["a"] for text in said(result, "message")]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Let me see."
    assert said(found["a"][-1], "finish_reason") == ["tool_calls"]


async def test_choices_have_their_index(client: Any) -> None:
    inputs = [texts("text_input", "Hi"), number("n", 2, "INT32", "int32")]
    assert said(await client.infer("demo", inputs)) == [ANSWER, ANSWER]
    answers = await streaming(client, {"model_name": "demo", "inputs": [*inputs, streamed()]})
    parts = {0: "", 1: ""}
    for result, _ in answers[:-1]:
        parts[result.get_response().parameters["index"].int64_param] += said(result)[0]
    assert parts == {0: ANSWER, 1: ANSWER}
    assert said(answers[-1][0], "finish_reason") == ["stop", "stop"]


async def test_requests_are_counted(gateway: Gateway, client: Any) -> None:
    before = (await client.get_inference_statistics("demo")).model_stats[0].inference_stats.success.count
    calls = gateway.metric("ryz_gateway_grpc_calls_total", method="ModelInfer", status="OK")
    await asyncio.gather(*(client.infer("demo", [texts("text_input", "Hi")]) for _ in range(3)))
    after = (await client.get_inference_statistics("demo")).model_stats[0].inference_stats.success.count
    assert after - before == 3
    assert gateway.metric("ryz_gateway_grpc_calls_total", method="ModelInfer", status="OK") - calls == 3
