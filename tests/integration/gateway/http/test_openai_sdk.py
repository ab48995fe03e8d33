"""The gateway over real HTTP: OpenAI's SDK, sessions, headers, models, probes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from shared.messages import ChatMessage, SessionRef
from tests.kits.gateway.gateway import GROUP, WORDS, Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S

TEXT = "".join(WORDS)
pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[Gateway]:
    async with running_gateway() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_the_sdk_gets_a_chat_answer(gateway: Gateway, sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello"}],
        n=2,
        temperature=0.5,
        stop=["x"],
        seed=7,
    )
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == 11
    (request,) = gateway.fleet.requests
    assert answer.id == f"chatcmpl-{request.request_id}"
    assert request.messages == [ChatMessage(role="user", content="Hello")]
    assert (request.sampling.temperature, request.sampling.stop, request.sampling.seed) == (0.5, ["x"], 7)
    assert (request.delivery, request.tenant) == ("whole", "default")


async def test_the_sdk_streams_a_chat(gateway: Gateway, sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert gateway.fleet.requests[0].delivery == "stream"


async def test_the_sdk_completes_several_prompts(gateway: Gateway, sdk: AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="demo", prompt=["One", "Two"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(i, TEXT) for i in range(4)]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 6
    assert [request.prompt for request in gateway.fleet.requests] == ["One", "Two"]

    stream = await sdk.completions.create(model="demo", prompt=[[1, 2], [3]], stream=True)
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: TEXT, 1: TEXT}


async def test_the_sdk_sees_our_errors_as_its_own(sdk: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        await sdk.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(BadRequestError) as wrong:
        await sdk.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x"}], temperature=-1
        )
    assert wrong.value.param == "temperature"


async def test_a_refusal_after_the_acceptance_is_still_a_status(http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        body = {"model": "late-refusal", "messages": HELLO, "stream": stream}
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_stream_on_the_wire(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "messages": HELLO, "stream": True}
    answer = await http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "s-9"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["x-session-id"], answer.headers["x-ryz-group"]) == ("s-9", GROUP)
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[0].removeprefix("data: "))["session_id"] == "s-9"


async def test_session_and_request_ids_go_in_and_out(gateway: Gateway, http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "messages": HELLO}
    first = await http.post("/v1/chat/completions", json=body)
    made = first.headers["x-session-id"]
    assert re.fullmatch(r"s-[0-9a-f]{16}-[0-9a-f]{16}", made)
    assert first.json()["session_id"] == made
    assert first.headers["x-ryz-group"] == GROUP
    second = await http.post(
        "/v1/chat/completions",
        json=body,
        headers={"X-Dynamo-Session-ID": made, "X-Session-Mode": "replace", "X-Request-Id": "mine"},
    )
    assert (second.headers["x-session-id"], second.headers["x-request-id"]) == (made, "mine")
    one, two = gateway.fleet.requests
    assert one.session == SessionRef(session_id=made, given=False)
    assert two.session == SessionRef(session_id=made, given=True, mode="replace")
    assert two.request_id.startswith("mine-")


async def test_deadline_and_trace_context_travel(gateway: Gateway, http: httpx.AsyncClient) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await http.post(
        "/v1/chat/completions",
        json={"model": "demo", "messages": HELLO},
        headers={"X-Request-Timeout": "7", "traceparent": parent},
    )
    (headers,) = gateway.fleet.headers
    assert headers["traceparent"] == parent
    assert 6000 < int(headers["Ryz-Timeout-Ms"]) <= 7000


async def test_a_passed_deadline_is_504(gateway: Gateway, http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        body = {"model": "stuck", "messages": HELLO, "timeout": 0.1, "stream": stream}
        answer = await http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    await gateway.wait_cancelled()
    assert gateway.running == 0


async def test_a_slow_start_sends_its_headers_first() -> None:
    async with (
        running_gateway(header_wait_s=0.05) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        body = {"model": "stuck", "messages": HELLO, "timeout": 0.3, "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            text = (await answer.aread()).decode()
    events = [json.loads(event.partition("data: ")[2]) for event in text.split("\n\n")[:-1]]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[1]["error"]["code"] == "deadline_exceeded"


async def test_a_failure_in_mid_stream_is_an_event_without_done(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    body = {"model": "breaks", "messages": HELLO, "stream": True}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    events = answer.text.split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "group_lost"
    assert "[DONE]" not in answer.text
    assert "Hel" in answer.text
    whole = await http.post("/v1/chat/completions", json=body | {"stream": False})
    assert whole.status_code == 503
    assert gateway.metric("ryz_gateway_failed_streams_total", code="group_lost") == 1


async def test_models(http: httpx.AsyncClient) -> None:
    listing = (await http.get("/v1/models")).json()
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["demo", "a/b"]
    assert listing["data"][0]["default_sampling"] == {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    other = (await http.get("/v1/models/a/b")).json()
    assert (other["max_model_len"], other["default_sampling"]) == (8, None)  # of an older group
    missing = await http.get("/v1/models/nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_probes_and_metrics() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        await probes_and_metrics(gateway, http)


async def probes_and_metrics(gateway: Gateway, http: httpx.AsyncClient) -> None:
    assert (await http.get("/live")).status_code == 200
    assert (await http.get("/ready")).status_code == 200
    gateway.broker.stop()
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/live")).status_code == 200
    refused = await http.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO})
    assert (refused.status_code, refused.headers["x-ryz-reason"]) == (503, "broker_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    gateway.broker.start()
    assert (await http.get("/ready")).status_code == 200
    await http.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO, "brand_new": True})
    text = (await http.get("/metrics")).text
    route = 'route="/v1/chat/completions"'
    assert f'ryz_gateway_requests_total{{{route},status="200"}} 1.0' in text
    assert "ryz_gateway_unknown_fields_total 1.0" in text
    assert f"ryz_gateway_request_seconds_count{{{route}}} 2.0" in text


async def test_the_api_document_describes_the_bodies(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    post = document["paths"]["/v1/chat/completions"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "ChatCompletionRequest"
    )
    schema = document["components"]["schemas"]["ChatCompletionRequest"]
    assert {"temperature", "messages", "session_id"} <= set(schema["properties"])
    assert "ChatMessageBody" in document["components"]["schemas"]


async def test_the_index_leads_on(http: httpx.AsyncClient) -> None:
    index = (await http.get("/")).json()
    assert (index["name"], bool(index["version"])) == ("ryzanstein", True)
    assert set(index["links"].values()) == {
        "/v1/models",
        "/v1/sessions",
        "/openapi.json",
        "/ready",
        "/metrics",
    }
    for link in index["links"].values():
        assert (await http.get(link)).status_code == 200


async def test_no_router_is_503_after_the_wait() -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        await gateway.fleet.bus.close()
        async with asyncio.timeout(PATIENCE_S):
            answer = await http.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO})
    assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_router")
    assert answer.headers["retry-after"] == "1"
