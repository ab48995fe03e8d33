"""What a gateway leaves with a streamed request, so that another one can make the same events.

It travels in `GenerateRequest.note`, which only gateways read. The rest of what a writer needs stands in the
request itself.
"""

from typing import Annotated, Literal

import msgspec

from services.gateway.completions.chunks import ChatWriter, ChunkWriter, CompletionWriter
from services.gateway.completions.whole_responses import Envelope
from shared.messages import GenerateRequest

Kind = Literal["chat", "completion"]
VERSION = 1
_PREFIXES: dict[Kind, str] = {"chat": "chatcmpl", "completion": "cmpl"}


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a stream looks like, beside its text. New fields go last, with defaults.

    grace_s: how long it goes on without a reader. shown_id: the caller's own word for the request.
    """

    version: int
    kind: Kind
    created_s: int
    include_usage: bool
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    shown_id: str = ""

    def encode(self) -> bytes:
        """For the wire."""
        return msgspec.msgpack.encode(self)


def read_note(data: bytes) -> Note | None:
    """None: it is not ours, or of a version that this gateway does not know."""
    try:
        note = msgspec.msgpack.decode(data, type=Note)
    except msgspec.MsgspecError:
        return None
    return note if note.version == VERSION else None


def answer_id(kind: Kind, request_id: str) -> str:
    """The id of an answer, as its chunks carry it."""
    return f"{_PREFIXES[kind]}-{request_id}"


def request_id_of(name: str) -> str:
    """The request that somebody means who has either its id or that of its answer."""
    for prefix in _PREFIXES.values():
        if name.startswith(f"{prefix}-"):
            return name[len(prefix) + 1 :]
    return name


def writer_of(note: Note, request: GenerateRequest, *, ids: bool) -> ChunkWriter:
    """The writer of the stream of one generation; `ids`: its events carry them."""
    envelope = Envelope(
        answer_id(note.kind, request.request_id),
        note.created_s,
        request.model,
        request.session.session_id if request.session else "",
    )
    sampling = request.sampling
    logprobs = sampling.logprobs >= 0
    if note.kind == "chat":
        return ChatWriter(envelope, n=sampling.n, usage=note.include_usage, logprobs=logprobs, ids=ids)
    return CompletionWriter(
        envelope, prompts=1, n=sampling.n, usage=note.include_usage, logprobs=logprobs, ids=ids
    )
