"""Runs the collectives' contract checks, `rank.py`, in a process per rank."""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from services.worker.orchestrator.process_group_manager import ProcessGroupManager
from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame, shared_bytes
from tests.kits.engine.rank_options import rank_config
from tests.kits.engine.shared_fork_server import sharing

COMMAND = (sys.executable, "-m", "tests.kits.engine.collectives.rank")
FORK_SERVER = (sys.executable, "-m", "tests.kits.engine.collectives.fork_server")
TIMEOUT_S = 3.0


@contextmanager
def ranks_outcomes(
    backend: Any, world: int, *, device: str = "cpu", **fields: Any
) -> Iterator[list[dict[str, Any]]]:
    """Runs the checks and yields the outcomes of each rank, rank 0 first.

    Args:
        backend: Name of the backend; for `gloo-tcp` the rendezvous is a port.
        world: Number of ranks.
        device: Ranks on `cpu` are forked, those on `cuda` are processes of their own.
        fields: As for `rank_config`.
    """
    backend, _, over = backend.partition("-")
    with ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(sharing(FORK_SERVER))
            manager = ProcessGroupManager(start="fork")
        else:
            manager = ProcessGroupManager(COMMAND)
        shared = os.memfd_create("test")
        stack.callback(os.close, shared)
        os.ftruncate(shared, shared_bytes(world))
        if over:
            listens = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            meeting, (host, port) = listens.fileno(), listens.getsockname()
        else:
            meeting, host, port = os.memfd_create("test-meeting"), "", 0
            stack.callback(os.close, meeting)
        config = rank_config(
            tensor_parallel=world,
            threads=1,
            collectives=backend,
            engine_start_timeout_s=30,
            step_timeout_s=TIMEOUT_S,
            shared_fd=shared,
            store_fd=meeting,
            store_host=host,
            store_port=port,
            device=device,
            **fields,
        )
        ranks = manager.spawn_ranks(world, 1, [shared, meeting])
    for rank in ranks:
        rank.sock.setblocking(True)
        rank.sock.settimeout(40)
        rank.sock.sendall(pack_frame(FrameKind.CONFIG, msgspec.structs.replace(config, rank=rank.rank)))
    try:
        yield [pickle.loads(_read_all(rank.sock)) for rank in ranks]
    finally:
        asyncio.run(manager.stop_ranks(2.0))


def _read_all(sock: socket.socket) -> bytes:
    received = bytearray()
    while data := sock.recv(1 << 20):
        received += data
    return bytes(received)
