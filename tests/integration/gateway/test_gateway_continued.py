"""Answers that go on from the last message, prompts as token ids and the ids of answers, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from services.worker.null.engine import TEXT
from shared import subjects
from shared.bus import Message
from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.grpc_client import chat, texts, triton_client
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.memory_bus import MemoryBus
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
USER = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "I am "}
PROMPT = "user: Hi\nassistant: "  # as the null model's template writes it
ASKED = {"model": "demo", "max_tokens": 6}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def said(prompt: str, size: int = 6) -> str:
    """What the null engine answers to a prompt."""
    return (TEXT * 4)[len(prompt.encode()) :][:size]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with gateway_with_leader(grpc_port=free_port()) as running:
        yield running


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json={**ASKED, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def events(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = await http.post(path, json={**ASKED, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER, BEGUN], "continue_final_message": True},
        {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": False},
        {"messages": [USER, {**BEGUN, "prefix": True}]},
    ],
)
async def test_a_chat_goes_on_from_its_last_message(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    whole = await ask(http, CHAT, **body)
    (choice,) = whole["choices"]
    assert choice["message"]["content"] == said(PROMPT + "I am ")
    assert whole["usage"]["prompt_tokens"] == len(PROMPT + "I am ")
    parts = await events(http, CHAT, **body)
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in parts)
    assert text == choice["message"]["content"]


async def test_a_last_message_of_the_assistant_is_a_turn_of_its_own_otherwise(
    http: httpx.AsyncClient,
) -> None:
    whole = await ask(http, CHAT, messages=[USER, BEGUN])
    assert whole["usage"]["prompt_tokens"] == len("user: Hi\nassistant: I am \nassistant: ")
    bare = await ask(http, CHAT, messages=[USER], add_generation_prompt=False)
    assert bare["usage"]["prompt_tokens"] == len("user: Hi\n")


async def test_messages_are_prefilled(http: httpx.AsyncClient) -> None:
    asked = {"messages": [USER, BEGUN]}
    whole = await ask(http, MESSAGES, **asked)
    assert whole["content"] == [{"type": "text", "text": said(PROMPT + "I am ")}]
    counted = await http.post(f"{MESSAGES}/count_tokens", json={"model": "demo", **asked})
    assert counted.json() == {"input_tokens": len(PROMPT + "I am ")}
    parts = await events(http, MESSAGES, **asked)
    text = "".join(one["delta"]["text"] for one in parts if one["type"] == "content_block_delta")
    assert text == said(PROMPT + "I am ")


async def test_tokenize_leaves_the_last_message_open(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "messages": [USER, BEGUN], "continue_final_message": True}
    answer = (await http.post("/tokenize", json=body)).json()
    assert bytes(answer["tokens"]).decode() == PROMPT + "I am "


async def test_the_session_has_one_message_of_both_parts(http: httpx.AsyncClient) -> None:
    whole = await ask(http, CHAT, messages=[USER, BEGUN], continue_final_message=True, session_id="continued")
    assert whole["session"]["turns"] == 1
    more = await ask(
        http,
        CHAT,
        messages=[{"role": "user", "content": "Who?"}],
        session_id="continued",
        return_token_ids=True,
    )
    text = f"user: Hi\nassistant: I am {said(PROMPT + 'I am ')}\nuser: Who?\nassistant: "
    assert bytes(more["prompt_token_ids"]).decode() == text


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("ids", [False, True])
async def test_prompts_are_texts_or_ids_and_answers_have_both(
    http: httpx.AsyncClient, path: str, ids: bool
) -> None:
    asked: dict[str, Any] = {"messages": [USER]} if path == CHAT else {"prompt": PROMPT}
    if ids:
        asked = {"prompt_token_ids" if path == CHAT else "prompt": list(PROMPT.encode())}
    whole = await ask(http, path, return_token_ids=True, **asked)
    (choice,) = whole["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert text == said(PROMPT)
    assert choice["token_ids"] == list(said(PROMPT).encode())
    assert (whole if path == CHAT else choice)["prompt_token_ids"] == list(PROMPT.encode())
    parts = await events(http, path, return_token_ids=True, **asked)
    new = [token for one in parts for token in one["choices"][0].get("token_ids", ())]
    prompts = [(one if path == CHAT else one["choices"][0]).get("prompt_token_ids", []) for one in parts]
    assert new == choice["token_ids"]
    assert [token for prompt in prompts for token in prompt] == list(PROMPT.encode())
    plain = await ask(http, path, **asked)
    assert "prompt_token_ids" not in json.dumps(plain)
    assert '"token_ids"' not in json.dumps(plain)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [USER], "continue_final_message": True}, "continue_final_message"),
        (
            CHAT,
            {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        (CHAT, {"messages": [USER, {**BEGUN, "prefix": True}, USER]}, "messages[1].prefix"),
        (CHAT, {"messages": [{**USER, "prefix": True}]}, "messages[0].prefix"),
        (CHAT, {"messages": [BEGUN], "continue_final_message": True}, "messages"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": [USER], "prompt_token_ids": [1]}, "messages"),
        (CHAT, {"prompt_token_ids": []}, "prompt_token_ids"),
        (CHAT, {"prompt_token_ids": [1_000]}, "prompt_token_ids"),
        (MESSAGES, {"messages": [BEGUN]}, "messages"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
    ],
)
async def test_what_cannot_be_continued_names_its_field(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await http.post(path, json={**(ASKED if path != "/tokenize" else {"model": "demo"}), **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.get("param", param) == param
    assert param in error["message"] or param == "messages"


async def test_a_history_with_reasoning_needs_no_content(http: httpx.AsyncClient) -> None:
    for field in ("reasoning", "reasoning_content"):
        thought = {"role": "assistant", "content": None, field: "Hmm."}
        whole = await ask(http, CHAT, messages=[USER, thought, USER])
        assert whole["choices"][0]["message"]["content"]
    nothing = await http.post(
        CHAT, json={**ASKED, "messages": [USER, {"role": "assistant", "content": None}]}
    )
    assert nothing.status_code == 400


async def test_grpc_goes_on_and_tells_the_ids(gateway: Gateway) -> None:
    fields = {"continue_final_message": True, "return_token_ids": True, "max_tokens": 6}
    inputs = [chat([USER, BEGUN]), texts("sampling_parameters", json.dumps(fields))]
    async with triton_client(gateway) as client:
        result = await client.infer("demo", inputs)
    reported = {
        name: result.as_numpy(name)[0].decode() for name in ("text_output", "token_ids", "prompt_token_ids")
    }
    assert reported["text_output"] == said(PROMPT + "I am ")
    assert bytes(json.loads(reported["token_ids"])).decode() == reported["text_output"]
    assert bytes(json.loads(reported["prompt_token_ids"])).decode() == PROMPT + "I am "


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"messages": [USER, BEGUN], "continue_final_message": True}, said(PROMPT + "I am ")),
        ({"prompt_token_ids": list(PROMPT.encode())}, said(PROMPT)),
    ],
)
async def test_one_message_on_the_bus_and_a_websocket_go_on(
    gateway: Gateway, body: dict[str, Any], answer: str
) -> None:
    bus, replies = MemoryBus(gateway.broker), asyncio.Queue[Message]()

    async def take(message: Message) -> None:
        replies.put_nowait(message)

    inbox = bus.new_inbox()
    await bus.subscribe(inbox, take)
    await bus.publish(subjects.complete("demo"), json.dumps({"max_tokens": 6, **body}).encode(), reply=inbox)
    reply = json.loads((await asyncio.wait_for(replies.get(), PATIENCE_S)).data)
    await bus.close()
    assert reply["choices"][0]["message"]["content"] == answer
    async with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime") as socket:
        await socket.send(json.dumps({"type": "request", "id": "a", "body": {**ASKED, **body}}))
        found: dict[str, Any] = {}
        while found.get("type") not in ("answer", "error"):
            found = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))
    assert found["data"]["choices"][0]["message"]["content"] == answer
