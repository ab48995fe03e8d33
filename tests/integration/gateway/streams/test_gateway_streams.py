"""Broken and resumed streams: gateways die, connections break at any byte, clients return or not.

The received text is compared with an undisturbed run of the same request. The events, including ids, are
compared byte by byte with the same stream read again as a whole.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.kits.realtime.readers import Reader, read, said
from tests.kits.stacks.stream_stack import KEYS, ROOT, Client, Fleet
from tests.kits.waiting import PATIENCE_S

TOKENS = 60
USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("streams"), stream_max_grace_s="20", retention_s="120") as fleet:
        yield fleet


def chat(number: int = 0, **more: Any) -> dict[str, Any]:
    """A chat whose prompt depends on `number`."""
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Tell me about number {number}. " + "And on. " * number}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "seed": number,
        "stream": True,
    } | more


def completion(number: int = 0, **more: Any) -> dict[str, Any]:
    body = chat(number, **more)
    del body["messages"]
    return body | {"prompt": f"Number {number} is"}


BODIES = [
    chat(1),
    chat(2, n=2, logprobs=True, top_logprobs=2, stream_options=USAGE),
    completion(3, stream_options=USAGE),
    completion(4, n=3, logprobs=1),
]


async def undisturbed(fleet: Fleet, body: dict[str, Any]) -> Client:
    client = Client(body)
    await client.begin(fleet.gateways[0])
    assert client.done
    return client


async def same_as_a_whole(fleet: Fleet, client: Client) -> None:
    """Asserts that the received pieces equal the stream read as a whole, byte by byte."""
    whole = Client(client.body, stream_id=client.stream_id)
    await whole.resume(fleet.gateways[0])
    assert client.events == whole.events
    assert len({name for name, _ in whole.events}) == len(whole.events)


@pytest.mark.parametrize("body", BODIES)
async def test_a_stream_broken_at_any_byte_goes_on_exactly_there(fleet: Fleet, body: dict[str, Any]) -> None:
    expected = await undisturbed(fleet, body)
    size = sum(len(name) + len(data) + 14 for name, data in expected.events)
    rng = random.Random(len(expected.events))

    async def broken(index: int) -> None:
        client = Client(body, headers={"X-Stream-Grace": "10"})
        await client.begin(fleet.gateways[index % 2], cut_after=rng.randrange(1, size))
        while not client.done:
            assert not client.error, (client.error, client.last_id)
            cut = rng.choice([0, rng.randrange(1, size)])
            gateway = rng.choice(fleet.gateways)
            await client.resume(gateway, cut_after=cut, query=bool(index % 3))
        assert client.summary == expected.summary
        await same_as_a_whole(fleet, client)

    await asyncio.gather(*(broken(index) for index in range(6)))
    await fleet.until(lambda: not fleet.running(), "the group has nothing left")


async def test_twenty_streams_outlive_their_gateway(fleet: Fleet) -> None:
    bodies = [chat(number, n=1 + number % 2, stream_options=USAGE) for number in range(20)]
    expected = await asyncio.gather(*(undisturbed(fleet, body) for body in bodies))
    clients = [Client(body) for body in bodies]

    async def begin(client: Client) -> None:
        with suppress(httpx.TransportError):  # the gateway was killed
            await client.begin(fleet.gateways[1])

    reading = [asyncio.create_task(begin(client)) for client in clients]
    try:
        await fleet.until(lambda: all(len(client.events) > 5 for client in clients), "all streams run")
        fleet.kill("gateway1")
        await asyncio.gather(*reading)
        assert not any(client.done for client in clients)
        await asyncio.gather(*(client.finish(fleet.gateways) for client in clients))
    finally:
        fleet.start_gateway(1)
        fleet.await_gateway(1)
    for client, whole in zip(clients, expected, strict=True):
        assert client.summary == whole.summary
        await same_as_a_whole(fleet, client)
    await fleet.until(lambda: not fleet.running(), "the group has nothing left")


async def test_websockets_torn_again_and_again_go_on_at_the_other_gateway(fleet: Fleet) -> None:
    rng = random.Random(8)
    one, other = (f"ws{url[4:]}/v1/realtime" for url in fleet.gateways)
    whole, torn = ([Reader(index, 60) for index in range(6)] for _ in range(2))
    await read(one, whole, [], key=KEYS["one"])
    await read(one, torn, [rng.randint(8, 80) for _ in range(7)], other=other, key=KEYS["one"])
    for expected, reader in zip(whole, torn, strict=True):
        assert (expected.done, reader.done) == (True, True)
        ids = [event_id for event_id, _ in reader.events]
        assert len(set(ids)) == len(ids)
        assert said(reader) == said(expected)


async def test_the_example_reads_on_when_its_gateway_is_killed(fleet: Fleet) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me about Python."}], "max_tokens": 200}
    expected = await undisturbed(fleet, chat(0) | body)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "examples/resume_stream.py", *reversed(fleet.gateways),
        cwd=ROOT, env={**os.environ, "RYZ_API_KEY": KEYS["one"], "RYZ_MODEL_NAME": "demo"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        begun = await asyncio.wait_for(process.stdout.read(10), PATIENCE_S)
        fleet.kill("gateway1")
        rest, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        fleet.start_gateway(1)
        fleet.await_gateway(1)
    assert (process.returncode, (begun + rest).decode()) == (0, expected.summary[0]["text"] + "\n")


async def test_a_stopping_gateway_leaves_streams_that_have_a_grace(fleet: Fleet) -> None:
    body = chat(5, max_tokens=400)
    kept, lost = Client(body, headers={"X-Stream-Grace": "10"}), Client(body)
    reading = [asyncio.create_task(client.begin(fleet.gateways[1])) for client in (kept, lost)]
    try:
        await fleet.until(lambda: len(kept.events) > 5 and len(lost.events) > 5, "both streams run")
        await asyncio.to_thread(fleet.kill, "gateway1", 15)
        await asyncio.gather(*reading)
        assert (kept.summary["done"], kept.error, lost.error) == (False, "", "unavailable")
        await kept.resume(fleet.gateways[0])
        assert kept.done
        await same_as_a_whole(fleet, kept)
    finally:
        fleet.start_gateway(1)
        fleet.await_gateway(1)


async def test_without_a_grace_a_client_that_leaves_is_not_waited_for(fleet: Fleet) -> None:
    client = Client(chat(6, max_tokens=1000))
    await client.begin(fleet.gateways[0], cut_after=3000)
    await fleet.until(lambda: not fleet.running(), "its places are free")
    await client.resume(fleet.gateways[0])
    assert client.error == "stream_not_found"


async def test_a_client_ends_a_stream_on_any_gateway(fleet: Fleet) -> None:
    client = Client(chat(13, max_tokens=2000), headers={"X-Stream-Grace": "20"})
    await client.begin(fleet.gateways[0], cut_after=3000)
    path = f"{fleet.gateways[1]}/v1/streams/{client.stream_id}"
    async with httpx.AsyncClient() as http:
        stranger, owner = ({"Authorization": f"Bearer key-of-{name}"} for name in ("two", "one"))
        assert (await http.delete(path, headers=stranger)).status_code == 404
        assert fleet.running() == 1
        assert (await http.delete(path, headers=owner)).status_code == 204
        await fleet.until(lambda: not fleet.running(), "its places are free")
        assert (await http.delete(path, headers=owner)).status_code == 404


async def test_past_its_grace_a_stream_is_gone_and_its_slots_are_free(fleet: Fleet) -> None:
    def expired() -> float:
        return fleet.gateway_metric(0, "ryz_gateway_expired_streams_total")

    # on a busy machine the grace may be over before anything can be asked of the stream: counts are compared
    before, began = expired(), time.monotonic()
    client = Client(chat(7, max_tokens=2000), headers={"X-Stream-Grace": "1.0"})
    await client.begin(fleet.gateways[0], cut_after=3000)
    await fleet.until(lambda: expired() == before + 1, "it was parked, and its grace is over")
    assert time.monotonic() - began >= 1.0
    await fleet.until(lambda: not fleet.running(), "its places are free")
    await client.resume(fleet.gateways[1])
    assert (client.error, client.answers[-1].status_code) == ("stream_not_found", 404)
    await fleet.until(lambda: not fleet.gateway_metric(0, "ryz_gateway_parked_streams"), "none is parked")


async def test_a_stream_that_has_ended_can_be_read_again(fleet: Fleet) -> None:
    whole = await undisturbed(fleet, chat(8))
    again = Client(chat(8), stream_id=whole.stream_id)
    await again.resume(fleet.gateways[1], name=f"chatcmpl-{whole.stream_id}")
    assert again.events == whole.events  # including ids, time and session, byte by byte
    for name in ("x-ryz-group", "x-session-id", "x-request-id", "x-stream-id"):
        assert again.answers[0].headers[name] == whole.answers[0].headers[name]
    await whole.resume(fleet.gateways[0])
    assert len(whole.events) == len(again.events)  # no event follows the last one


async def test_it_is_the_tenants_own_and_asked_for_properly(fleet: Fleet) -> None:
    client = Client(chat(9, max_tokens=200), headers={"X-Stream-Grace": "10"})
    await client.begin(fleet.gateways[0], cut_after=4000)
    other = Client(client.body, tenant="two", stream_id=client.stream_id)
    await other.resume(fleet.gateways[1])
    assert (other.error, other.answers[0].status_code) == ("stream_not_found", 404)
    async with httpx.AsyncClient(base_url=fleet.gateways[0]) as http:
        path = f"/v1/streams/{client.stream_id}"
        assert (await http.get(path)).status_code == 401
        key = {"Authorization": "Bearer key-of-one"}
        for wrong in ("x", "1.2.3", "-1", "1.", "99999999999", "é"):
            answer = await http.get(path, headers=key, params={"from": wrong})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID"), wrong
        assert (await http.get("/v1/streams/not%20an%20id", headers=key)).status_code == 404
        assert (await http.post(path, headers=key)).status_code == 405
    await client.resume(fleet.gateways[1])  # the refused calls above have not changed the stream
    assert client.done
    expected = await undisturbed(fleet, client.body)
    assert client.summary == expected.summary


@pytest.mark.parametrize("indices", [(0, 0), (0, 1)])
async def test_the_last_one_to_attach_has_the_stream(fleet: Fleet, indices: tuple[int, int]) -> None:
    body = chat(10, max_tokens=200)
    first = Client(body)
    reading = asyncio.create_task(first.begin(fleet.gateways[indices[0]]))
    await fleet.until(lambda: len(first.events) > 5, "it runs")
    second = Client(body, stream_id=first.stream_id)
    await second.resume(fleet.gateways[indices[1]])
    await reading
    assert (first.error, first.done) == ("attached_elsewhere", False)
    assert second.done
    assert second.events[: len(first.events)] == first.events


async def test_many_attach_at_once_and_one_has_it(fleet: Fleet) -> None:
    body = chat(11, max_tokens=300)
    first = Client(body, headers={"X-Stream-Grace": "10"})
    await first.begin(fleet.gateways[0], cut_after=3000)
    others = [Client(body, stream_id=first.stream_id) for _ in range(6)]
    await asyncio.gather(*(other.resume(fleet.gateways[index % 2]) for index, other in enumerate(others)))
    winners = [other for other in others if other.done]
    assert len(winners) == 1, [(other.error, other.last_id) for other in others]
    errors = {other.error for other in others if not other.done}
    assert errors == {"attached_elsewhere"}
    whole = winners[0].events
    assert all(other.events == whole[: len(other.events)] for other in (first, *others))
    await fleet.until(lambda: not fleet.running(), "the group has nothing left")


async def test_a_stream_that_lost_its_group_is_resumed_on_another_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Fleet(tmp_path_factory.mktemp("two-groups"), groups=2) as fleet:
        body = chat(12, max_tokens=600, stream_options=USAGE)
        expected = await undisturbed(fleet, body)
        client = Client(body, headers={"X-Stream-Grace": "15"})
        reading = asyncio.create_task(client.begin(fleet.gateways[0]))
        await fleet.until(lambda: len(client.events) > 20, "it runs")
        group = client.answers[0].headers["x-ryz-group"].removeprefix("g")
        fleet.kill(f"group{group}")
        reached = len(client.events)
        await fleet.until(lambda: len(client.events) > reached + 20, "it goes on elsewhere", 20)
        reading.cancel()  # the client's connection breaks as well
        await asyncio.gather(reading, return_exceptions=True)
        await client.resume(fleet.gateways[1], cut_after=5000)
        left = f"g{1 - int(group)}"
        assert (client.error, client.answers[-1].headers["x-ryz-group"]) == ("", left)
        await client.resume(fleet.gateways[0])
        assert client.summary == expected.summary
        again = Client(body, stream_id=client.stream_id)
        await again.resume(fleet.gateways[1])  # the beginning of the stream was lost with the first group
        assert (again.error, again.answers[0].status_code) == ("stream_gone", 410)
