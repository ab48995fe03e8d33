"""One request of a connection: run by the core, its events sent as they come."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from services.gateway.admission.errors.shapes import error_body
from services.gateway.admission.identity.identity import Identity
from services.gateway.admission.request_headers import SESSION_HEADERS
from services.gateway.answering.direct_calls import DirectCall, DirectCalls
from services.gateway.answering.events.ports import DONE, EventBatch, EventSource
from services.gateway.answering.formatted_answer import CallAnswer
from services.gateway.answering.resumption.event_ids import NOTHING_YET, UNNUMBERED, EventId, parse_event_id
from services.gateway.transports.websocket import server_messages
from services.gateway.transports.websocket.client_messages import RequestMessage, Resume

# whose streams may go on without their connection, and be resumed
_RESUMABLE = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
_CHATS = frozenset({"/v1/chat/completions", "/v1/messages"})


class SendText(Protocol):
    """Sends messages of a connection."""

    async def __call__(self, text: bytes, last_of: "RequestRun | None" = None) -> None:
        """Sends a message; sets `ending` of the run whose last one it is when no other is before it."""


@dataclass(frozen=True, slots=True)
class SocketOrigin:
    """Where the requests of a WebSocket come from; each makes an `admission.caller.Caller` of its own.

    Attributes:
        identity: Who opened it; checked again for each request.
        headers: That go with each request, such as the context of a trace.
        client: Address and port.
        grace_s: How long streams go on after it is lost.
    """

    identity: Identity
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    grace_s: float


class RequestRun:
    """Answers one message of a client.

    Args:
        direct: Runs calls.
        caller: The connection.
        message: What the client asks for.
        session_id: Of chats that name no session; empty: none.

    Attributes:
        stream_id: By which the stream can be resumed or ended; empty: it has none yet, or cannot be.
        ending: Its last message is being sent: its client may use the id again before that has returned.
    """

    def __init__(
        self, direct: DirectCalls, caller: SocketOrigin, message: RequestMessage | Resume, session_id: str
    ) -> None:
        self._direct = direct
        self._caller = caller
        self._request_id = message.id
        self._name = msgspec.json.encode(message.id)
        self._message = message
        self._headers = _headers(message, caller, session_id)
        self._events: EventSource
        self.ending = False
        self.stream_id = message.stream_id if isinstance(message, Resume) else ""

    async def answer(self, send: SendText) -> None:
        """Sends everything of the answer.

        Raises:
            TimeoutError: The client does not read; raised by `send`.
        """
        message = self._message
        if isinstance(message, Resume):
            await self._resume(message, send)
            return
        body, self._message = bytes(message.body), _without_body(message)
        form = self._direct.formats[message.path]
        del message  # only the core decides how long it holds the body
        whole: list[bytes] = []

        async def take(answer: CallAnswer, call: DirectCall) -> None:
            if answer.streamed:
                await self._send_events(answer, call, NOTHING_YET)
            else:
                whole.append(await answer.body())
                call.carrier.bytes_sent = len(whole[0])

        headers, caller = dict(self._headers), self._caller
        running = self._direct.run(
            form, body, headers, take, send, identity=caller.identity, client=caller.client
        )
        del body
        call = await running
        await self._end(call, whole, send)

    async def _resume(self, message: Resume, send: SendText) -> None:
        async def take(answer: CallAnswer, call: DirectCall) -> None:
            await self._send_events(answer, call, parse_event_id(message.last_event_id))

        caller, headers = self._caller, dict(self._headers)
        call = await self._direct.resume(
            message.stream_id,
            message.last_event_id,
            headers,
            take,
            send,
            identity=caller.identity,
            client=caller.client,
        )
        await self._end(call, [], send)

    async def _send_events(self, answer: CallAnswer, call: DirectCall, last: EventId) -> None:
        self._events = events = answer.events(last)
        carrier = call.carrier
        with self._direct.open_stream:
            await events.open(self._direct.header_wait_s)
            headers = call.headers
            self.stream_id = self.stream_id or headers.get(b"x-stream-id", b"").decode()
            await carrier.put([server_messages.accepted(self._request_id, 200, headers)], 0)
            while not events.ended:
                texts = self._texts(await events.next_batch(), ids=answer.event_ids, numbered=events.numbered)
                await carrier.put(texts, sum(map(len, texts)))

    def _texts(self, batch: EventBatch, *, ids: bool, numbered: bool) -> list[bytes]:
        texts = []
        for seq, events in batch:
            left = len(events)
            for kind, data in events:
                left -= 1
                if data and (kind, data) != DONE:
                    event_id = ""
                    if ids and seq != UNNUMBERED:
                        event_id = str(seq) if numbered else f"{seq}.{left}"
                    texts.append(server_messages.event(self._name, event_id, kind.decode(), data))
        return texts

    async def _end(self, call: DirectCall, whole: list[bytes], send: SendText) -> None:
        """Sends how the call ended: the whole answer or the error, or the end of the stream."""
        error, caller = call.error, call.caller
        if not call.begun:
            if error is None and not whole:
                await send(server_messages.cut(self._request_id, self.stream_id), self)
                return
            body = whole[0] if error is None else error_body(error, caller.route, caller.shown_id)
            status = 200 if error is None else error.status
            await send(server_messages.answer(self._request_id, status, call.headers, body), self)
            return
        if error is not None:
            kind, data = self._events.failure(error)
            await send(server_messages.event(self._name, "", kind.decode(), data))
        await send(server_messages.done(self._request_id), self)

    async def end_stream(self) -> None:
        """Ends the generation, which may go on without its connection."""
        if self.stream_id:
            await self._direct.end_stream(self.stream_id, identity=self._caller.identity)


def _without_body(message: RequestMessage) -> RequestMessage:
    return msgspec.structs.replace(message, body=msgspec.Raw(b""))


class _NamedSession(msgspec.Struct):
    session_id: str | None = None


_NAMED_SESSION = msgspec.json.Decoder(_NamedSession)


def _headers(
    message: RequestMessage | Resume, caller: SocketOrigin, session_id: str
) -> list[tuple[bytes, bytes]]:
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
