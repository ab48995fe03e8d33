"""Echoed prompts and their log probabilities over real HTTP with a whole leader behind the gateway."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.worker.null.engine import TEXT
from services.worker.null.prompts import LOGPROB
from tests.kits.gateway.with_leader import gateway_with_leader

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = "Grüße an alle, und "
IDS = list(PROMPT.encode())
TOKENS = [bytes((byte,)).decode(errors="replace") for byte in IDS]
ANSWER = TEXT[len(IDS) : len(IDS) + 4]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        gateway_with_leader() as gateway,
        httpx.AsyncClient(base_url=f"{gateway.url}/v1", timeout=30) as client,
    ):
        yield client


async def ask(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/completions", json={"model": "demo", "max_tokens": 4, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def streamed(http: httpx.AsyncClient, **body: Any) -> dict[int, dict[str, Any]]:
    """The choices of a stream, put together."""
    choices: dict[int, dict[str, Any]] = {}
    async with http.stream("POST", "/completions", json={"model": "demo", "stream": True, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for chunk in json.loads(line[6:])["choices"]:
                    choice = choices.setdefault(
                        chunk["index"], {"text": "", "logprobs": None, "finish_reason": None}
                    )
                    choice["text"] += chunk["text"]
                    choice["finish_reason"] = chunk["finish_reason"] or choice["finish_reason"]
                    for name, values in (chunk["logprobs"] or {}).items():
                        choice["logprobs"] = choice["logprobs"] or {}
                        choice["logprobs"][name] = choice["logprobs"].get(name, []) + values
    return choices


@pytest.mark.parametrize("prompt", [PROMPT, IDS])
async def test_the_text_begins_with_the_prompt(http: httpx.AsyncClient, prompt: Any) -> None:
    found = await ask(http, prompt=prompt, echo=True, n=2)
    assert [choice["text"] for choice in found["choices"]] == [PROMPT + ANSWER] * 2
    assert [choice["logprobs"] for choice in found["choices"]] == [None, None]
    assert found["usage"]["prompt_tokens"] == len(IDS)
    cut = await ask(http, prompt=prompt, echo=True, truncate_prompt_tokens=5)
    assert (cut["choices"][0]["text"][:5], cut["usage"]["prompt_tokens"]) == (" und ", 5)


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
async def test_an_evaluation_harness_scores_prompts(http: httpx.AsyncClient, max_tokens: int) -> None:
    """The request of lm-evaluation-harness's `local-completions`, and what it reads from the answer."""
    prompts = [IDS, list(b"another one")]
    found = await ask(
        http, prompt=prompts, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0, seed=1234
    )
    for ids, choice in zip(prompts, sorted(found["choices"], key=lambda one: one["index"]), strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(ids) + max_tokens
        assert logprobs["tokens"][0] == chr(ids[0])
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        scored = logprobs["token_logprobs"][1 : len(ids)]
        assert scored == [LOGPROB] * (len(ids) - 1)
        for value, top in zip(scored, logprobs["top_logprobs"][1 : len(ids)], strict=True):
            assert value == max(top.values())
        said = choice["text"].encode()
        assert logprobs["text_offset"] == [
            len(said[:i].decode(errors="ignore")) for i in range(len(ids) + max_tokens)
        ]
        assert choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 2 * max_tokens


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": 0}, {"logprobs": 2, "n": 2}, {"logprobs": 1, "max_tokens": 0}]
)
@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, IDS], "x" * 1500])
async def test_a_stream_tells_the_same(http: httpx.AsyncClient, prompt: Any, more: dict[str, Any]) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 4, **more}
    whole = await ask(http, **body)
    choices = {choice.pop("index"): choice for choice in whole["choices"]}
    assert await streamed(http, **body) == choices


async def test_prompt_logprobs_have_the_shape_of_vllm(http: httpx.AsyncClient) -> None:
    found = (await ask(http, prompt="ab", prompt_logprobs=1))["choices"][0]
    one = {"logprob": LOGPROB, "rank": 1, "decoded_token": "b"}
    assert found["prompt_logprobs"] == [None, {str(ord("b")): one}]
    assert (found["text"], found["logprobs"]) == (TEXT[2:6], None)
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    chat = (await http.post("/chat/completions", json=body | {"prompt_logprobs": 0})).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    last = chat["prompt_logprobs"][-1]
    assert last == {str(ord(" ")): {"logprob": LOGPROB, "rank": None, "decoded_token": " "}}
    assert "prompt_logprobs" not in (await http.post("/chat/completions", json=body)).json()
    cut = (await http.post("/chat/completions", json=body | {"truncate_prompt_tokens": 3})).json()
    assert cut["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("completions", {"prompt": "a", "max_tokens": 0, "n": 2}, "n"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "echo": True}, "echo"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}, "max_tokens"),
    ],
)
async def test_refusals_name_the_field(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(f"/{path}", json={"model": "demo", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
