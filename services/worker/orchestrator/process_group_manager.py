"""Starts and ends the rank processes of one group, each with a socket to its leader.

It knows processes, sockets and inherited files; what is said over the sockets and what a death means is the
business of `rank_engine.py`. Nothing it makes has a name in the file system, so nothing is left
behind however the processes end.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.worker.orchestrator.fork_server_client import ForkServerClient
from services.worker.orchestrator.rank_process_handle import (
    STILL_RUNNING,
    RankProcessHandle,
    SpawnedRank,
    stat,
)
from shared.host.own_python import module_command, module_environment

RankStart = Literal["auto", "fork", "spawn"]
COMMAND = tuple(module_command("services.worker.engine"))
_POLL_S = 0.005
_KILL_WAIT_S = 5.0  # a killed process that the kernel does not hand over by then is stuck in a driver or disk
_EXIT_POLL_S = 0.001
_LIFELINES = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A running rank: its process, and the leader's end of the socket pair (non-blocking).

    kv_sock: the leader's end of a second one, for KV blocks; None: it has none. kv_fd: the number of the
    rank's end, by which the leader names it. life_sock, life_fd: the same of one on which nothing is sent;
    its end is the rank's death, and seen before the kernel has taken the rank's memory back.
    """

    rank: int
    process: RankProcessHandle
    sock: socket.socket
    kv_sock: socket.socket | None = None
    kv_fd: int = -1
    life_sock: socket.socket | None = None
    life_fd: int = -1

    @property
    def pid(self) -> int:
        """Process id; 0 while a nursery that is still loading has not forked it."""
        self.process.poll()
        return self.process.pid

    @property
    def host(self) -> str:
        """The address of its host; empty: this one."""
        return str(getattr(self.process, "host", ""))

    def memory_bytes(self) -> int:
        """Resident memory now, what it shares with other ranks included; 0 when it is gone or elsewhere."""
        if not self.pid:
            return 0
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def run_state(self) -> str:
        """The kernel's letter for what it does, such as R, S, D, T; empty when it is gone or elsewhere."""
        if not self.pid:
            return ""
        fields = stat(self.pid)
        return fields[0] if fields else ""

    def describe_end(self, wait_s: float = 0.0) -> str:
        """How the process ended: `killed by SIGKILL`, `exit code 1`, or `still running` after that time."""
        deadline = time.monotonic() + wait_s
        while (told := self.process.describe_end()) == STILL_RUNNING and time.monotonic() < deadline:
            time.sleep(_EXIT_POLL_S)
        return told

    def close(self) -> None:
        """Closes the leader's ends of all its sockets."""
        for sock in (self.sock, self.kv_sock, self.life_sock):
            if sock is not None:
                sock.close()


class ProcessGroupManager:
    """The processes of one group.

    Args:
        command: What a spawned rank runs; its socket's descriptor and the leader's process id are arguments.
        start: `fork` takes ranks from a nursery, which is kept until `stop_fork_server`; `spawn` starts a fresh
            interpreter for each; `auto` forks where that is safe: on Linux.
        nice: How far ranks give way to other processes, as in `nice`.
        instance_id: The leader's, which the ranks' log lines name.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        start: RankStart = "spawn",
        nice: int = 0,
        instance_id: str = "",
    ) -> None:
        self._command = list(command)
        self._nice = nice
        self._instance_id = instance_id
        self._forks = start == "fork" or (start == "auto" and sys.platform == "linux")
        self._fork_server: ForkServerClient | None = None
        self.ranks: list[RankProcess] = []

    def start_fork_server(self, threads: int) -> None:
        """Starts the nursery, if there is to be one, so that it loads while the leader does other things.

        Raises:
            OSError: it could not be started.
        """
        if self._forks and sys.platform != "linux":
            raise OSError("RYZ_RANK_START=fork needs Linux; set it to spawn or auto")
        if self._fork_server is not None:
            self._fork_server.read_reports()
        if self._forks and (self._fork_server is None or self._fork_server.gone):
            self.stop_fork_server()
            self._fork_server = ForkServerClient(self._environment(threads))

    def spawn_ranks(
        self, world: int, threads: int, inherit: Sequence[int] = (), *, kv_sockets: bool = False
    ) -> list[RankProcess]:
        """Starts ranks 0 to world-1, which inherit those descriptors and nothing else; returns all ranks.

        With `kv_sockets` each rank has a second socket to its leader.

        Output of a rank goes to the leader's stderr. Call it from the thread that lives as long as the
        leader: the kernel ends a rank when the thread that started it ends.

        Raises:
            OSError: a process could not be started; none is left running.
        """
        try:
            self.start_fork_server(threads)
            for rank in range(world):
                with contextlib.ExitStack() as after, contextlib.ExitStack() as on_failure:
                    ours, theirs = _socket_pair(after, on_failure)
                    kv_sock, kv_fd = _passed(after, on_failure) if kv_sockets else (None, -1)
                    life_sock, life_fd = _passed(after, on_failure) if _LIFELINES else (None, -1)
                    own = [fd for fd in (kv_fd, life_fd) if fd >= 0]
                    process = self._start(rank, theirs, threads, [*inherit, *own])
                    on_failure.pop_all()
                    self.ranks.append(RankProcess(rank, process, ours, kv_sock, kv_fd, life_sock, life_fd))
        except OSError:
            self.kill_ranks()
            raise
        self.ranks.sort(key=lambda process: process.rank)  # those of other hosts were there before
        return self.ranks

    def adopt_ranks(self, ranks: Sequence[RankProcess]) -> None:
        """Takes ranks of other hosts into the group."""
        self.ranks.extend(ranks)

    def kill_ranks(self) -> None:
        """Ends all ranks now; `stop_ranks` afterwards collects them."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()

    async def stop_ranks(self, grace_s: float) -> None:
        """Closes the sockets, at which ranks end themselves, and kills those that still run after the grace.

        May be called again; then it does nothing. The nursery stays, for ranks that are started later.
        """
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.close()
        await _wait(ranks, grace_s)
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
        await _wait(ranks, _KILL_WAIT_S)
        if any(rank.process.poll() is None for rank in ranks):
            self.stop_fork_server()  # a nursery that hangs kills nobody; its own end does

    def stop_fork_server(self) -> None:
        """Ends the nursery, and with it what it forked. `spawn_ranks` may be called again."""
        if self._fork_server is not None:
            self._fork_server.end_server()
            self._fork_server = None

    def _start(
        self, rank: int, theirs: socket.socket, threads: int, inherit: Sequence[int]
    ) -> RankProcessHandle:
        if self._fork_server is not None:
            return self._fork_server.fork_rank(rank, theirs, inherit)
        process = subprocess.Popen(
            [*self._command, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(theirs.fileno(), *inherit),
            env=self._environment(threads),
            process_group=0,  # Ctrl-C in a terminal is for the leader, which ends its ranks in order
        )
        return SpawnedRank(process)

    def _environment(self, threads: int) -> dict[str, str]:
        environment = module_environment(os.environ)
        if self._instance_id:
            environment["RYZ_INSTANCE_ID"] = self._instance_id
        environment["RYZ_RANK_NICE"] = str(self._nice)
        # read by OpenMP when torch is imported: no pool larger than the rank will use
        environment["OMP_NUM_THREADS"] = str(threads)
        # OpenMP's default is to spin for milliseconds at each barrier; on a core that others want as well, a
        # step took 50 times as long
        environment.setdefault("GOMP_SPINCOUNT", "2000")
        return environment


def _socket_pair(
    after: contextlib.ExitStack, on_failure: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """The leader's end, not blocking and closed on failure only, and the rank's, closed when it has it."""
    ours, theirs = socket.socketpair()
    on_failure.callback(ours.close)
    after.callback(theirs.close)
    ours.setblocking(False)
    return ours, theirs


def _passed(after: contextlib.ExitStack, on_failure: contextlib.ExitStack) -> tuple[socket.socket, int]:
    """The leader's end of one more, and the number of the rank's, which goes by it."""
    ours, theirs = _socket_pair(after, on_failure)
    return ours, theirs.fileno()


async def _wait(ranks: Sequence[RankProcess], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    # polling the few processes is portable, and no thread or signal handler is left behind
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
