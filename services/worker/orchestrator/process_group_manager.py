"""Starts and ends the rank processes of one group, each with a socket to its leader.

It knows processes, sockets and inherited files; `rank_engine.py` reads and writes the sockets and reacts to
the end of a process. Nothing made here has a name in the file system, so nothing is left behind however the
processes end.
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

import structlog

from services.worker.orchestrator.fork_server_client import ForkServerClient
from services.worker.orchestrator.process_readings import (
    STOPPED,
    CpuCounts,
    ProcessReading,
    read_cpu,
    read_process,
)
from services.worker.orchestrator.rank_process_handle import (
    STILL_RUNNING,
    RankProcessHandle,
    SpawnedRank,
    runs,
    stat,
)
from services.worker.orchestrator.time_limits import UsableLimit
from shared.host.own_python import module_command, module_environment
from shared.host.thread_counts import thread_ids

RankStart = Literal["auto", "fork", "spawn"]
COMMAND = tuple(module_command("services.worker.engine"))
_POLL_S = 0.005
KILL_WAIT_S = 5.0  # a killed process that has not ended by then is stuck in a driver or a disk
_EXIT_POLL_S = 0.001
_LIFELINES = sys.platform == "linux"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A running rank, and the leader's ends of its socket pairs (non-blocking).

    Attributes:
        sock: For configs, plans and results.
        kv_sock: For KV blocks; None: it has no store.
        kv_fd: Number of the rank's end of `kv_sock`, as the leader names it.
        life_sock: It ends when the rank dies, before the kernel has freed the memory; for clock pings too.
        life_fd: Number of the rank's end of `life_sock`.
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
        """Process id; 0 until a fork server that is still loading has forked it."""
        self.process.poll()
        return self.process.pid

    @property
    def host(self) -> str:
        """Address of its host, empty for this host."""
        return str(getattr(self.process, "host", ""))

    def memory_bytes(self) -> int:
        """Return the resident bytes, shared memory included; 0 if the process is gone or on another host."""
        if not self.pid:
            return 0
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def read_counts(self) -> ProcessReading | None:
        """Return the kernel's counts of the process; None if it is gone or on another host."""
        return read_process(self.pid)

    def read_cpu(self, threads: int) -> CpuCounts:
        """Return the CPU times of its main thread, or of all if it computes with more than one."""
        pid = self.pid
        return read_cpu(pid, [pid] if threads == 1 else thread_ids(pid)) if pid else {}

    def describe_end(self, wait_s: float = 0.0) -> str:
        """How the process ended: `killed by SIGKILL`, `exit code 1`; after `wait_s` `still running`."""
        deadline = time.monotonic() + wait_s
        while (end := self.process.describe_end()) == STILL_RUNNING and time.monotonic() < deadline:
            time.sleep(_EXIT_POLL_S)
        return end

    def close(self) -> None:
        """Close the leader's ends of all its sockets."""
        for sock in (self.sock, self.kv_sock, self.life_sock):
            if sock is not None:
                sock.close()


class ProcessGroupManager:
    """The processes of one group.

    Args:
        command: Command of a spawned rank; its socket's descriptor and the leader's process id are appended.
        start: `fork` takes ranks from a fork server, which is kept until `stop_fork_server`; `spawn` starts
            an interpreter for each; `auto` forks where that is safe: on Linux.
        instance_id: The leader's, for the ranks' log lines.
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
        """Start the fork server, if ranks are forked, so that it loads torch in the background.

        Raises:
            OSError: It could not be started.
        """
        if self._forks and sys.platform != "linux":
            raise OSError("RYZ_RANK_START=fork needs Linux; set it to spawn or auto")
        if self._fork_server is not None:
            self._fork_server.read_reports()
        if self._forks and (self._fork_server is None or self._fork_server.gone):
            if self._fork_server is not None:
                log.warning("the fork server is started anew", why=self._fork_server.describe_end())
            self.stop_fork_server()
            self._fork_server = ForkServerClient(self._environment(threads))

    def spawn_ranks(
        self, world: int, threads: int, inherit: Sequence[int] = (), *, kv_sockets: bool = False
    ) -> list[RankProcess]:
        """Start ranks 0 to world-1; their output goes to the leader's stderr.

        Call it from a thread that lives as long as the leader: the kernel ends a rank when the thread that
            started
        it ends.

        Args:
            world: Number of ranks to start.
            threads: Threads of each rank.
            inherit: Descriptors that the ranks inherit.
            kv_sockets: Give each rank a second socket, for KV blocks.

        Returns:
            All ranks, those of other hosts included.

        Raises:
            OSError: A process could not be started; none is left running.
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
        self.ranks.sort(key=lambda process: process.rank)  # ranks of other hosts were added before
        return self.ranks

    def adopt_ranks(self, ranks: Sequence[RankProcess]) -> None:
        """Add ranks of other hosts to the group."""
        self.ranks.extend(ranks)

    def kill_ranks(self) -> None:
        """Kill all ranks; `stop_ranks` collects them afterwards."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()

    async def stop_ranks(self, grace_s: float) -> None:
        """Close the sockets, at which ranks end themselves, and kill those that still run after `grace_s`.

        A second call does nothing. The fork server stays, for the next start.
        """
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            rank.close()
        await self._wait_ended(ranks, grace_s)
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
        await self._wait_ended(ranks, KILL_WAIT_S)
        if left := [rank for rank in ranks if rank.process.poll() is None]:
            states = {name: (stat(pid)[:1] or ["gone"])[0] for name, pid in self._pids_of(left[0]).items()}
            why = ", ".join(f"state of the {name}: {state}" for name, state in states.items())
            log.warning("a rank did not end when it was killed", pid=left[0].pid, why=why)
            # one that hangs kills no rank and tells of no end; else its report is late, and it is kept
            if any(runs(rank.pid) for rank in left) or states.get("fork server") in STOPPED:
                self.stop_fork_server()

    def read_waited(self, ranks: Sequence[RankProcess]) -> dict[int, ProcessReading | None]:
        """Return the counts of the processes of these ranks and of the fork server, by process id."""
        pids = {rank.pid for rank in ranks if not rank.host}
        if self._fork_server is not None:
            pids.add(self._fork_server.pid)
        return {pid: read_process(pid) for pid in pids if pid}

    def stop_fork_server(self) -> None:
        """End the fork server and the ranks that it forked. `spawn_ranks` may be called again."""
        if self._fork_server is not None:
            self._fork_server.end_server()
            self._fork_server = None

    def _pids_of(self, rank: RankProcess) -> dict[str, int]:
        """The process ids of a rank and of the fork server, which tells of its end."""
        return {"rank": rank.pid} | ({"fork server": self._fork_server.pid} if self._fork_server else {})

    async def _wait_ended(self, ranks: Sequence[RankProcess], limit_s: float) -> None:
        """Wait for the ends of ranks, for that much time that they and the fork server can use."""
        now = time.monotonic()
        limit, check_at = UsableLimit(limit_s, now), now
        # polling a few processes is portable and leaves no thread or signal handler behind
        while left := [rank for rank in ranks if rank.process.poll() is None]:
            now = time.monotonic()
            if now >= check_at:
                if limit.is_late(now, self.read_waited(left)):
                    return
                check_at = now + limit.interval_s
            await asyncio.sleep(_POLL_S)

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
        # OpenMP reads it when torch is imported
        environment["OMP_NUM_THREADS"] = str(threads)
        # OpenMP spins for milliseconds at each barrier by default; on a shared core a step took 50 times as
        # long
        environment.setdefault("GOMP_SPINCOUNT", "2000")
        return environment


def _socket_pair(
    after: contextlib.ExitStack, on_failure: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Return the leader's end, closed on failure only, and the rank's end, closed when the rank has it."""
    ours, theirs = socket.socketpair()
    on_failure.callback(ours.close)
    after.callback(theirs.close)
    ours.setblocking(False)
    return ours, theirs


def _passed(after: contextlib.ExitStack, on_failure: contextlib.ExitStack) -> tuple[socket.socket, int]:
    """Return the leader's end of another socket pair, and the descriptor of the rank's end."""
    ours, theirs = _socket_pair(after, on_failure)
    return ours, theirs.fileno()
