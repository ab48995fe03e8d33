"""Runs the process; `process.py` gives it the descriptors of its socket and of its lifeline."""

import asyncio
import os
import select
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


def fork_guard(sock: socket.socket, lifeline: int) -> None:
    """Fork a process that kills all of vLLM when the leader or this process is gone.

    Each of the two ends the rest when the other one goes. If both are killed at once, nothing else would:
    vLLM's engine core goes on without the process that started it.
    """
    ended, held = os.pipe()
    if os.fork():
        os.close(ended)  # `held` stays open for as long as this process lives
        return
    os.close(held)
    sock.close()  # at whose end the leader sees this process go
    select.select((lifeline, ended), (), ())
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
    fork_guard(sock, lifeline)  # before there are threads
    threading.Thread(target=end_with_leader, args=(lifeline,), daemon=True).start()
    run(serve_socket(sock))
