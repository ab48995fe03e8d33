"""Uses a stack with texts and keys that can be recognised, also in ways that fail; finds where they stand."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import msgspec

from shared import subjects
from shared.bus.nats import NatsBus
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.waiting import wait_for

API_KEY, METRICS_KEY, SESSION_KEY = (
    "k3y-of-Ada-0123456789",
    "k3y-of-metrics-0123456789",
    "k3y-of-ids-0123456789",
)
WRONG_KEY = "k3y-that-is-guessed"
WORDS = "zwischenfall-{}"  # in every prompt; its number says which one
ANSWER = "fox jumps over"  # what the null engine says
TRACE = "0af7651916cd43dd8448eb211c80319c"
ENVIRONMENT = {
    "RYZ_API_KEYS": f"{API_KEY}:ada", "RYZ_METRICS_KEY": METRICS_KEY, "RYZ_SESSION_KEY": SESSION_KEY,
    "RYZ_LOG_LEVEL": "debug", "RYZ_LOG_BURST": "0", "RYZ_REQUEST_LOG": "true",
    "RYZ_TRACE_RATIO": "1", "RYZ_TRACE_EXPORT": "console",
    "RYZ_NULL_STEP_DELAY_MS": "1",  # a stream lasts until its leader is killed
}  # fmt: skip
SECRETS = (API_KEY, METRICS_KEY, SESSION_KEY, WRONG_KEY, "zwischenfall", ANSWER)


def said(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me of {WORDS.format(number)}, please."}]


def wrong_calls() -> list[tuple[str, Any]]:
    """Calls that fail at some part of the way, each with a text that nobody else is to see."""
    text, tool = (
        WORDS.format(2),
        {"type": "function", "function": {"name": "f", "description": WORDS.format(3)}},
    )
    chat = {"model": "demo", "max_tokens": 8, "messages": said(2)}
    return [
        ("/v1/chat/completions", f'{{"model": "demo", "messages": "{text}'),  # no JSON
        ("/v1/chat/completions", chat | {"messages": [{"role": text, "content": text}]}),
        ("/v1/chat/completions", chat | {"temperature": text}),
        ("/v1/chat/completions", chat | {"messages": [{"role": "user", "content": [{"type": text}]}]}),
        ("/v1/chat/completions", chat | {"response_format": {"type": "json_schema", "json_schema": text}}),
        ("/v1/chat/completions", chat | {"guided_regex": f"({text}"}),
        ("/v1/chat/completions", chat | {"guided_regex": f"{text}"}),
        ("/v1/chat/completions", chat | {"tools": [tool], "tool_choice": text}),
        ("/v1/chat/completions", chat | {"messages": said(4) * 9000}),  # longer than the context
        (
            "/v1/chat/completions",
            chat | {"messages": [{"role": "tool", "content": text, "tool_call_id": "x"}]},
        ),
        ("/v1/completions", {"model": "demo", "prompt": text, "max_tokens": 4, "stop": [text, text]}),
        ("/v1/completions", {"model": "demo", "prompt": {"a": text}}),
        ("/v1/messages", {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}),
        ("/v1/messages", {"model": "demo", "max_tokens": text, "messages": said(5)}),
        ("/v1/responses", {"model": "demo", "input": text, "max_output_tokens": 16}),
        ("/v1/responses", {"model": "demo", "input": [{"type": text}]}),
        ("/v1/embeddings", {"model": "demo", "input": text}),
        ("/v1/sessions/told-2/import", {"messages": said(6)}),
        ("/tokenize", {"model": "demo", "prompt": text}),
    ]


def use_with_words(stack: Stack) -> None:
    """Calls the stack in ways that succeed and in ways that do not."""
    key = {"Authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=stack.state.url, timeout=30, headers=key) as http:
        body = {"model": "demo", "max_tokens": 40, "messages": said(1)}
        answer = http.post(
            "/v1/chat/completions", json=body, headers={"X-Session-Id": "told-1", "X-Request-Id": "told-1"}
        )
        assert ANSWER in answer.json()["choices"][0]["message"]["content"]
        for path, wrong in wrong_calls():
            data = wrong if isinstance(wrong, str) else json.dumps(wrong)
            status = http.post(path, content=data, headers={"Content-Type": "application/json"}).status_code
            assert status < 500 or status in {501, 503}, (path, status)
        for header in ({"Authorization": f"Bearer {WRONG_KEY}"}, {"X-Api-Key": WRONG_KEY}):
            with httpx.Client(base_url=stack.state.url, timeout=30) as stranger:
                assert stranger.post("/v1/chat/completions", json=body, headers=header).status_code == 401
                assert stranger.get(f"/v1/models?key={WRONG_KEY}").status_code == 401
        assert http.get("/v1/sessions/told-1/export").status_code == 200
    asyncio.run(_send_garbage(stack))
    router = next(iter(stack.state_dir.logs.glob("router*.log")))
    wait_for(lambda: "bad message" in router.read_text(), "the router says that it cannot read a message")


async def _send_garbage(stack: Stack) -> None:
    """Sends messages that no service can read, of a service outside and of a router."""
    text = WORDS.format(7)
    halves = (msgspec.msgpack.encode({"prompt": text, "request_id": text * 9}), text.encode())
    for user, names in (("outside", ()), ("router", (subjects.work("g0"), subjects.GROUP_DOWN))):
        bus = await NatsBus.connect(stack.state.nats_urls[user], name="garbage")
        for data in halves:
            for subject in names or (stack_subject(stack, user),):
                await bus.publish(subject, data)
        await bus.flush()
        await bus.close()


def stack_subject(stack: Stack, user: str) -> str:
    """The subject on which this user may ask for generations."""
    return subjects.generate(stack.state.model, subjects.OutsideService(user, user))


def move_a_stream(stack: Stack, request_id: str) -> None:
    """Kills the leader of a stream in its middle, and waits until the group is back."""
    headers = {
        "Authorization": f"Bearer {API_KEY}",
        "X-Request-Id": request_id,
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
    }
    body = {"model": "demo", "stream": True, "max_tokens": 2000, "ignore_eos": True, "messages": said(8)}
    group = ""
    with (
        httpx.Client(base_url=stack.state.url, timeout=60) as http,
        http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        lines: list[str] = []
        for line in filter(None, answer.iter_lines()):
            lines.append(line)
            if len(lines) == 20:
                group = answer.headers["x-ryz-group"]
                os.kill(stack.pid_of(f"worker-{group}"), signal.SIGKILL)
    assert lines[-1] == "data: [DONE]"
    wait_for(
        lambda: [one["state"] for one in stack.status()["groups"]] == ["ready"] * 2, f"{group} is back", 30
    )


def all_output(stack: Stack) -> dict[str, str]:
    """All texts that a stack tells its operator, by where: logs with spans, metrics, states, explanations."""
    output = {f"log of {path.stem}": path.read_text() for path in stack.state_dir.logs.glob("*.log")}
    output["output"] = Path(stack.output).read_text()
    key = {"Authorization": f"Bearer {METRICS_KEY}"}
    status = stack.status()
    output["status"] = json.dumps(status)
    urls = [one["detail"]["admin_url"] or stack.state.url for one in status["services"]]
    for url in urls:
        metrics = httpx.get(f"{url}/metrics", headers=key, timeout=10)
        assert metrics.status_code == 200
        output[f"metrics of {url}"] = metrics.text
    output["explain"] = ryz("explain", "--json", "told", cwd=stack.folder).stdout
    assert "moments" in output["explain"] or "spans" in output["explain"]
    return output
