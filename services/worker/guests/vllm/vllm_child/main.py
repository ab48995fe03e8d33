"""Runs the process; `process.py` gives it the descriptors of its socket and of its lifeline."""

import asyncio
import os
import signal
import socket
import sys
import threading

from .child import VllmChild

try:
    from uvloop import run  # as vLLM's own server does
except ImportError:
    from asyncio import run  # type: ignore[assignment] # it takes other options


def end_with_leader(lifeline: int) -> None:
    """Kill this process and all that vLLM has started when the leader is gone, even while a model loads."""
    while os.read(lifeline, 1):
        pass
    os.killpg(0, signal.SIGKILL)


async def serve_socket(sock: socket.socket) -> None:
    """Serve the leader at the other end of a socket."""
    reader, writer = await asyncio.open_connection(sock=sock)
    await VllmChild(reader, writer).serve()


def main() -> None:
    """Serve the leader until one of the two is gone."""
    sock, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    sock.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    threading.Thread(target=end_with_leader, args=(lifeline,), daemon=True).start()
    run(serve_socket(sock))
