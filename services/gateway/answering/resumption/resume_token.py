"""The token that a gateway leaves with a streamed request, so that another one can make the same events.

It travels in `GenerateRequest.note`, which only gateways read. The rest of what the events need stands in the
request itself.
"""

from typing import Annotated

import msgspec

AnswerKind = str  # of `PREFIXES`; a plain text, so that a token of a newer gateway can be read
VERSION = 1
# what the id of an answer begins with, before the request id; a new kind needs a row and a `Format`
PREFIXES: dict[AnswerKind, str] = {
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "response": "resp_",
    "message": "msg_",
}


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """The format of a stream's events. New fields go last, with defaults.

    Attributes:
        kind: Chooses the format; one of `PREFIXES`.
        created_s: When the request came, in seconds since 1970.
        grace_s: Seconds for which the stream goes on without a reader.
        shown_id: The request id that the caller gave.
        format_data: What the format needs beyond the request, in its own form; a note has 4,096 bytes in all.
    """

    version: int
    kind: AnswerKind
    created_s: int
    include_usage: bool
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    shown_id: str = ""
    format_data: bytes = b""

    def encode(self) -> bytes:
        """Encodes it for the wire."""
        return msgspec.msgpack.encode(self)


def read_token(data: bytes) -> ResumeToken | None:
    """Decodes a token; None if it is not one, or of a version that this gateway does not know."""
    try:
        token = msgspec.msgpack.decode(data, type=ResumeToken)
    except msgspec.MsgspecError:
        return None
    return token if token.version == VERSION else None


def answer_id(kind: AnswerKind, request_id: str) -> str:
    """The id of an answer, as its chunks carry it."""
    return f"{PREFIXES[kind]}{request_id}"


def request_id_of(name: str) -> str:
    """The request id, from either the id itself or that of the answer."""
    for prefix in PREFIXES.values():
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
