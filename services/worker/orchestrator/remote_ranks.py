"""Accepts ranks on other hosts: listens, admits those that prove the token, hands over their sockets.

The messages on the sockets afterwards are the same as with ranks of this host. The other end is
`services/worker/engine/rank/join.py`.
"""

import asyncio
import contextlib
import os
import socket
from importlib.metadata import version

import msgspec

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, RankFailed, pack_frame
from services.worker.rank_protocol.starting.join_messages import (
    NONCE_BYTES,
    Challenge,
    Hello,
    Welcome,
    keep_alive,
    prove,
    proven,
    split_address,
)

_HELLO_S = 5.0  # time limit of the whole exchange with one caller
_BACKLOG = 64
_HELLO_BYTES = 1024


class RemoteRank:
    """A `RankProcessHandle` for a process on another host, of which only the connection is known."""

    pid = 0

    def __init__(self, sock: socket.socket) -> None:
        self.host = str(sock.getpeername()[0])
        self._sock = sock
        self._ended = False

    def poll(self) -> int | None:
        """Return 0 once the connection has ended, else None."""
        return 0 if self._ended or self._sock.fileno() < 0 else None

    def kill(self) -> None:
        """End the connection, at which the process ends itself."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def describe_end(self) -> str:
        """See `RankProcessHandle`."""
        return f"its connection from {self.host} ended"


class RemoteRankListener:
    """Accepts the ranks of other hosts.

    Args:
        listen: `host:port` where they connect.
        token: The secret that they have to prove.
        count: How many of them belong to the group.
    """

    def __init__(self, listen: str, token: str, count: int) -> None:
        self._listen = listen
        self._token = token
        self._count = count
        self._server: socket.socket | None = None
        self._refusal = ""

    async def gather_ranks(self, first_rank: int, limit_s: float) -> list[RankProcess]:
        """Return the ranks of other hosts, numbered from `first_rank` in the order in which they joined.

        Raises:
            EngineFailed: Not all joined in time.
            OSError: The address cannot be listened on.
        """
        if self._server is None:
            family = socket.AF_INET6 if ":" in split_address(self._listen)[0] else socket.AF_INET
            self._server = socket.create_server(split_address(self._listen), family=family, backlog=_BACKLOG)
            self._server.setblocking(False)
        joined: asyncio.Queue[socket.socket] = asyncio.Queue()
        accepting = asyncio.create_task(self._accept(self._server, joined))
        arrived: list[socket.socket] = []
        try:
            async with asyncio.timeout(limit_s):
                while len(arrived) < self._count:
                    arrived.append(await joined.get())
        except BaseException as error:
            for sock in arrived:
                sock.close()
            if isinstance(error, TimeoutError):
                raise EngineFailed(self._missing(len(arrived), limit_s), "start_failed") from None
            raise
        finally:
            accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await accepting
            while not joined.empty():  # one too many; it connects again and waits until it is needed
                joined.get_nowait().close()
        return [RankProcess(first_rank + index, RemoteRank(sock), sock) for index, sock in enumerate(arrived)]

    def close(self) -> None:
        """Stop listening; `gather_ranks` may be called again."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, server: socket.socket, joined: "asyncio.Queue[socket.socket]") -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as greetings:
            while True:
                sock, _ = await loop.sock_accept(server)
                greetings.create_task(self._greet(sock, joined))

    async def _greet(self, sock: socket.socket, joined: "asyncio.Queue[socket.socket]") -> None:
        """Admit a rank, or refuse it with a reason and close the connection."""
        sock.setblocking(False)
        host = "a caller"
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(sock.close)
            try:
                host = sock.getpeername()[0]
                keep_alive(sock)
                async with asyncio.timeout(_HELLO_S):
                    reason = await self._exchange(sock)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                reason = f"it did not say hello ({type(error).__name__})"
            if reason:
                self._refusal = f"{host} was refused: {reason}"
                return
            on_failure.pop_all()
        joined.put_nowait(sock)

    async def _exchange(self, sock: socket.socket) -> str:
        """Return why the rank may not join; an empty text if it has joined."""
        loop = asyncio.get_running_loop()
        nonce, own_version = os.urandom(NONCE_BYTES), version("ryzanstein")
        await loop.sock_sendall(sock, pack_frame(FrameKind.CHALLENGE, Challenge(nonce)))
        reader, received = FrameReader(), 0
        while True:
            data = await loop.sock_recv(sock, _HELLO_BYTES)
            received += len(data)
            if not data or received > _HELLO_BYTES:
                raise ValueError("no hello")
            for kind, body in reader.feed(data):
                if kind is not FrameKind.HELLO:
                    raise ValueError("no hello")
                hello = msgspec.msgpack.decode(body, type=Hello)
                reason = ""
                if not proven(self._token, "rank", nonce, hello.nonce, hello.proof):
                    reason = "its RYZ_RANK_TOKEN is another than the leader's"
                elif hello.version != own_version:
                    reason = f"it runs release {hello.version}, the leader {own_version}"
                answer = pack_frame(
                    FrameKind.WELCOME, Welcome(prove(self._token, "leader", nonce, hello.nonce))
                )
                if reason:
                    answer = pack_frame(FrameKind.FAILED, RankFailed(message=reason, refused=True))
                await loop.sock_sendall(sock, answer)
                return reason

    def _missing(self, arrived: int, limit_s: float) -> str:
        last = f" ({self._refusal})" if self._refusal else ""
        return (
            f"{arrived} of {self._count} ranks of other hosts joined at {self._listen} within {limit_s:g} s"
            f"{last}; start each with `python -P -m services.worker.engine --join HOST:PORT --model DIR`"
        )
