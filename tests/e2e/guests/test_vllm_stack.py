"""`ryz up --engine vllm` with a stand-in for vLLM: chats, and refusals by name."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.kits.e2e.stack import Stack
from tests.kits.guests.vllm_guest import stub_python
from tests.kits.waiting import PATIENCE_S, wait_for

TOKENS = 150


class Served(NamedTuple):
    stack: Stack
    api: httpx.Client

    def groups(self) -> dict[str, dict[str, Any]]:
        return {str(group["group"]): group for group in self.stack.status()["groups"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    env = {"RYZ_VLLM_PYTHON": stub_python(folder), "RYZ_VLLM_ARGS": "--max-model-len 512 --stub-step-ms 5"}
    options = ("--engine", "vllm", "--groups", "2", "--tensor-parallel", "1", "--routers", "2")
    with Stack(folder, *options, env=env, calm=False).await_ready() as stack:
        with httpx.Client(base_url=stack.state.url, timeout=PATIENCE_S) as api:
            yield Served(stack, api)
        stack.remember()
        assert stack.end() == 0
        wait_for(lambda: not stack.leftovers(), "no process is left")


def body(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "demo", "messages": messages, "max_tokens": TOKENS, "temperature": 0, **fields}


def test_a_chat_is_answered_and_status_says_by_what(served: Served) -> None:
    answer = served.api.post("/v1/chat/completions", json=body("hello", max_tokens=12, logprobs=True))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert len(answer.json()["choices"][0]["logprobs"]["content"]) == 12
    guests = [group["guest"] for group in served.groups().values()]
    assert {guest["name"] for guest in guests} == {"vLLM 0.0.stub"}
    assert "logprobs" in guests[0]["can"]


def test_what_vllm_is_not_asked_for_is_refused_by_name(served: Served) -> None:
    answer = served.api.post("/v1/chat/completions", json=body("prompt", prompt_logprobs=1))
    assert answer.status_code == 400
    assert "the guest vLLM 0.0.stub cannot" in answer.text
    assert "`prompt_logprobs`" in answer.text
