"""One request of a connection: called inside the gateway, its events sent as they come."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from services.gateway.admission.request_headers import SESSION_HEADERS
from services.gateway.http.stream_routes import PREFIX as STREAMS
from services.gateway.inner.inner_calls import AnswerCut, InnerCalls
from services.gateway.realtime import server_messages
from services.gateway.realtime.client_messages import Ask, Resume

DONE = b"[DONE]"
# whose streams may go on without their connection, and be resumed
_RESUMABLE = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
_CHATS = frozenset({"/v1/chat/completions", "/v1/messages"})
SendText = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The connection that requests come from, as the routes see it.

    Attributes:
        tenant: Whose it is.
        headers: That go with each request, such as the context of a trace.
        client: Address and port.
        grace_s: How long streams go on after it is lost.
    """

    tenant: str
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    grace_s: float


class RequestRun:
    """Answers one message of a client.

    Args:
        inner: Calls the routes.
        caller: The connection.
        message: What the client asks for.
        session_id: Of chats that name no session; empty: none.

    Attributes:
        stream_id: By which the stream can be resumed or ended; empty: it has none yet, or cannot be.
    """

    def __init__(self, inner: InnerCalls, caller: Caller, message: Ask | Resume, session_id: str) -> None:
        self._inner = inner
        self._caller = caller
        self._request_id = message.id
        self._headers = _headers(message, caller, session_id)
        self._body = bytes(message.body) if isinstance(message, Ask) else b""
        self._path = message.path if isinstance(message, Ask) else f"{STREAMS}/{message.stream_id}"
        self._method = "POST" if isinstance(message, Ask) else "GET"
        self.stream_id = message.stream_id if isinstance(message, Resume) else ""

    async def answer(self, send: SendText) -> None:
        """Sends everything of the answer.

        Raises:
            TimeoutError: The client does not read; raised by `send`.
        """
        request_id, caller, body = self._request_id, self._caller, self._body
        call = self._inner.call(
            self._path, body, self._headers, method=self._method, tenant=caller.tenant, client=caller.client
        )
        self._body = body = b""  # only the route decides how long it holds the body
        try:
            async with call as found:
                if not found.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                    whole = await found.read()
                    await send(server_messages.answer(request_id, found.status, found.headers, whole))
                    return
                self.stream_id = self.stream_id or found.headers.get(b"x-stream-id", b"").decode()
                await send(server_messages.accepted(request_id, found.status, found.headers))
                name = msgspec.json.encode(request_id)
                async for event in found.events():
                    if event.data != DONE:
                        await send(server_messages.event(name, event))
        except AnswerCut:
            await send(server_messages.cut(request_id, self.stream_id))
            return
        await send(server_messages.done(request_id))

    async def end_stream(self) -> None:
        """Ends the generation, which may go on without its connection."""
        if not self.stream_id:
            return
        path = f"{STREAMS}/{self.stream_id}"
        async with self._inner.call(path, method="DELETE", tenant=self._caller.tenant) as found:
            await found.read()


class _NamedSession(msgspec.Struct):
    session_id: str | None = None


_NAMED_SESSION = msgspec.json.Decoder(_NamedSession)


def _headers(message: Ask | Resume, caller: Caller, session_id: str) -> list[tuple[bytes, bytes]]:
    headers = dict(caller.headers)
    if isinstance(message, Resume):
        if message.last_event_id:
            headers[b"last-event-id"] = message.last_event_id.encode()
        return list(headers.items())
    if message.path in _RESUMABLE and caller.grace_s > 0:
        headers[b"x-stream-grace"] = b"%g" % caller.grace_s
    own = {name.lower().encode(): value.encode() for name, value in message.headers.items()}
    named = not own.keys().isdisjoint(SESSION_HEADERS) or _names_session(message.body)
    if message.path in _CHATS and session_id and not named:
        headers[b"x-session-id"] = session_id.encode("latin-1", "replace")
    return list((headers | own).items())


def _names_session(body: msgspec.Raw) -> bool:
    """Returns whether a body has a session of its own, which the header of the connection's would replace."""
    raw = bytes(body)
    if b"session_id" not in raw:  # most have none; the field's name may stand elsewhere, such as in a tool
        return False
    try:
        return bool(_NAMED_SESSION.decode(raw).session_id)
    except (msgspec.MsgspecError, RecursionError):
        return False  # the route refuses it
