"""The token that a gateway leaves with a streamed request, so that another one can make the same events.

It travels in `GenerateRequest.note`, which only gateways read. The rest of what the events need stands in the
request itself.
"""

from typing import Annotated, Literal

import msgspec

AnswerKind = Literal["chat", "completion"]
VERSION = 1
_PREFIXES: dict[AnswerKind, str] = {"chat": "chatcmpl", "completion": "cmpl"}


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """The format of a stream's events. New fields go last, with defaults.

    Attributes:
        grace_s: Seconds for which the stream goes on without a reader.
        shown_id: The request id that the caller gave.
    """

    version: int
    kind: AnswerKind
    created_s: int
    include_usage: bool
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    shown_id: str = ""

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
    return f"{_PREFIXES[kind]}-{request_id}"


def request_id_of(name: str) -> str:
    """The request id, from either the id itself or that of the answer."""
    for prefix in _PREFIXES.values():
        if name.startswith(f"{prefix}-"):
            return name[len(prefix) + 1 :]
    return name
