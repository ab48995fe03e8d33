"""Writes ordinary answers, whole or in parts, by plain calls in place of messages of ASGI.

Each call does what uvicorn does with the messages. Whatever else an answer may need (a pause for a slow
reader, the end of the connection) is left to uvicorn: the call writes nothing then, and the message is sent.
"""

import asyncio
import re
from collections.abc import Sequence

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # in values, as uvicorn has it


Headers = Sequence[tuple[bytes, bytes]]


def write_answer(
    cycle: RequestResponseCycle,
    transport: asyncio.Transport,
    send: Send,
    *,
    status: int,
    headers: Headers,
    body: bytes,
) -> bool:
    """Writes an answer if it is an ordinary one.

    Args:
        cycle: The request and its answer.
        send: By which the application would send it. If it is not the server's own, something between adds
            to answers, and has to see this one.
        headers: Names in lower case, the length of the body among them.
        body: The whole body, no longer than the server buffers without waiting.

    Returns:
        False if nothing was written and the messages have to be sent.
    """
    head = _head_of(cycle, transport, send, status, headers)
    if head is None:
        return False
    transport.write(b"".join((*head, b"\r\n", body)))
    _complete(cycle)
    return True


def write_head(
    cycle: RequestResponseCycle, transport: asyncio.Transport, send: Send, *, status: int, headers: Headers
) -> bool:
    """Writes the head of an answer that comes in parts; see `write_answer`.

    The headers have no length.
    """
    head = _head_of(cycle, transport, send, status, headers)
    if head is None:
        return False
    cycle.chunked_encoding = True
    cycle.transport.write(b"".join((*head, b"transfer-encoding: chunked\r\n\r\n")))
    return True


def write_part(cycle: RequestResponseCycle, send: Send, part: bytes, *, more: bool) -> bool:
    """Writes the next part of an answer, the last one without `more`; see `write_answer`."""
    if (
        send != cycle.send
        or not (part and cycle.chunked_encoding and cycle.keep_alive)
        or cycle.response_complete
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    end = b"\r\n" if more else b"\r\n0\r\n\r\n"
    cycle.transport.write(b"%x\r\n%b%b" % (len(part), part, end))
    if not more:
        _complete(cycle)
    return True


def _head_of(
    cycle: RequestResponseCycle, transport: asyncio.Transport, send: Send, status: int, headers: Headers
) -> list[bytes] | None:
    """Begins an ordinary answer: its head without the empty line; None if it is none."""
    if (
        send != cycle.send
        or cycle.response_started
        or cycle.disconnected
        or not cycle.keep_alive
        or cycle.access_log
        or cycle.flow.write_paused
        or transport.is_closing()
        or cycle.scope["method"] == "HEAD"
    ):
        return None
    content = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        if name == b"connection":
            return None
        content += (name, b": ", value, b"\r\n")
    if _FORBIDDEN.search(b"".join([value for _, value in headers])):
        return None  # refused with the words of uvicorn
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    return content


def _complete(cycle: RequestResponseCycle) -> None:
    """The answer is written, and the connection stays open."""
    cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
