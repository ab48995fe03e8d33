"""The messages of a client, and their checks. Pure.

A message is one JSON object; `type` says which. Errors name the field, and carry the request's id if it can
be read.
"""

import re
from typing import Annotated

import msgspec

from shared.errors import InvalidRequest

# the routes that requests may name: those that answer one body with one answer or stream
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)
# of HTTP's own, and those that the connection decides
_REFUSED = frozenset(
    {"authorization", "x-api-key", "host", "connection", "content-length", "content-type", "cookie", "expect"}
    | {"origin", "transfer-encoding", "upgrade"}
)
_NAME, _VALUE = re.compile(r"[a-z0-9-]{1,64}"), re.compile(r"[\x20-\x7e]{0,1024}")
MAX_HEADERS = 16

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Authenticate(msgspec.Struct, tag="auth", forbid_unknown_fields=True):
    """The first message of a client that gave no key when it connected."""

    api_key: Annotated[str, msgspec.Meta(max_length=8192)]  # a token may be long


class RequestMessage(msgspec.Struct, tag="request", forbid_unknown_fields=True):
    """A request.

    Attributes:
        id: The client's name for it, unique among those that run on the connection.
        body: As the route takes it.
        path: The route.
        headers: Of the request, such as `X-Session-Id`.
    """

    id: Id
    body: msgspec.Raw
    path: str = PATHS[0]
    headers: dict[str, str] = {}


class Resume(msgspec.Struct, tag="resume", forbid_unknown_fields=True):
    """Goes on with a stream whose connection was lost.

    Attributes:
        stream_id: As `accepted` told it.
        last_event_id: Of the last event that came; empty: from the beginning.
    """

    id: Id
    stream_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,96}\Z")]
    last_event_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9.]{0,20}\Z")] = ""


class CancelRequest(msgspec.Struct, tag="cancel", forbid_unknown_fields=True):
    """Ends a request."""

    id: Id


class UseSession(msgspec.Struct, tag="session", forbid_unknown_fields=True):
    """Chooses the session of the chat requests that follow and name none; empty: none."""

    session_id: Annotated[str, msgspec.Meta(max_length=128)]


class PingMessage(msgspec.Struct, tag="ping", forbid_unknown_fields=True):
    """Is answered with `pong`."""


ClientMessage = Authenticate | RequestMessage | Resume | CancelRequest | UseSession | PingMessage
_DECODER = msgspec.json.Decoder(ClientMessage)
_IDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BadMessage(Exception):
    """A message that cannot be served.

    Attributes:
        request_id: The client's name of the request; empty if there is none.
        error: Why.
    """

    def __init__(self, request_id: str, error: InvalidRequest) -> None:
        super().__init__(error.message)
        self.request_id = request_id
        self.error = error


def read_message(raw: bytes) -> ClientMessage:
    """Reads and checks a message.

    Raises:
        BadMessage: It is none, or a field of it is wrong.
    """
    try:
        message: ClientMessage = _DECODER.decode(raw)
        if isinstance(message, RequestMessage):
            _check(message)
    except msgspec.MsgspecError as error:
        raise BadMessage(_id_in(raw), InvalidRequest(f"the message cannot be read: {error}")) from None
    except RecursionError:
        raise BadMessage("", InvalidRequest("the message is nested too deeply")) from None
    except InvalidRequest as error:
        raise BadMessage(_id_in(raw), error) from None
    return message


def _check(message: RequestMessage) -> None:
    if message.path not in PATHS:
        raise InvalidRequest(
            f"`path` must be one of {', '.join(PATHS)}, got {message.path[:64]!r}", param="path"
        )
    if len(message.headers) > MAX_HEADERS:
        raise InvalidRequest(f"`headers` may have {MAX_HEADERS} entries", param="headers")
    seen = set[str]()
    for name, value in message.headers.items():
        lower = name.lower()
        if lower in seen:
            raise InvalidRequest(f"`headers` has {lower[:64]!r} twice; send it once", param="headers")
        seen.add(lower)
        if not _NAME.fullmatch(lower) or lower in _REFUSED:
            raise InvalidRequest(f"`headers` may not have {name[:64]!r}", param="headers")
        if not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"the header {name!r} may have 1024 printable ASCII characters", param="headers"
            )


def _id_in(raw: bytes) -> str:
    """The request's id in a message that is wrong elsewhere; empty if there is none."""
    try:
        found = msgspec.json.decode(_IDS.decode(raw).get("id", msgspec.Raw(b'""')), type=str)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return found[:64]
