"""`ryz up --engine vllm` with a stand-in for vLLM: chats, refusals by name, streams whose vLLM is killed.

The stand-in counts upwards from the prompt, so an answer is the same whichever group goes on with it.
"""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import psutil
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

    def are_ready(self) -> bool:
        return [group["state"] for group in self.groups().values()] == ["ready"] * 2

    def core_of(self, group: str) -> int:
        """The process in which vLLM computes."""
        leader = psutil.Process(self.groups()[group]["leader_pid"])
        return next(one.pid for one in leader.children(recursive=True) if "spawn_main" in str(one.cmdline()))


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


def stream(served: Served, text: str, kill: bool = False) -> tuple[str, str]:
    """The whole of a streamed answer, and how it was resumed; its vLLM is killed after its first text."""
    found, resumed, ended = "", "", False
    with served.api.stream("POST", "/v1/chat/completions", json=body(text, stream=True)) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                ended = ended or line == "data: [DONE]"
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            resumed = chunk.get("resumed", resumed)
            found += chunk["choices"][0]["delta"].get("content", "") if chunk["choices"] else ""
            if found and kill:
                os.kill(served.core_of(answer.headers["x-ryz-group"]), signal.SIGKILL)
                kill = False
    assert ended
    return found, resumed


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
    answer = served.api.post(
        "/v1/chat/completions", json=body("form", response_format={"type": "json_object"})
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "guest_cannot", answer.text


def test_streams_whose_vllm_is_killed_go_on_at_the_other_group(served: Served) -> None:
    whole, resumed = stream(served, "count")
    assert (len(whole) > 10, resumed) == (True, "")
    for _ in range(3):
        text, resumed = stream(served, "count", kill=True)
        assert text == whole
        assert resumed == "text"
        wait_for(served.are_ready, "both groups are ready again")
