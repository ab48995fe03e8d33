"""The routes of the Responses API over HTTP, with a scripted fleet and a store in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.gateway.resources.stored_responses.kept_events import EventRoom
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S, until

KEYS = "key-of-one:one,key-of-two:two"
TWO = {"authorization": "Bearer key-of-two"}


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(api_keys=KEYS) as gateway:
        yield gateway


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer key-of-one"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=10) as client:
        yield client


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; checks their form."""
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    events = []
    for block in blocks[:-2]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        event = json.loads(lines["data"])
        assert event["type"] == lines["event"]
        events.append(event)
    return events


async def made(http: httpx.AsyncClient, model: str = "demo", **body: Any) -> httpx.Response:
    return await http.post("/v1/responses", json={"model": model, "input": "hi"} | body)


def same(one: dict[str, Any]) -> str:
    """A response without what differs between two equal requests."""
    text = json.dumps(one | {"created_at": 0, "completed_at": 0})
    return text.replace(one["id"].partition("_")[2], "ID")


async def test_a_response_tells_the_sampling_that_it_got(http: httpx.AsyncClient, gateway: Gateway) -> None:
    whole = (await made(http)).json()
    assert (whole["temperature"], whole["top_p"]) == (0.2, 0.9)
    own = (await made(http, temperature=1, top_p=1)).json()
    assert (own["temperature"], own["top_p"]) == (1, 1)
    events = events_of((await made(http, stream=True, top_p=0.5)).text)
    shown = [event["response"] for event in events if "response" in event]
    assert {(one["temperature"], one["top_p"]) for one in shown} == {(0.2, 0.5)}
    asked = [(one.sampling.temperature, one.sampling.top_p) for one in gateway.fleet.requests]
    assert asked == [(None, None), (1, 1), (None, 0.5)]


@pytest.mark.parametrize("model", ["demo", "parts", "cut"])
async def test_a_stream_ends_with_the_whole_response(http: httpx.AsyncClient, model: str) -> None:
    whole = (await made(http, model)).json()
    events = events_of((await made(http, model, stream=True)).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert same(events[-1]["response"]) == same(whole)
    assert events[-1]["type"] == f"response.{whole['status']}"
    if model == "parts":
        kinds = [item["type"] for item in whole["output"]]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert whole["output"][2]["arguments"] == '{"city":"Ulm"}'
        assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_failures_are_a_status_or_an_event(http: httpx.AsyncClient) -> None:
    assert (await made(http, "none", stream=True)).status_code == 404
    assert (await made(http, "late-refusal", stream=True)).json()["error"]["param"] == "input"
    assert (await made(http, "breaks")).status_code == 503
    last = events_of((await made(http, "breaks", stream=True)).text)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["message"] == "group g0 is gone"
    stored = (await http.get(f"/v1/responses/{last['response']['id']}")).json()
    assert stored == last["response"]
    again = await made(http, previous_response_id=stored["id"])
    assert (again.status_code, again.json()["error"]["param"]) == (400, "previous_response_id")


async def test_a_conversation_of_ids_alone(gateway: Gateway, http: httpx.AsyncClient) -> None:
    last = None
    for turn in range(4):
        answer = (await made(http, input=f"turn {turn}", previous_response_id=last)).json()
        assert answer["previous_response_id"] == last
        last = answer["id"]
    messages = gateway.fleet.requests[-1].messages
    assert messages is not None
    assert [message.content for message in messages[::2]] == [f"turn {turn}" for turn in range(4)]
    assert [message.role for message in messages[1::2]] == ["assistant"] * 3
    items = (await http.get(f"/v1/responses/{last}/input_items")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["turn 3"]


async def test_the_input_of_a_response_comes_in_pages(http: httpx.AsyncClient) -> None:
    given = [{"role": "user", "content": text} for text in ("one", "two")]
    name = (await made(http, input=given)).json()["id"]
    newest = (await http.get(f"/v1/responses/{name}/input_items")).json()
    assert [item["content"][0]["text"] for item in newest["data"]] == ["two", "one"]
    oldest = (await http.get(f"/v1/responses/{name}/input_items?order=asc&limit=1")).json()
    assert (oldest["data"], oldest["has_more"]) == (newest["data"][1:], True)


async def test_a_response_is_its_tenants_and_can_be_deleted(http: httpx.AsyncClient) -> None:
    name = (await made(http)).json()["id"]
    path = f"/v1/responses/{name}"
    for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"),
                          ("GET", f"{path}/input_items"), ("GET", f"{path}?stream=true")):  # fmt: skip
        theirs = await http.request(method, where, headers=TWO)
        assert (theirs.status_code, theirs.json()["error"]["code"]) == (404, "response_not_found")
    theirs = await http.post(
        "/v1/responses", headers=TWO, json={"model": "demo", "input": "x", "previous_response_id": name}
    )
    assert (theirs.status_code, theirs.json()["error"]["param"]) == (404, "previous_response_id")
    assert (await http.post(f"{path}/cancel")).status_code == 400  # not of the background
    assert (await http.delete(path)).json() == {"id": name, "object": "response", "deleted": True}
    assert (await http.get(path)).status_code == 404
    assert (await http.get("/v1/responses/resp_%2e%2e")).status_code == 404


async def test_what_is_not_to_be_stored_leaves_no_record(http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        answer = await made(http, store=False, stream=stream)
        body = events_of(answer.text)[-1]["response"] if stream else answer.json()
        assert body["store"] is False
        assert (await http.get(f"/v1/responses/{body['id']}")).status_code == 404
    large = (await made(http, input="x" * 600_000)).json()  # over the store's limit: answered all the same
    assert (large["status"], large["store"]) == ("completed", False)


async def test_a_background_response_is_read_and_followed(gateway: Gateway, http: httpx.AsyncClient) -> None:
    begun = (await made(http, background=True)).json()
    path = f"/v1/responses/{begun['id']}"
    assert begun["status"] == "queued"
    whole = events_of((await http.get(f"{path}?stream=true")).text)
    assert [event["type"] for event in whole[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    assert whole[-1]["response"] == (await http.get(path)).json()
    assert whole[-1]["response"]["status"] == "completed"
    rest = events_of((await http.get(f"{path}?stream=true&starting_after=4")).text)
    assert rest == whole[5:]
    streamed = await made(http, background=True, stream=True)
    assert "\nid: 0\n" in streamed.text
    assert len(events_of(streamed.text)) == len(whole)
    wrong = await http.get(f"{path}?stream=true&starting_after=x")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")
    await gateway.wait_idle()


async def test_a_background_response_outlives_its_reader_until_it_is_cancelled(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    async with http.stream(
        "POST", "/v1/responses", json={"model": "slow", "input": "hi", "background": True, "stream": True}
    ) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if "output_text.delta" in line:
                break
    (request,) = gateway.fleet.requests
    path = f"/v1/responses/resp_{request.request_id}"
    await asyncio.sleep(0.05)
    running = (await http.get(path)).json()
    assert running["status"] == "in_progress"
    assert running["output"][0]["type"] == "message"
    assert not gateway.fleet.cancel_of(request.request_id).is_set()
    cancelled = (await http.post(f"{path}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert (await http.get(path)).json() == cancelled
    assert (await http.post(f"{path}/cancel")).json() == cancelled
    await asyncio.wait_for(gateway.fleet.cancel_of(request.request_id).wait(), PATIENCE_S)


async def test_a_deleted_background_response_ends(gateway: Gateway, http: httpx.AsyncClient) -> None:
    name = (await made(http, "slow", background=True)).json()["id"]
    await gateway.fleet.wait_requests(1)
    assert (await http.delete(f"/v1/responses/{name}")).status_code == 200
    request_id = gateway.fleet.requests[0].request_id
    await asyncio.wait_for(gateway.fleet.cancel_of(request_id).wait(), PATIENCE_S)
    assert (await http.get(f"/v1/responses/{name}")).status_code == 404


async def test_a_caller_that_leaves_ends_its_response(gateway: Gateway, http: httpx.AsyncClient) -> None:
    async with http.stream(
        "POST", "/v1/responses", json={"model": "slow", "input": "hi", "stream": True}
    ) as answer:
        await answer.aiter_raw().__anext__()
    await gateway.wait_cancelled()
    await until(lambda: not gateway.running)


async def test_events_that_are_kept_no_longer_are_a_410_until_the_end_and_then_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "services.gateway.resources.stored_responses.background_runs.EventRoom", lambda _: EventRoom(4000)
    )
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=10) as http:
        path = f"/v1/responses/{(await made(http, 'slow', background=True)).json()['id']}"
        for _ in range(200):
            async with http.stream("GET", f"{path}?stream=true&starting_after=0") as answer:
                if answer.status_code == 410:
                    error = json.loads(await answer.aread())["error"]
                    break
            await asyncio.sleep(0.02)
        assert error["code"] == "stream_gone"
        assert "without `stream`" in error["message"]
        assert (await http.post(f"{path}/cancel")).json()["status"] == "cancelled"
        events = events_of((await http.get(f"{path}?stream=true")).text)
        assert events[0]["type"] == "response.created"
        assert events[-1]["response"]["status"] == "cancelled"


async def test_background_responses_have_a_limit() -> None:
    async with (
        running_gateway(response_background_max=2) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        for _ in range(2):
            assert (await made(http, "slow", background=True)).status_code == 200
        over = await made(http, "slow", background=True)
        assert (over.status_code, over.headers["x-ryz-reason"]) == (503, "background_responses")
