"""One policy for all APIs: what a model can do without is left out and told to the caller."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from shared import subjects
from tests.kits.gateway.answer_parts import PATCH
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import texts, triton_client
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.memory_bus import MemoryBus
from tests.kits.servers import free_port
from tests.kits.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHAT_PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
TOOL: Any = {"type": "function", "name": "weather", "parameters": SCHEMA}
CUSTOM: Any = {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}}
GRAMMAR: Any = {
    "type": "custom",
    "name": "edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
}
SEARCH: Any = {"type": "web_search"}
CLAUDE_TOOL: Any = {"name": "weather", "input_schema": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    "/v1/completions": {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": HELLO, "max_tokens": 9},
}
LEFT_OUT: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction (a hint for speed)"),
    (CHAT, {"web_search_options": {}}, "web_search_options (no web search)"),
    (CHAT, {"tools": [CHAT_TOOL, {"type": "web_search", "depth": 1}]}, "tools[1] (web_search)"),
    (CHAT, {"verbosity": "low", "strange": 1}, "verbosity (no such control), strange"),
    ("/v1/completions", {"prediction": {}}, "prediction (a hint for speed)"),
    (
        RESPONSES,
        {"context_management": [{"type": "compaction"}]},
        "context_management (no editing of the context)",
    ),
    (
        RESPONSES,
        {
            "tools": [
                {"type": "local_shell"},
                TOOL,
                {"type": "web_search"},
                {"type": "namespace", "name": "n", "tools": [TOOL]},
                GRAMMAR,
            ]
        },
        "tools[0] (local_shell), tools[2] (web_search), tools[3] (namespace), "
        "tools[4] (custom with a grammar)",
    ),
    (MESSAGES, {"context_management": {"edits": []}}, "context_management (no editing of the context)"),
    (MESSAGES, {"mcp_servers": [{"url": "x"}]}, "mcp_servers (no tools of servers)"),
    (
        MESSAGES,
        {
            "tools": [
                CLAUDE_TOOL,
                {"type": "bash_20250124", "name": "bash"},
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            ]
        },
        "tools[1] (bash_20250124), tools[2] (web_search_20250305)",
    ),
]
CHOICES: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    (
        CHAT,
        {"tools": [CHAT_TOOL, SEARCH], "tool_choice": {"type": "web_search"}},
        "tool_choice.type",
    ),
    (RESPONSES, {"tools": [{"type": "local_shell"}], "tool_choice": "required"}, "tool_choice"),
    (
        RESPONSES,
        {"tools": [TOOL, GRAMMAR], "tool_choice": {"type": "custom", "name": "edit"}},
        "tool_choice.name",
    ),
    (
        RESPONSES,
        {"tools": [TOOL, {"type": "web_search"}], "tool_choice": {"type": "web_search"}},
        "tool_choice.type",
    ),
    (
        RESPONSES,
        {
            "tools": [TOOL, GRAMMAR],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "edit"}],
            },
        },
        "tool_choice.tools[0].name",
    ),
    (
        MESSAGES,
        {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
        "tool_choice",
    ),
    (
        MESSAGES,
        {
            "tools": [CLAUDE_TOOL, {"type": "bash_20250124", "name": "bash"}],
            "tool_choice": {"type": "tool", "name": "bash"},
        },
        "tool_choice.name",
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port(), max_priority=2) as running:
        yield running


@pytest.mark.parametrize(("path", "fields", "left_out"), LEFT_OUT)
async def test_what_a_model_can_do_without_is_reported(
    gateway: Gateway, http: httpx.AsyncClient, path: str, fields: dict[str, Any], left_out: str
) -> None:
    body = {"model": "demo", **BODIES[path], **fields}
    for stream in (False, True):
        answer = await http.post(path, json=body | {"stream": stream})
        assert (answer.status_code, answer.headers.get("x-ryz-ignored")) == (200, left_out), answer.text
    if path == RESPONSES:
        assert (await http.post(path, json=body)).json()["ignored"] == left_out.split(", ")
    tools = gateway.fleet.requests[-1].tools
    kept = [tool for tool in fields.get("tools", ()) if tool in (CHAT_TOOL, TOOL, CLAUDE_TOOL)]
    assert [tool.name for tool in tools.tools] == ["weather"] * len(kept) if tools else not kept


@pytest.mark.parametrize(("path", "fields", "param"), CHOICES)
async def test_a_choice_of_what_is_left_out_is_refused(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(path, json={"model": "demo", **BODIES[path], **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.get("param") == param or f"`{param}`" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"audio": {"voice": "x"}}),
        (CHAT, {"bad_words": ["x"]}),
        (MESSAGES, {"bad_words": ["x"]}),
        (RESPONSES, {"bad_words": ["x"]}),
        (RESPONSES, {"conversation": "c"}),
        (MESSAGES, {"temprature": 1}),
        (RESPONSES, {"temprature": 1}),
    ],
)
async def test_what_changes_the_answer_is_refused_on_all_apis(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    answer = await http.post(path, json={"model": "demo", **BODIES[path], **fields})
    assert answer.status_code == 400
    assert f"`{next(iter(fields))}`" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "fields", "left_out"), LEFT_OUT)
async def test_strict_fields_refuse_all_of_it(path: str, fields: dict[str, Any], left_out: str) -> None:
    async with (
        running_gateway(strict_fields=True) as strict,
        httpx.AsyncClient(base_url=strict.url) as client,
    ):
        answer = await client.post(path, json={"model": "demo", **BODIES[path], **fields})
    assert answer.status_code == 400
    assert "RYZ_STRICT_FIELDS" in answer.json()["error"]["message"]


async def test_questions_about_tokens_leave_out_the_same(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "messages": HELLO, "tools": [{"type": "bash_20250124", "name": "bash"}]}
    answer = await http.post(f"{MESSAGES}/count_tokens", json=body)
    assert answer.headers["x-ryz-ignored"] == "tools[0] (bash_20250124)"
    answer = await http.post("/tokenize", json=body)
    assert answer.headers["x-ryz-ignored"] == "tools[0] (bash_20250124)"


async def test_it_is_counted(gateway: Gateway, http: httpx.AsyncClient) -> None:
    def counts() -> list[float]:
        return [gateway.metric("ryz_gateway_left_out_total", kind=kind) for kind in ("field", "tool")]

    before = counts()
    tools = [{"type": "web_search"}, {"type": "code_interpreter"}]
    await http.post(CHAT, json={"model": "demo", "messages": HELLO, "prediction": {}, "tools": tools})
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [1, 2]


async def test_its_form_on_the_bus(gateway: Gateway) -> None:
    bus, found = MemoryBus(gateway.broker), []

    async def take(message: Any) -> None:
        found.append(dict(message.headers))

    inbox = bus.new_inbox()
    await bus.subscribe(inbox, take)
    body = {"messages": HELLO, "prediction": {}}
    await bus.publish(subjects.complete("demo"), json.dumps(body).encode(), reply=inbox)
    await until(lambda: bool(found))
    assert found[0]["X-Ryz-Ignored"] == "prediction (a hint for speed)"
    await bus.close()


async def test_its_form_on_grpc(gateway: Gateway) -> None:
    inputs = [texts("text_input", "Hi"), texts("sampling_parameters", '{"skip_special_tokens": false}')]
    text = [texts("text_input", "Hi"), texts("sampling_parameters", '{"prediction": {}}')]

    async def one() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "demo", "inputs": text}

    async with triton_client(gateway) as client:
        whole = (await client.infer("demo", inputs)).get_response()
        assert whole.parameters["ignored"].string_param == "skip_special_tokens (always true)"
        answers = client.stream_infer(one())
        streamed = [answer async for answer, _ in answers]
        assert (
            streamed[-1].get_response().parameters["ignored"].string_param == "prediction (a hint for speed)"
        )


async def test_its_form_on_websockets(gateway: Gateway) -> None:
    base = f"ws://127.0.0.1:{gateway.port}"
    async with connect(f"{base}/v1/realtime") as socket:
        await socket.recv()
        for stream in (False, True):
            body = {"model": "demo", "messages": HELLO, "prediction": {}, "stream": stream}
            await socket.send(json.dumps({"type": "request", "id": f"r{stream}", "body": body}))
            first = json.loads(await socket.recv())
            assert first["headers"]["x-ryz-ignored"] == "prediction (a hint for speed)"
            while stream and json.loads(await socket.recv())["type"] != "done":
                pass
    async with connect(f"{base}{RESPONSES}") as socket:
        await socket.send(
            json.dumps(
                {"type": "response.create", "model": "demo", "input": "x", "tools": [{"type": "web_search"}]}
            )
        )
        created = json.loads(await socket.recv())
        assert created["response"]["ignored"] == ["tools[0] (web_search)"]


async def test_custom_tools_of_chat_take_a_text(gateway: Gateway, http: httpx.AsyncClient) -> None:
    body = {"model": "custom", "messages": HELLO, "tools": [CHAT_TOOL, CHAT_PATCH]}
    whole = (await http.post(CHAT, json=body)).json()["choices"][0]["message"]["tool_calls"]
    assert whole[0] == {"id": "call_p", "type": "custom", "custom": {"name": "patch", "input": PATCH}}
    assert whole[1]["function"] == {"name": "weather", "arguments": '{"city":"Ulm"}'}
    request = gateway.fleet.requests[-1]
    assert request.tools is not None
    assert [(tool.name, tool.custom, tool.strict) for tool in request.tools.tools] == [
        ("weather", False, False),
        ("patch", True, False),
    ]
    pieces = []
    answer = await http.post(CHAT, json=body | {"stream": True})
    for line in answer.text.split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                pieces += choice["delta"].get("tool_calls", [])
    assert "".join(piece["custom"]["input"] for piece in pieces if "custom" in piece) == PATCH
    result = {"role": "tool", "tool_call_id": "call_p", "content": "done"}
    history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": whole}, result]
    assert (await http.post(CHAT, json=body | {"messages": history})).status_code == 200
    messages = gateway.fleet.requests[-1].messages or []
    assert json.loads(messages[1].tool_calls[0].arguments) == {"input": PATCH}


async def test_custom_tools_of_responses_take_a_text(gateway: Gateway, http: httpx.AsyncClient) -> None:
    body = {
        "model": "custom",
        "input": "Hi",
        "tools": [CUSTOM, TOOL],
        "tool_choice": {"type": "custom", "name": "patch"},
    }
    whole = (await http.post(RESPONSES, json=body)).json()
    called = whole["output"][0]
    assert (called["type"], called["name"], called["input"]) == ("custom_tool_call", "patch", PATCH)
    assert whole["output"][1]["arguments"] == '{"city":"Ulm"}'
    assert (gateway.fleet.requests[-1].tools or None).name == "patch"  # type: ignore[union-attr]
    events = [
        json.loads(line[6:])
        for line in (await http.post(RESPONSES, json=body | {"stream": True})).text.split("\n")
        if line.startswith("data: {")
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    done = next(event for event in events if event["type"] == "response.custom_tool_call_input.done")
    assert "".join(deltas) == done["input"] == PATCH
    assert len(deltas) > 3
    output = {"type": "custom_tool_call_output", "call_id": "call_p", "output": "done"}
    other = {"type": "function_call_output", "call_id": "call_w", "output": "rain"}
    for history in ({"previous_response_id": whole["id"]}, {}):
        items = [output, other] if history else [*HELLO, *whole["output"], output, other]
        answer = await http.post(RESPONSES, json=body | history | {"input": items})
        assert answer.status_code == 200, answer.text
        messages = gateway.fleet.requests[-1].messages or []
        assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
        assert json.loads(messages[1].tool_calls[0].arguments) == {"input": PATCH}


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    "case", [(-1, 1, None), (7, -7, None), (99, -9, None), (-5, 2, "priority (limited to -2)")]
)
async def test_priority_is_served(
    gateway: Gateway, http: httpx.AsyncClient, path: str, case: tuple[int, int, str | None]
) -> None:
    given, served, left_out = case
    answer = await http.post(path, json={"model": "demo", **BODIES[path], "priority": given})
    assert (answer.status_code, answer.headers.get("x-ryz-ignored")) == (200, left_out)
    assert gateway.fleet.requests[-1].priority == served


async def test_priority_of_grpc_is_served(gateway: Gateway) -> None:
    async with triton_client(gateway) as client:
        await client.infer("demo", [texts("text_input", "Hi")], priority=3)
    assert gateway.fleet.requests[-1].priority == -3


async def test_model_aliases_reach_a_model_on_all_apis() -> None:
    async with (
        running_gateway(model_aliases="gpt-4o=demo,*=demo", grpc_port=free_port()) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
        triton_client(gateway) as client,
    ):
        for path, body in BODIES.items():
            for name in ("gpt-4o", "claude-opus-4", "demo"):
                answer = await http.post(path, json={"model": name, **body})
                assert (answer.status_code, answer.json()["model"]) == (200, "demo"), answer.text
            streamed = await http.post(path, json={"model": "gpt-4o", **body, "stream": True})
            assert '"model":"demo"' in streamed.text
            assert "gpt-4o" not in streamed.text
        assert (await http.get("/v1/models/gpt-4o")).json()["id"] == "demo"
        assert (await http.get("/v1/models/a/b")).json()["id"] == "a/b"
        assert (
            await http.post("/v1/chat/completions", json={"model": "a/b", **BODIES[CHAT]})
        ).status_code == 404
        result = (await client.infer("gpt-4o", [texts("text_input", "Hi")])).get_response()
        assert result.model_name == "demo"
        async with connect(f"ws://127.0.0.1:{gateway.port}{RESPONSES}") as socket:
            await socket.send(json.dumps({"type": "response.create", "model": "gpt-4o", "input": "x"}))
            assert json.loads(await socket.recv())["response"]["model"] == "demo"
        bus, found = MemoryBus(gateway.broker), list[Any]()

        async def take(message: Any) -> None:
            found.append(json.loads(message.data))

        inbox = bus.new_inbox()
        await bus.subscribe(inbox, take)
        await bus.publish(subjects.complete("gpt-4o"), json.dumps(BODIES[CHAT]).encode(), reply=inbox)
        await until(lambda: bool(found))
        assert found[0]["model"] == "demo"
        await bus.close()


def billed(checksum: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={checksum};"


def bodies_with_block(checksum: str) -> dict[str, dict[str, Any]]:
    blocks = [{"type": "text", "text": text} for text in (billed(checksum), "You code.")]
    system: Any = {"role": "system", "content": f"{billed(checksum)}\nYou code."}
    return {
        MESSAGES: {"messages": HELLO, "max_tokens": 9, "system": blocks},
        CHAT: {"messages": [system, *HELLO]},
        RESPONSES: {"input": "Hello", "instructions": system["content"]},
    }


@pytest.mark.parametrize("path", [MESSAGES, CHAT, RESPONSES])
async def test_a_block_that_changes_with_each_request_is_left_out(
    gateway: Gateway, http: httpx.AsyncClient, path: str
) -> None:
    before, roots = gateway.metric("ryz_gateway_left_out_total", kind="block"), set()
    for checksum in ("aa111", "bb222"):
        answer = await http.post(path, json={"model": "demo", **bodies_with_block(checksum)[path]})
        assert answer.status_code == 200
        assert answer.headers["x-ryz-ignored"].endswith("(x-anthropic-billing-header)")
        messages = gateway.fleet.requests[-1].messages or []
        assert [message.content for message in messages] == ["You code.", "Hello"]
        roots.add(answer.headers.get("x-session-id", "s-none-0").split("-")[1])
    assert len(roots) == 1  # both go to the same group
    assert gateway.metric("ryz_gateway_left_out_total", kind="block") == before + 2


async def test_leaving_blocks_out_can_be_switched_off() -> None:
    async with (
        running_gateway(leave_out_changing_blocks=False) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        for path, body in bodies_with_block("aa111").items():
            answer = await http.post(path, json={"model": "demo", **body})
            assert "x-ryz-ignored" not in answer.headers
            assert billed("aa111") in (gateway.fleet.requests[-1].messages or [])[0].content


async def test_a_leader_writes_the_input_of_a_custom_tool() -> None:
    body = {
        "model": "demo", "messages": HELLO, "tools": [CHAT_TOOL, CHAT_PATCH], "max_tokens": 90, "seed": 1,
        "tool_choice": {"type": "custom", "custom": {"name": "patch"}},
    }  # fmt: skip
    async with (
        gateway_with_leader() as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        whole = (await http.post(CHAT, json=body)).json()["choices"][0]["message"]["tool_calls"][0]
        assert (whole["type"], whole["custom"]["name"]) == ("custom", "patch")
        assert len(whole["custom"]["input"]) > 10
        assert '"input"' not in whole["custom"]["input"]
        answer = await http.post(CHAT, json=body | {"stream": True})
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
        calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(call["custom"]["input"] for call in calls) == whole["custom"]["input"]
        named = {"type": "custom", "name": "patch"}
        asked = {"model": "demo", "input": "Hello", "tools": [CUSTOM], "tool_choice": named}
        made = await http.post(RESPONSES, json=asked | {"store": False, "max_output_tokens": 90})
        assert made.json()["output"][0]["type"] == "custom_tool_call", made.text
        assert len(made.json()["output"][0]["input"]) > 10


async def test_openais_client_reads_custom_tools(gateway: Gateway) -> None:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        async with client.responses.stream(model="custom", input="Hi", tools=[CUSTOM, TOOL]) as stream:
            deltas = [
                event.delta async for event in stream if event.type == "response.custom_tool_call_input.delta"
            ]
            final = await stream.get_final_response()
        call = final.output[0]
        assert call.type == "custom_tool_call"
        assert "".join(deltas) == call.input == PATCH
        made = await client.chat.completions.create(
            model="custom", messages=HELLO, tools=[CHAT_TOOL, CHAT_PATCH]
        )
        (custom, function) = made.choices[0].message.tool_calls or []
        assert custom.type == "custom"
        assert function.type == "function"
        assert (custom.custom.name, custom.custom.input) == ("patch", PATCH)
