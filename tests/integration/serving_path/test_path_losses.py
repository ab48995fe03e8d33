"""Messages are lost between gateway, router and leader: the answer is whole, or there is an error in time."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from services.worker.null.engine import TEXT
from shared import subjects
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import Accepted, Done, FrameBatch, Tokens
from tests.kits.proxies.nats import Loss, keep_all
from tests.kits.stacks.lossy_path import LossyPath, lossy_path

TOKENS = 24


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[LossyPath]:
    async with lossy_path(tmp_path, step_s=0.003) as path:
        yield path


@pytest.fixture
async def http(path: LossyPath) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=path.url, timeout=5) as http:
        yield http


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "demo", "messages": messages, "max_tokens": TOKENS, "ignore_eos": True} | fields


def new_session() -> dict[str, str]:
    """With a session the leader wants to hear that the answer has arrived."""
    return {"X-Session-Id": f"s-{uuid4().hex}"}


async def whole(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/chat/completions", json=body(), headers=new_session())
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def streamed(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/chat/completions", json=body(stream=True), headers=new_session())
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def first(match: Loss, times: int = 1, after: int = 0) -> Loss:
    """Loses the first `times` messages that match, after `after` others that match."""
    seen = 0

    def loss(subject: str, data: bytes) -> bool:
        nonlocal seen
        seen += match(subject, data)
        return match(subject, data) and after < seen <= after + times

    return loss


def either(*losses: Loss) -> Loss:
    def loss(subject: str, data: bytes) -> bool:
        chosen = [one(subject, data) for one in losses]  # all of them count what they see
        return any(chosen)

    return loss


def to(subject: str) -> Loss:
    return lambda published, _: published == subject


def frames(kind: type) -> Loss:
    """Batches that have such a frame."""

    def match(subject: str, data: bytes) -> bool:
        if not subject.startswith("_INBOX"):
            return False
        try:
            batch = decode(data, FrameBatch)
        except InvalidRequest:
            return False
        # a reply to a question for frames has some as well, and no group
        return bool(batch.group) and any(isinstance(frame, kind) for frame in batch.frames)

    return match


def resent(subject: str, data: bytes) -> bool:
    return subject.startswith("_INBOX") and b"next_seq" in data


GENERATE, WORK = to(subjects.generate("demo")), to(subjects.work("g0"))
AGAIN = to(subjects.again("demo"))
RESEND, DELIVERED = to(subjects.resend("g0")), to(subjects.delivered("g0"))
ONCE: dict[str, Callable[[], dict[str, Loss]]] = {
    "request to the router": lambda: {"gateway": first(GENERATE)},
    "two requests to the router": lambda: {"gateway": first(GENERATE, 2)},
    "request to the leader": lambda: {"router": first(WORK)},
    "acceptance": lambda: {"leader": first(frames(Accepted))},
    "first token": lambda: {"leader": first(frames(Tokens))},
    "last frame": lambda: {"leader": first(frames(Done))},
    "all tokens": lambda: {"leader": first(frames(Tokens), TOKENS)},
    "last frame and the question for it": lambda: {"leader": first(frames(Done)), "gateway": first(RESEND)},
    "last frame and the reply with it": lambda: {"leader": either(first(frames(Done)), first(resent))},
    "news of the delivery": lambda: {"gateway": first(DELIVERED)},
}
# an answer that is not streamed comes in a few frames
BETWEEN: dict[str, Callable[[], dict[str, Loss]]] = {
    "token in the middle": lambda: {"leader": first(frames(Tokens), after=TOKENS // 2)},
    "some tokens in the middle": lambda: {"leader": first(frames(Tokens), 5, after=5)},
    "a token and the question for it": lambda: {
        "leader": first(frames(Tokens), after=3), "gateway": first(RESEND),
    },
}  # fmt: skip
EVER: dict[str, tuple[str, Loss, bool]] = {
    "requests to the router": ("gateway", either(GENERATE, AGAIN), False),
    "requests to the leader": ("router", WORK, True),
    "all frames": ("leader", lambda subject, _: subject.startswith("_INBOX"), True),
    "frames behind the first": ("leader", either(frames(Tokens), frames(Done), resent), False),
}


async def test_what_is_lost_once_changes_no_answer(path: LossyPath, http: httpx.AsyncClient) -> None:
    expected = await whole(http)
    assert len(expected) == TOKENS
    assert expected in TEXT * 3
    assert await streamed(http) == expected
    cases = [(name, losses, ask) for name, losses in ONCE.items() for ask in (whole, streamed)]
    cases += [(name, losses, streamed) for name, losses in BETWEEN.items()]
    for name, make_losses, ask in cases:
        losses = make_losses()
        for proxy, loss in losses.items():
            path.proxies[proxy].lost.clear()
            path.proxies[proxy].loss = loss
        assert await ask(http) == expected, name
        await path.all_free()
        for proxy in losses:
            assert path.proxies[proxy].lost, f"{name}: nothing was lost behind the {proxy}"
            path.proxies[proxy].loss = keep_all
    # missing frames were asked for: no request was computed again by another attempt
    assert path.gateway.registry.get_sample_value("ryz_client_lost_total") == 0


async def test_what_is_always_lost_is_an_error_in_time(path: LossyPath, http: httpx.AsyncClient) -> None:
    expected = await whole(http)
    for name, (proxy, loss, stream) in EVER.items():
        path.proxies[proxy].loss = loss
        answer = await http.post("/v1/chat/completions", json=body(stream=stream, timeout=1))
        assert answer.status_code in {503, 504}, f"{name}: {answer.text}"
        assert answer.json()["error"]["message"]
        path.proxies[proxy].loss = keep_all
        await path.all_free()
    assert await whole(http) == expected
