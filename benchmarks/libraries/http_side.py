"""Small requests to our server and to uvicorn as it is, each in a process of its own."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator

from benchmarks.libraries.alternation import Side, alternate
from shared.host.own_python import module_command, module_environment

CONNECTIONS, REQUESTS = 32, 200
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer abcdefgh\r\nContent-Length: 400\r\n\r\n" + b"x" * 400
)
_END = b'"}]}'


async def measure(rounds: int) -> None:
    """Prints what a request costs the server."""
    with _server("ours") as ours, _server("library") as library:
        pids = ours[0], library[0]
        await alternate("a request and its answer, server", ours[1], library[1], rounds=rounds, pids=pids)


@contextlib.contextmanager
def _server(name: str) -> Iterator[tuple[int, Side]]:
    command = [*module_command("benchmarks.libraries.http_server"), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=module_environment(os.environ))
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())

        async def side() -> int:
            await asyncio.gather(*(_ask(port) for _ in range(CONNECTIONS)))
            return CONNECTIONS * REQUESTS

        yield process.pid, side
    finally:
        process.kill()
        process.wait()


async def _ask(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(REQUESTS):
        writer.write(_REQUEST)
        await reader.readuntil(_END)
    writer.close()
