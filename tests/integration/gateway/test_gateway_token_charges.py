"""The limit of tokens counts what was generated, once, however an answer ends; the leader is a whole one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.gateway import __main__ as gateway_process
from services.gateway.admission.rate_limits import RateLimiter
from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.response_service import serve_responses
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.waiting import until
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALL = 1_000_000
PROMPT = "Hello, how are you?"
COMPLETIONS = "/v1/completions"


def bucket_without_refill(_: int) -> RateLimiter:
    return RateLimiter(rate=1e-9, burst=ALL, what="tokens")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    slow = {"engine": null_engine(delay_s=0.002)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_process, "tokens_per_minute", bucket_without_refill)
        async with gateway_with_leader(leader=slow) as running:
            await serve_responses(running.fleet.bus)
            yield running


async def left(http: httpx.AsyncClient) -> int:
    """Tokens that are left of the limit."""
    answer = await http.post("/v1/completions", json={})
    return int(answer.headers["x-ratelimit-remaining-tokens"])


def computed(gateway: Gateway) -> int:
    """Tokens that the leader has taken as prompts and generated, by its own metrics."""
    assert gateway.leader_metric is not None
    names = ("prompt_tokens_total", "generation_tokens_total")
    return int(sum(gateway.leader_metric(name) for name in names))


def body(max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, **fields}


async def read_whole(http: httpx.AsyncClient, **headers: str) -> None:
    answer = await http.post(COMPLETIONS, json=body(20, n=2), headers=headers)
    assert answer.json()["usage"]["completion_tokens"] == 40


async def read_stream(http: httpx.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, json=body(20, stream=True))
    assert answer.text.endswith("data: [DONE]\n\n")


async def leave_whole(http: httpx.AsyncClient) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        await http.post(COMPLETIONS, json=body(400), timeout=0.2)
        pytest.fail("the answer came before its client left")


async def leave_stream(http: httpx.AsyncClient, grace: str = "0") -> str:
    """Reads the beginning of a stream; returns its id."""
    asked = body(400, stream=True, n=1 if grace != "0" else 2)
    async with http.stream("POST", COMPLETIONS, json=asked, headers={"x-stream-grace": grace}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                return str(answer.headers.get("x-stream-id"))
    raise AssertionError("no event")


async def resume_to_the_end(http: httpx.AsyncClient) -> None:
    stream_id = await leave_stream(http, "30")
    for _ in range(2):  # the second time it has ended
        answer = await http.get(f"/v1/streams/{stream_id}")
        assert answer.text.endswith("data: [DONE]\n\n")


async def resume_and_end(http: httpx.AsyncClient) -> None:
    stream_id = await leave_stream(http, "30")
    assert (await http.delete(f"/v1/streams/{stream_id}")).status_code == 204


async def let_the_grace_pass(http: httpx.AsyncClient) -> None:
    await leave_stream(http, "0.2")


async def repeat(http: httpx.AsyncClient) -> None:
    for _ in range(2):
        await read_whole_once(http)


async def read_whole_once(http: httpx.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, json=body(20), headers={"idempotency-key": "k"})
    assert answer.status_code == 200


async def respond_in_the_background(http: httpx.AsyncClient) -> None:
    asked = {"model": "demo", "input": PROMPT, "background": True, "max_output_tokens": 400}
    begun = (await http.post("/v1/responses", json=asked)).json()
    assert (await http.post(f"/v1/responses/{begun['id']}/cancel")).json()["status"] == "cancelled"


async def be_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, json=body(20, prompt="x" * 4000))
    assert answer.status_code == 400


MODES = [
    read_whole, read_stream, leave_whole, leave_stream, resume_to_the_end, resume_and_end, let_the_grace_pass,
    repeat, respond_in_the_background, be_refused,
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
async def test_what_was_computed_is_charged_once(
    gateway: Gateway, http: httpx.AsyncClient, mode: Callable[[httpx.AsyncClient], Awaitable[object]]
) -> None:
    before, computed_before = await left(http), computed(gateway)

    async def owed() -> int:
        return computed(gateway) - computed_before - (before - await left(http))

    await mode(http)

    async def settled() -> bool:
        return not (await owed() or gateway.running)

    await until(settled, longest_s=0.02)
    await asyncio.sleep(0.1)
    assert not await owed(), "charged again later"
    assert bool(before - await left(http)) == (mode is not be_refused)
