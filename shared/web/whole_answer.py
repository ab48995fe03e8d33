"""Writes a whole answer, head and body, by one plain call in place of two messages of ASGI.

It does what uvicorn does with the messages of an ordinary answer. Whatever else an answer may need (a pause
for a slow reader, the end of the connection) is left to uvicorn.
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
        transport: Of its connection.
        send: By which the application would send it. If it is not the server's own, something between adds
            to answers, and has to see this one.
        status: Of HTTP.
        headers: Names in lower case, the length of the body among them.
        body: The whole body, no longer than the server buffers without waiting.

    Returns:
        False if nothing was written and the messages have to be sent.
    """
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
        return False
    content = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        if name == b"connection":
            return False
        content += (name, b": ", value, b"\r\n")
    if _FORBIDDEN.search(b"".join([value for _, value in headers])):
        return False  # refused with the words of uvicorn
    content += (b"\r\n", body)
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    transport.write(b"".join(content))
    cycle.response_complete = True
    cycle.message_event.set()
    cycle.on_response()
    return True
