"""Keys, limits, tenants, sessions, repeats, resumption and errors hold over every transport alike."""

import asyncio
import json
from typing import Any

import pytest

from tests.contract.corpus.exchange import Heard, key_of
from tests.contract.corpus.facts import FACTS, KNOWN
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.senders.websocket import Socket, Until
from tests.contract.corpus.stack import CorpusStack
from tests.contract.corpus.tables.bodies import CHAT, IDS, chat
from tests.contract.corpus.transports import TRANSPORTS, Ask, Outcome, Transport
from tests.kits.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(300), pytest.mark.sources]
EACH = [(fact, transport) for fact in FACTS for transport in TRANSPORTS]


async def outcomes(stack: CorpusStack, fact: str, transport: str) -> list[Outcome]:
    """Of the requests of a fact, sent by clients that nothing else knows."""
    return [await one(stack, ask, TRANSPORTS[transport], f"{fact}-{transport}") for ask in FACTS[fact].asks]


async def one(stack: CorpusStack, ask: Ask, send: Transport, client: str) -> Outcome:
    """Of one request."""
    key = key_of(stack.tenant_of(f"{client}-{ask.tenant}"))
    return await send(ask, stack.gateways[ask.gateway], key)


@pytest.mark.parametrize("fact", FACTS)
async def test_it_holds_over_every_transport(stack: CorpusStack, fact: str) -> None:
    if any(ask.gateway == "tight" for ask in FACTS[fact].asks):  # which has places for few requests
        found = [await outcomes(stack, fact, transport) for transport in TRANSPORTS]
    else:
        found = await asyncio.gather(*(outcomes(stack, fact, transport) for transport in TRANSPORTS))
    observed = {name: FACTS[fact].observed(came) for name, came in zip(TRANSPORTS, found, strict=True)}
    expected = dict.fromkeys(TRANSPORTS, FACTS[fact].expected)
    for (named, transport), difference in KNOWN.items():
        if named == fact:
            assert difference.observed != FACTS[fact].expected
            expected[transport] = difference.observed
    assert observed == expected, dict(zip(TRANSPORTS, found, strict=True))


async def test_known_differences_have_reasons() -> None:
    assert set(KNOWN) <= set(EACH)
    assert all(len(difference.why) > 20 for difference in KNOWN.values())


# on the bus a gateway cannot see that a requester has left (docs/client.md)
LEAVING = [name for name in TRANSPORTS if name != "bus"]


@pytest.mark.parametrize("transport", LEAVING)
async def test_a_caller_that_leaves_ends_its_generation(stack: CorpusStack, transport: str) -> None:
    client, groups = f"leaves-{transport}", stack.groups
    ask = Ask({"model": "stuck"})
    asking = asyncio.create_task(one(stack, ask, TRANSPORTS[transport], client))
    tenant = stack.tenant_of(f"{client}-{ask.tenant}")
    await until(lambda: tenant in groups.request_ids)
    assert not groups.was_cancelled(tenant)
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: groups.was_cancelled(tenant), PATIENCE_S)


def events_of(heard: Heard) -> list[Any]:
    """The data of the events of a stream, over HTTP or a WebSocket, `[DONE]` apart."""
    lines = heard.body.decode().split("\n")
    plain = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    messages = [json.loads(line) for line in lines if line.startswith('{"type":"event"')]
    return plain or [message["data"] for message in messages]


def socket(*messages: dict[str, Any]) -> Socket:
    """A connection of `/v1/realtime` on which each message is answered before the next one."""
    acts: list[Any] = [Until(("ready",))]
    for message in messages:
        acts += [message, Until(("done", "error", "answer"))]
    return Socket(acts)


@pytest.mark.parametrize("begun", ["http", "websocket"])
@pytest.mark.parametrize("resumed", ["http", "websocket"])
async def test_a_stream_goes_on_over_either_transport_that_has_resumption(
    stack: CorpusStack, begun: str, resumed: str
) -> None:
    """Streams of gRPC are not resumed (docs/grpc.md), and calls on the bus have none."""
    address, key = stack.gateways["main"], key_of(stack.tenant_of(f"{begun}-{resumed}"))
    if begun == "http":
        first = await Http(CHAT, chat(**IDS)).send(address, key)
        stream = first.headers["x-stream-id"]
    else:
        first = await socket({"type": "request", "id": "a", "body": chat(stream=True)}).send(address, key)
        accepted = json.loads(first.body.decode().split("\n")[1])
        stream = accepted["headers"]["x-stream-id"]
    if resumed == "http":
        rest = await Http(f"/v1/streams/{stream}", headers={"Last-Event-ID": "2.0"}).send(address, key)
    else:
        message = {"type": "resume", "id": "b", "stream_id": stream, "last_event_id": "2.0"}
        rest = await socket(message).send(address, key)
    assert events_of(rest) == events_of(first)[3:]
    assert len(events_of(rest)) > 1
