"""Log probabilities of tokens that are parts of characters, with a whole leader of byte tokens."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.worker.null.engine import NullEngine
from tests.kits.gateway.with_leader import gateway_with_leader

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "é😀 ab 你END"
BYTES = SAID.encode()
PROMPT = "ü" * (len(BYTES) // 2) + "x" * (len(BYTES) % 2)  # as long as a round of the engine's answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    engine = NullEngine(
        step_delay_s=0.0, tokens=list(BYTES), num_blocks=256, vocab_size=257, context_length=2048
    )
    async with (
        gateway_with_leader(leader={"engine": engine}) as gateway,
        httpx.AsyncClient(base_url=f"{gateway.url}/v1", timeout=30) as client,
    ):
        yield client


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def read_token(token: str) -> bytes:
    r"""The bytes of a token of a text completion: `bytes:\xe2` stands for a part of a character."""
    if not token.startswith("bytes:"):
        return token.encode()
    return re.sub(rb"\\x(..)", lambda hit: bytes.fromhex(hit[1].decode()), token[6:].encode())


async def streamed(http: httpx.AsyncClient, **body: Any) -> tuple[str, dict[str, list[Any]]]:
    text, logprobs = "", dict[str, list[Any]]()
    async with http.stream("POST", "/completions", json={"model": "demo", "stream": True, **body}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for chunk in json.loads(line[6:])["choices"]:
                    text += chunk["text"]
                    for name, values in (chunk["logprobs"] or {}).items():
                        logprobs[name] = logprobs.get(name, []) + values
                    assert all(offset <= len(text) for offset in logprobs.get("text_offset", []))
    return text, logprobs


@pytest.mark.parametrize("max_tokens", [1, 2, 4, 40])
async def test_the_bytes_of_a_chat_are_those_of_its_text(http: httpx.AsyncClient, max_tokens: int) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens}
    choice = (await ask(http, "/chat/completions", logprobs=True, top_logprobs=1, **body))["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == max_tokens
    data = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert data.decode(errors="replace") == choice["message"]["content"]
    assert data in BYTES * 9
    for entry in entries:
        assert bytes(entry["top_logprobs"][0]["bytes"]) == bytes(entry["bytes"])
        (byte,) = entry["bytes"]
        assert entry["token"] == (chr(byte) if byte < 128 else f"\\x{byte:02x}")
    response = await ask(
        http,
        "/responses",
        input="hi",
        max_output_tokens=max_tokens,
        include=["message.output_text.logprobs"],
        store=False,
    )
    (part,) = response["output"][0]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]) == data


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"stop": "END"}, {"stop": ["b 你E", "zz"]}, {"stop": "你"}, {"logprobs": 2}]
)
@pytest.mark.parametrize("max_tokens", [1, 3, 30])
async def test_offsets_are_positions_in_the_text(
    http: httpx.AsyncClient, more: dict[str, Any], max_tokens: int, echo: bool
) -> None:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "echo": echo, "logprobs": 1, **more}
    found = await ask(http, "/completions", **body)
    text, logprobs = found["choices"][0]["text"], found["choices"][0]["logprobs"]
    tokens = [read_token(token) for token in logprobs["tokens"]]
    num_tokens = found["usage"]["completion_tokens"] + (found["usage"]["prompt_tokens"] if echo else 0)
    assert len(tokens) == len(logprobs["text_offset"]) == num_tokens
    position, data = 0, b"".join(tokens)
    for token, offset in zip(tokens, logprobs["text_offset"], strict=True):
        before = data[:position].decode(errors="ignore")  # without the character that is not complete
        assert offset == min(len(before), len(text)), (token, text)
        position += len(token)
    assert data.decode(errors="replace").startswith(text)
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert top is None or token in top
    assert await streamed(http, **body) == (text, logprobs)


async def test_prompts_are_reported_with_their_bytes(http: httpx.AsyncClient) -> None:
    found = await ask(http, "/completions", prompt="aü", max_tokens=1, prompt_logprobs=1)
    scores = found["choices"][0]["prompt_logprobs"]
    shown = [entry and {one["decoded_token"] for one in entry.values()} for entry in scores]
    assert shown[0] is None
    assert r"bytes:\xc3" in shown[1]
    assert r"bytes:\xbc" in shown[2]
    answer = await http.post(
        "/../tokenize", json={"model": "demo", "prompt": "aü", "return_token_strs": True}
    )
    assert answer.json()["token_strs"] == ["a", r"bytes:\xc3", r"bytes:\xbc"]
