"""The id of a request on a WebSocket, and its slot, are free as soon as its last message is sent."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from services.gateway.admission.errors.refusals import answer_for
from services.gateway.admission.held_slots import HeldSlot
from services.gateway.admission.identity.identity import ANYONE
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.transports.websocket.connection import ConnectionLimits, RealtimeConnection
from services.gateway.transports.websocket.request_run import SocketOrigin
from shared.errors import InvalidRequest
from tests.kits.constants import settings_with_constants
from tests.kits.waiting import PATIENCE_S

JSON = dict[str, Any]
CHAT = "/v1/chat/completions"


class ScriptedCalls:
    """Calls that are answered at once, refused, or never answered, as their body says."""

    def __init__(self) -> None:
        self.formats = {CHAT: None}

    async def run(self, form: object, body: bytes, headers: object, take: Any, *_: Any, **__: Any) -> Any:
        """See `DirectCalls.run`."""
        call = SimpleNamespace(begun=False, error=None, headers={}, carrier=SimpleNamespace(bytes_sent=0))
        call.caller = SimpleNamespace(route=CHAT, shown_id="r")
        if b"stuck" in body:
            await asyncio.Event().wait()
        if b"refused" in body:
            call.error = answer_for(InvalidRequest("no"))
        else:
            await take(SimpleNamespace(streamed=False, body=answered), call)
        return call


async def answered() -> bytes:
    """The body of an answer."""
    return b"{}"


class Client:
    """A client of a connection that sends its next message as soon as it has read one of some types.

    Args:
        script: Each entry: the type of a message, and what is sent when it has come.
    """

    def __init__(self, *script: tuple[str, JSON]) -> None:
        self.script = list(script)
        self.inbox: asyncio.Queue[JSON] = asyncio.Queue()
        self.came: list[JSON] = []
        self.over = asyncio.Event()

    async def send(self, message: Any) -> None:
        """The gateway's `send`: returns some time after the client has the message."""
        one: JSON = json.loads(message["text"])
        if one["type"] == "slow":  # the test's process did not run for a second
            return
        self.came.append(one)
        if self.script and one["type"] == self.script[0][0]:
            self.write(self.script.pop(0)[1])
        elif not self.script and one["type"] != "ready":
            self.over.set()
        for _ in range(20):
            await asyncio.sleep(0)

    def write(self, message: JSON) -> None:
        """The client sends a message."""
        self.inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    async def run(self) -> list[tuple[str, str, int]]:
        """Types, ids and statuses of what came."""
        settings = settings_with_constants(GatewaySettings, {"realtime_requests_max": 1})
        connection = RealtimeConnection(
            cast(DirectCalls, ScriptedCalls()),
            self.send,
            ConnectionLimits(settings, 5.0),
            GatewayMetrics(CollectorRegistry()),
            slot=cast(HeldSlot, SimpleNamespace(begin_request=lambda: None, end_request=lambda: None)),
            log_in=lambda key: SocketOrigin(ANYONE, [], None, 0.0),
            caller=SocketOrigin(ANYONE, [], None, 0.0),
        )
        serving = asyncio.create_task(connection.serve(self.inbox.get))
        await asyncio.wait_for(self.over.wait(), PATIENCE_S)
        self.inbox.put_nowait({"type": "websocket.disconnect"})
        await serving
        return [(one["type"], one.get("id", ""), one.get("status", 0)) for one in self.came[1:]]


def ask(name: str, what: str = "") -> JSON:
    return {"type": "request", "id": name, "body": {"messages": what}}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["a", "b"])  # the same id again, and the only slot
@pytest.mark.parametrize(("what", "kind", "status"), [("", "answer", 200), ("refused", "error", 400)])
async def test_they_are_free_when_the_answer_is_sent(name: str, what: str, kind: str, status: int) -> None:
    client = Client(("ready", ask("a", what)), (kind, ask(name)))
    assert await client.run() == [(kind, "a", status), ("answer", name, 200)]


@pytest.mark.asyncio
async def test_they_are_free_when_the_cancellation_is_told() -> None:
    client = Client(("ready", ask("a", "stuck")), ("cancelled", ask("a")))
    client.write({"type": "ping"})
    client.script.insert(1, ("pong", {"type": "cancel", "id": "a"}))
    found = await client.run()
    assert [kind for kind, _, _ in found if kind != "pong"] == ["cancelled", "answer"]


@pytest.mark.asyncio
async def test_an_id_that_runs_is_taken() -> None:
    client = Client(("ready", ask("a", "stuck")), ("pong", ask("a")))
    asking = asyncio.create_task(client.run())
    await asyncio.sleep(0)
    client.write({"type": "ping"})
    assert ("error", "a", 409) in await asking


@pytest.mark.asyncio
async def test_a_cancellation_after_the_last_message_finds_no_request() -> None:
    client = Client(("ready", ask("a")), ("answer", {"type": "cancel", "id": "a"}))
    assert await client.run() == [("answer", "a", 200), ("error", "a", 404)]
