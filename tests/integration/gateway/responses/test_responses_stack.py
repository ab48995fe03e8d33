"""Responses on a stack of processes: OpenAI's client, restarts, gateways and groups that die."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.integration.gateway.responses.conftest import LEASE_S
from tests.kits.stacks.stream_stack import KEYS
from tests.kits.stacks.turn_stack import TurnsFleet
from tests.kits.waiting import PATIENCE_S

LONG = {"model": "demo", "input": "Tell me a story.", "max_output_tokens": 150, "seed": 7, "background": True}


@pytest.fixture
async def client(fleet: TurnsFleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.gateways[0]}/v1", api_key=KEYS["one"], max_retries=8) as client:
        yield client


async def begin(http: httpx.AsyncClient, **more: Any) -> str:
    answer = await http.post("/v1/responses", json=LONG | more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def whole_of(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """The response, once it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await http.get(f"/v1/responses/{name}")
            assert answer.status_code == 200, answer.text
            body: dict[str, Any] = answer.json()
            if body["status"] not in {"queued", "in_progress"}:
                return body
            await asyncio.sleep(0.05)


def text_of(body: dict[str, Any]) -> str:
    return "".join(part["text"] for item in body["output"] for part in item["content"])


async def read(
    http: httpx.AsyncClient, name: str, after: int = -1, until: int = 10**9
) -> list[dict[str, Any]]:
    """Events of a response from one after `after` on, up to number `until` or as far as they come."""
    more = f"&starting_after={after}" if after >= 0 else ""
    events: list[dict[str, Any]] = []
    try:
        async with http.stream("GET", f"/v1/responses/{name}?stream=true{more}") as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
                    if events[-1]["sequence_number"] >= until:
                        break
    except httpx.TransportError:
        pass  # its gateway died
    return events


def restart_group(fleet: TurnsFleet, index: int) -> None:
    fleet.kill(f"group{index}", signal.SIGTERM)
    fleet.start_group(index)
    fleet.await_group(index)


async def expected(http: httpx.AsyncClient) -> str:
    body = await whole_of(http, await begin(http))
    assert body["status"] == "incomplete"
    assert len(text_of(body)) >= 100
    return text_of(body)


async def test_the_official_client(client: AsyncOpenAI) -> None:
    seed = {"seed": 1}  # an addition to OpenAI's fields
    made = await client.responses.create(model="demo", input="Hello", max_output_tokens=8, extra_body=seed)
    assert made.incomplete_details is not None
    assert made.output_text
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (await client.responses.retrieve(made.id)).output_text == made.output_text
    deltas = ""
    async with client.responses.stream(
        model="demo", input="Hello", max_output_tokens=8, extra_body=seed
    ) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                deltas += event.delta
    assert event.type == "response.incomplete"
    assert deltas == event.response.output_text == made.output_text
    items = await client.responses.input_items.list(made.id)
    assert items.data[0].content[0].text == "Hello"
    await client.responses.delete(made.id)
    begun = await client.responses.create(model="demo", input="x", background=True, max_output_tokens=500)
    assert begun.status == "queued"
    assert (await client.responses.cancel(begun.id)).status == "cancelled"


async def test_ten_turns_by_id_alone_while_everything_restarts(
    fleet: TurnsFleet, client: AsyncOpenAI
) -> None:
    previous, prompt = None, 0
    for turn in range(10):
        made = await client.responses.create(
            model="demo", input=f"Turn {turn}: go on.", max_output_tokens=16, previous_response_id=previous
        )
        assert made.status == "incomplete"
        assert made.usage is not None
        assert made.usage.input_tokens > prompt + 16  # the turns before are in the prompt
        if turn in {1, 2, 9}:  # its group has not changed
            assert made.usage.input_tokens_details.cached_tokens >= prompt - 32
        previous, prompt = made.id, made.usage.input_tokens
        if turn == 2:
            restart_group(fleet, 0)
        elif turn == 4:
            restart_group(fleet, 1)
        elif turn == 6:
            fleet.kill("gateway0", signal.SIGTERM)
            fleet.start_gateway(0)
            fleet.await_gateway(0)


async def test_a_background_response_is_read_and_cancelled_at_another_gateway(fleet: TurnsFleet) -> None:
    async with fleet.http(0) as here, fleet.http(1) as there, fleet.http(1, "two") as stranger:
        name = await begin(here)
        assert (await there.get(f"/v1/responses/{name}")).json()["status"] == "in_progress"
        assert (await stranger.get(f"/v1/responses/{name}")).status_code == 404
        events = await read(there, name)  # the other gateway attaches to it
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["error"] is None
        read_here = await whole_of(here, name)
        assert events[-1]["response"] == read_here, json.dumps([events[-1]["response"], read_here])
        name = await begin(here, max_output_tokens=1500)
        assert (await there.post(f"/v1/responses/{name}/cancel")).json()["status"] == "cancelled"
        assert (await whole_of(here, name))["status"] == "cancelled"
        await fleet.until(lambda: fleet.running() == 0, "its sequence is gone")


async def test_a_stream_goes_on_at_the_next_gateway_when_its_own_dies(fleet: TurnsFleet) -> None:
    async with fleet.http(1) as there:
        text = await expected(there)
        async with fleet.http(0) as here:
            name = await begin(here)
            first = await read(here, name, until=40)
        fleet.kill("gateway0")
        rest = await read(there, name, after=first[-1]["sequence_number"])
        events = first + rest
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert deltas == text == text_of(events[-1]["response"])
        fleet.start_gateway(0)
        fleet.await_gateway(0)


@pytest.mark.parametrize(
    ("how", "with_group"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, False)]
)
async def test_a_response_ends_without_its_gateway_and_without_readers(
    fleet: TurnsFleet, how: int, with_group: bool
) -> None:
    async with fleet.http(1) as there:
        text = await expected(there)
        async with fleet.http(0) as here:
            name = await begin(here)
            await read(here, name, until=20)
        fleet.kill("gateway0", how)
        if with_group:  # wherever it runs, it is computed again
            for index in range(2):
                fleet.kill(f"group{index}")
                fleet.start_group(index)
        await asyncio.sleep(LEASE_S * 2 + 1.6)
        body = await whole_of(there, name)
        assert text_of(body) == text
        fleet.start_gateway(0)
        fleet.await_gateway(0)
