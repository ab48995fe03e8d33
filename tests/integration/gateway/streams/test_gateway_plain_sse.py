"""Streams are plain server-sent events, as simple readers need them, unless a client asks for event ids.

`PlainReader` reads like `vllm bench serve` and many hand-written clients: it splits the bytes at empty
lines, strips the prefix `data: ` and decodes the rest as JSON, so any other line breaks it.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import APIError, AsyncOpenAI

from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway

TEXT = "".join(WORDS)
USAGE = {"include_usage": True}
IDS = {"include_event_ids": True}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
COMPLETION = {"model": "demo", "prompt": "Hello", "stream": True}
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
BODIES = {"chat": CHAT, "completion": COMPLETION}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class PlainReader:
    """Decodes the events of a stream that arrives in pieces of any size."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.done = False
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                self.done = True
            else:
                self.events.append(json.loads(data))

    def end(self) -> None:
        """Asserts that no partial event is left."""
        assert self._rest == b""

    @property
    def texts(self) -> dict[int, str]:
        """The text of each choice."""
        texts: dict[int, str] = {}
        for event in self.events:
            for choice in event.get("choices", ()):
                text = choice.get("text") or choice.get("delta", {}).get("content") or ""
                texts[choice["index"]] = texts.get(choice["index"], "") + text
        return texts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(stream_grace_s=1.0) as running:  # the operator's grace does not enable ids
        yield running


async def read(http: httpx.AsyncClient, kind: str, **changes: Any) -> PlainReader:
    """Streams one request and feeds the pieces to a reader as they arrive."""
    reader = PlainReader()
    async with http.stream("POST", PATHS[kind], json=BODIES[kind] | changes) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            reader.feed(piece)
    reader.end()
    return reader


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("changes", [{}, {"n": 2}, {"stream_options": USAGE}])
async def test_a_plain_reader_reads_whole_streams(
    http: httpx.AsyncClient, kind: str, changes: dict[str, Any]
) -> None:
    reader = await read(http, kind, **changes)
    assert reader.done
    assert reader.texts == dict.fromkeys(range(changes.get("n", 1)), TEXT)
    usage = [event["usage"] for event in reader.events if event.get("usage")]
    assert len(usage) == ("stream_options" in changes)


async def test_a_plain_reader_reads_several_prompts(http: httpx.AsyncClient) -> None:
    reader = await read(http, "completion", prompt=["One", "Two"])
    assert (reader.done, reader.texts) == (True, {0: TEXT, 1: TEXT})


@pytest.mark.parametrize("size", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_plain_reader_may_get_pieces_of_any_size(
    http: httpx.AsyncClient, kind: str, size: int
) -> None:
    answer = await http.post(PATHS[kind], json=BODIES[kind] | {"stream_options": USAGE})
    reader = PlainReader()
    for start in range(0, len(answer.content), size):
        reader.feed(answer.content[start : start + size])
    reader.end()
    assert (reader.done, reader.texts) == (True, {0: TEXT})


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_plain_reader_sees_an_error_in_mid_stream(http: httpx.AsyncClient, kind: str) -> None:
    reader = await read(http, kind, model="breaks")
    assert (reader.done, reader.texts[0]) == (False, "Hel")
    assert reader.events[-1]["error"]["code"] == "group_lost"


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_every_line_is_data_or_empty(http: httpx.AsyncClient, kind: str) -> None:
    for model in ("demo", "breaks"):
        body = BODIES[kind] | {"model": model}
        text = (await http.post(PATHS[kind], json=body)).text
        assert {line.partition(" ")[0] for line in text.split("\n")} == {"data:", ""}


@pytest.mark.parametrize("asked", ["header", "option"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_ids_come_when_they_are_asked_for(http: httpx.AsyncClient, kind: str, asked: str) -> None:
    headers = {"X-Stream-Grace": "0"} if asked == "header" else {}
    body = BODIES[kind] | ({"stream_options": IDS} if asked == "option" else {})
    answer = await http.post(PATHS[kind], json=body, headers=headers)
    events = answer.text.split("\n\n")[:-1]
    assert len(events) > len(WORDS)
    assert all(re.fullmatch(r"id: \d+\.\d+\ndata: .+", event) for event in events)


async def test_the_option_outweighs_the_header(http: httpx.AsyncClient) -> None:
    body = CHAT | {"stream_options": {"include_event_ids": False}}
    answer = await http.post(PATHS["chat"], json=body, headers={"X-Stream-Grace": "1"})
    assert "id: " not in answer.text


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"stream": False, "stream_options": IDS}, "stream_options"),
        ({"stream_options": {"include_event_ids": "yes"}}, "stream_options.include_event_ids"),
        ({"prompt": ["One", "Two"], "stream_options": IDS}, "stream_options.include_event_ids"),
    ],
)
async def test_ids_are_refused_where_there_are_none(
    http: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    answer = await http.post(PATHS["completion"], json=COMPLETION | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("ids", [False, True])
async def test_the_sdk_reads_streams_with_ids_and_without(gateway: Gateway, ids: bool) -> None:
    options: Any = USAGE | {"include_event_ids": ids}
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
        chat = await sdk.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options=options,
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in chat if chunk.choices]
        assert "".join(pieces) == TEXT
        text = await sdk.completions.create(model="demo", prompt="Hello", stream=True, stream_options=options)
        assert "".join([chunk.choices[0].text async for chunk in text if chunk.choices]) == TEXT
        broken = await sdk.completions.create(
            model="breaks", prompt="Hello", stream=True, stream_options=options
        )
        with pytest.raises(APIError, match="group g0 is gone"):
            async for _ in broken:
                pass
