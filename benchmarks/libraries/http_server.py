"""A server for `http_side.py`: `python -m benchmarks.libraries.http_server ours|library`; prints its port."""

import asyncio
import socket
import sys
from typing import Any

import uvicorn
import uvloop

from shared.web.admitted_connection import CONNECTION
from shared.web.gate import Gate
from shared.web.http_limits import HttpConnections, HttpLimits
from shared.web.http_server import http_server

BODY = b'{"choices": [{"text": "' + b"x" * 300 + b'"}]}'
HEAD = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def by_messages(scope: Any, receive: Any, send: Any) -> None:
    """Answers as any ASGI application does."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEAD})
    await send({"type": "http.response.body", "body": BODY})


async def by_plain_write(scope: Any, receive: Any, send: Any) -> None:
    """Answers as the gateway's routes do."""
    while (await receive()).get("more_body"):
        pass
    if not scope[CONNECTION].plain.write_answer(send, 200, HEAD, BODY):
        raise AssertionError("not an ordinary answer")


async def serve(side: str) -> None:
    """Serves until the process is ended."""
    if side == "ours":
        async with http_server(by_plain_write, "127.0.0.1", 0, Gate(HttpConnections(), HttpLimits())) as port:
            print(port, flush=True)
            await asyncio.Event().wait()
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(by_messages, http="httptools", ws="none", lifespan="off", log_config=None,
                            access_log=False, date_header=False, server_header=False)  # fmt: skip
    await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
