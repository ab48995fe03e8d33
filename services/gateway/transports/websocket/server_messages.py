"""The messages of the gateway: JSON around bodies and events, which are not encoded anew. Pure."""

from collections.abc import Mapping

import msgspec

from services.gateway.admission.answer_headers import SHOWN_HEADERS

_encode = msgspec.json.encode
PONG = b'{"type":"pong"}'


def ready(tenant: str, limits: Mapping[str, int | float]) -> bytes:
    """The connection takes requests."""
    return _encode({"type": "ready", "tenant": tenant, "limits": limits})


def not_openai() -> bytes:
    """The first event for a client of OpenAI's Realtime API, in the form of that API's errors."""
    return _encode(
        {
            "type": "error",
            "event_id": "event_0",
            "error": {
                "type": "invalid_request_error",
                "code": "not_openai_realtime",
                "message": "this WebSocket is not OpenAI's Realtime API, which is for speech and is not "
                "served: many requests for text share this connection (docs/realtime.md; no `model` in the "
                "address). OpenAI's clients stream text from /v1/responses and /v1/chat/completions",
                "param": None,
                "event_id": None,
            },
        }
    )


def accepted(request_id: str, status: int, headers: Mapping[bytes, bytes]) -> bytes:
    """A stream begins; its ids are told."""
    shown = {name.decode(): headers[name].decode("latin-1") for name in SHOWN_HEADERS if name in headers}
    return _encode({"type": "accepted", "id": request_id, "status": status, "headers": shown})


def event(request_id: bytes, event_id: str, kind: str, data: bytes) -> bytes:
    """An event of a stream.

    Args:
        request_id: Encoded already.
        event_id: Empty: it has none.
        kind: Its type; empty: it has none.
        data: Its data as JSON.
    """
    id_field = b',"event_id":"%b"' % event_id.encode() if event_id else b""
    kind_field = b',"event":%b' % _encode(kind) if kind else b""
    return b'{"type":"event","id":%b%b%b,"data":%b}' % (request_id, id_field, kind_field, data)


def done(request_id: str) -> bytes:
    """A stream has ended, and nothing more comes of it."""
    return _encode({"type": "done", "id": request_id})


def answer(request_id: str, status: int, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    """A whole answer, which may be an error of the route."""
    shown = {name.decode(): headers[name].decode("latin-1") for name in SHOWN_HEADERS if name in headers}
    kind = "answer" if status < 400 else "error"
    head = _encode({"type": kind, "id": request_id, "status": status, "headers": shown})
    return b'%b,"data":%b}' % (head[:-1], body or b"null")


def error(status: int, body: bytes, request_id: str = "") -> bytes:
    """An error that no route has answered."""
    head: dict[str, object] = {"type": "error", "status": status}
    if request_id:
        head["id"] = request_id
    return b'%b,"data":%b}' % (_encode(head)[:-1], body)


def cancelled(request_id: str) -> bytes:
    """A request was ended because the client asked for it."""
    return _encode({"type": "cancelled", "id": request_id})


def cut(request_id: str, stream_id: str) -> bytes:
    """A request was cut off in the middle; with a stream id it can be resumed."""
    message = {"type": "cut", "id": request_id} | ({"stream_id": stream_id} if stream_id else {})
    return _encode(message)


def slow(waited_s: float, cut_after_s: float) -> bytes:
    """The client had not read for so long; its requests were paused meanwhile."""
    return _encode({"type": "slow", "waited_s": round(waited_s, 3), "cut_after_s": cut_after_s})
