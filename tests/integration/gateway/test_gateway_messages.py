"""Anthropic's SDK over real HTTP, a whole leader behind the gateway: messages, streams, counts, errors."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from shared import subjects
from shared.bus import Message
from shared.codec import encode
from shared.messages import ModelList
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "a-key-for-tests"
KEYS = {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}
HELLO: Any = [{"role": "user", "content": "Hello"}]
TOOL: Any = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"enum": ["c", "f"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
}
KEPT: Any = {"model": "demo", "messages": HELLO, "system": "Be brief.", "max_tokens": 12}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    slow = {"engine": null_engine(delay_s=0.002)}
    async with gateway_with_leader(leader=slow, api_keys=f"{KEY}:acme", max_body_bytes=4096) as running:
        cards = ModelList(models=running.fleet.cards)

        async def list_models(message: Message) -> None:
            await running.bus.publish(message.reply, encode(cards))

        await running.bus.subscribe(subjects.MODELS, list_models)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(gateway: Gateway) -> AsyncIterator[AsyncAnthropic]:
    gateway.fleet.requests.clear()
    async with AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, headers=KEYS) as client:
        yield client


async def test_a_stream_is_the_whole_message(gateway: Gateway, sdk: AsyncAnthropic) -> None:
    whole = await sdk.messages.create(**KEPT)
    async with sdk.messages.stream(**KEPT) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert block.text == text
    assert len(text) == 12
    assert shown(final) == shown(whole)
    assert (whole.stop_reason, final.stop_reason) == ("max_tokens", "max_tokens")
    prompt = "system: Be brief.\nuser: Hello\nassistant: "
    assert (prompt_tokens(whole.usage), whole.usage.output_tokens) == (len(prompt), 12)
    assert (prompt_tokens(final.usage), final.usage.output_tokens) == (len(prompt), 12)
    assert whole.id.startswith("msg_")
    assert whole._request_id
    assert {request.tenant for request in gateway.fleet.requests} == {"acme"}


def prompt_tokens(usage: Any) -> int:
    """The three counts of Anthropic's usage, which add up to the prompt."""
    total: int = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return total


async def test_the_usage_tells_what_was_cached_also_at_the_start(
    sdk: AsyncAnthropic, http: httpx.AsyncClient
) -> None:
    system = "Quietly tell the truth about caches. " * 3
    asked: Any = KEPT | {"system": system}
    prompt = len(f"system: {system}\nuser: Hello\nassistant: ")
    blocks = prompt // 16 * 16
    first, second = [(await sdk.messages.create(**asked)).usage for _ in range(2)]
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, blocks)
    assert (second.cache_read_input_tokens, second.cache_creation_input_tokens) == (blocks, 0)
    assert first.input_tokens == second.input_tokens == prompt - blocks
    answer = await http.post("/v1/messages", json=asked | {"stream": True})
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    start = events[0]["message"]["usage"]
    end = next(event for event in events if event["type"] == "message_delta")["usage"]
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [start[name] for name in counts] == [prompt - blocks, blocks, 0]
    assert [end[name] for name in counts] == [prompt - blocks, blocks, 0]
    asking = {"model": "demo", "input": system * 2, "store": False, "max_output_tokens": 4}
    whole = await http.post("/v1/responses", json=asking)
    details = whole.json()["usage"]["input_tokens_details"]
    assert details["cache_write_tokens"] == whole.json()["usage"]["input_tokens"] // 16 * 16 > 0


def shown(message: Any) -> Any:
    return [block.model_dump(exclude={"parsed_output"}) for block in message.content]


async def test_the_stop_sequence_is_named(sdk: AsyncAnthropic) -> None:
    (block,) = (await sdk.messages.create(**KEPT)).content
    assert block.type == "text"
    stop = block.text[5:8]
    cut = await sdk.messages.create(**KEPT, stop_sequences=["\x00", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    async with sdk.messages.stream(**KEPT, stop_sequences=[stop]) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


async def test_tokens_are_counted_as_they_are_used(sdk: AsyncAnthropic, gateway: Gateway) -> None:
    counted = await sdk.messages.count_tokens(model="demo", messages=HELLO, system="Be brief.")
    made = await sdk.messages.create(**{**KEPT, "max_tokens": 1})
    assert counted.input_tokens == prompt_tokens(made.usage)
    with pytest.raises(anthropic.NotFoundError, match="models that are served: demo"):
        await sdk.messages.count_tokens(model="nope", messages=HELLO)
    with pytest.raises(anthropic.APIStatusError) as away:  # a router knows it, and its groups are away
        await sdk.messages.count_tokens(model="a/b", messages=HELLO)
    assert (away.value.status_code, away.value.response.headers["x-ryz-reason"]) == (503, "no_group")


async def test_errors_are_of_the_sdks_classes(gateway: Gateway, sdk: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as wrong:
        await sdk.messages.create(**{**KEPT, "max_tokens": 0})
    error = wrong.value
    assert isinstance(error.body, dict)
    assert (error.body["type"], error.body["error"]["type"]) == ("error", "invalid_request_error")
    assert error.body["request_id"] == error.response.headers["request-id"] == error.request_id
    with pytest.raises(anthropic.RequestTooLargeError):
        await sdk.messages.create(**{**KEPT, "system": "x" * 5000})
    stranger = AsyncAnthropic(base_url=gateway.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        await stranger.messages.create(**KEPT)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["error"]["type"] == "authentication_error"
    assert refused.value.request_id
    await stranger.close()


async def test_a_tool_is_called_the_same_in_a_stream(sdk: AsyncAnthropic) -> None:
    asked: Any = {"model": "demo", "messages": HELLO, "tools": [TOOL]}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    whole = await sdk.messages.create(**asked, tool_choice=choice, max_tokens=200)
    async with sdk.messages.stream(**asked, tool_choice=choice, max_tokens=200) as stream:
        final = await stream.get_final_message()
    (call,), (streamed,) = whole.content, final.content
    assert call.type == streamed.type == "tool_use"
    assert (whole.stop_reason, final.stop_reason) == ("tool_use", "tool_use")
    assert (call.name, call.input) == (streamed.name, streamed.input)
    assert call.input in ({"unit": "c"}, {"unit": "f"})
    counted = await sdk.messages.count_tokens(**asked)
    assert counted.input_tokens == prompt_tokens(whole.usage) > len("user: Hello\nassistant: ")


async def test_models_are_listed(sdk: AsyncAnthropic) -> None:
    models = [model async for model in await sdk.models.list()]
    assert [(model.id, model.type) for model in models] == [("demo", "model"), ("a/b", "model")]
    found = await sdk.models.retrieve("demo")
    assert (found.id, found.created_at.timestamp()) == ("demo", 5)


async def test_a_key_may_come_as_a_bearer(gateway: Gateway) -> None:
    async with AsyncAnthropic(base_url=gateway.url, auth_token=KEY, max_retries=0) as client:
        assert (await client.messages.create(**KEPT)).content


async def test_a_session_goes_on(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "messages": HELLO, "max_tokens": 4}
    headers = {"x-session-id": "tea"}
    first = await http.post("/v1/messages", json=body, headers=headers)
    second = await http.post("/v1/messages", json=body, headers=headers)
    assert first.headers["x-session-id"] == "tea"
    usages = [answer.json()["usage"] for answer in (first, second)]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    tokens = [sum(usage[name] for name in names) for usage in usages]
    assert tokens[1] == tokens[0] + 4 + len("\n") + tokens[0]  # the answer is between


async def test_a_stream_is_resumed(http: httpx.AsyncClient) -> None:
    headers = {"x-stream-grace": "5"}
    whole = await http.post("/v1/messages", json={**KEPT, "stream": True}, headers=headers)
    events = whole.text.split("\n\n")[:-1]
    assert all(event.startswith("id: ") for event in events)
    last_id = events[3].partition("\n")[0].removeprefix("id: ")
    rest = await http.get(f"/v1/streams/{whole.headers['x-stream-id']}", headers={"last-event-id": last_id})
    assert rest.text.split("\n\n")[:-1] == events[4:]


async def test_tokens_of_prompts_and_messages(http: httpx.AsyncClient) -> None:
    reply = (
        await http.post("/tokenize", json={"model": "demo", "prompt": "ab", "return_token_strs": True})
    ).json()
    assert reply == {"count": 2, "max_model_len": 2048, "tokens": [97, 98], "token_strs": ["a", "b"]}
    chat = (await http.post("/tokenize", json={"model": "demo", "messages": HELLO})).json()
    body = {"model": "demo", "messages": HELLO, "max_tokens": 1}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert chat["count"] == answer["usage"]["prompt_tokens"]
    back = await http.post("/detokenize", json={"model": "demo", "tokens": chat["tokens"]})
    assert back.json() == {"prompt": "user: Hello\nassistant: "}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "messages"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_questions_that_are_refused(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(
        path, json={"model": "demo", **fields}, headers={"authorization": f"Bearer {KEY}"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_unknown_fields_may_be_refused() -> None:
    asked = {"model": "demo", "messages": HELLO, "cache_control": {"type": "ephemeral"}, "strange": 1}
    async with running_gateway(strict_fields=True) as strict, httpx.AsyncClient(base_url=strict.url) as http:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/tokenize"):
            body = {**asked, "max_tokens": 4} if path == "/v1/messages" else asked
            body = {"model": "demo", "prompt": "x", "strange": 1} if path == "/tokenize" else body
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "strange")


async def test_health(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "live"}
    head = await http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


async def test_pings_come_while_no_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.answering.events.answer_events.PING_S", 0.02)
    body = {**KEPT, "model": "stuck", "stream": True}
    async with (
        running_gateway(header_wait_s=0.01) as stuck,
        httpx.AsyncClient(base_url=stuck.url) as http,
        http.stream("POST", "/v1/messages", json=body) as answer,
    ):
        text = ""
        async for piece in answer.aiter_text():
            text += piece
            if text.count(": ping") == 4:
                break
    # comments: the message begins when the tokens of its prompt are counted
    assert text.strip().split("\n\n") == [": ping"] * 4


async def test_an_error_in_the_middle_of_a_stream_is_an_event(http: httpx.AsyncClient) -> None:
    body = {**KEPT, "stream": True, "max_tokens": 1500}  # takes three seconds
    answer = await http.post("/v1/messages", json=body, headers={"x-request-timeout": "0.3"})
    assert answer.status_code == 200
    *_, text, last = answer.text.strip().split("\n\n")
    kind, data = last.split("\n")
    error = json.loads(data.removeprefix("data: "))
    assert (text.partition("\n")[0], kind) == ("event: content_block_delta", "event: error")
    assert (error["type"], error["error"]["type"]) == ("error", "timeout_error")
    assert error["request_id"] == answer.headers["request-id"]
