"""The processes of a group, without its engine: how they end, and that nothing of them is left."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from services.worker.orchestrator.process_group_manager import ProcessGroupManager, RankStart
from tests.kits.waiting import wait_for


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_rank_whose_code_breaks_is_reported_by_its_exit_code() -> None:
    manager = ProcessGroupManager(start="fork")
    try:
        (rank,) = manager.spawn_ranks(1, 1)
        assert rank.describe_end() == "still running"
        rank.sock.setblocking(True)
        rank.sock.sendall(b"\xff" * 64)  # not a frame, as after a bug in the leader
        assert rank.sock.recv(1 << 16)  # the error message
        assert rank.describe_end(5.0) == "exit code 1"
        assert rank.pid > 0
        assert rank.memory_bytes() == 0
    finally:
        await manager.stop_ranks(1.0)
        manager.stop_fork_server()


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_a_group_that_ended_leaves_no_socket_open(start: RankStart) -> None:
    before = len(os.listdir("/proc/self/fd"))
    manager = ProcessGroupManager(start=start)
    for _ in range(2):
        ranks = manager.spawn_ranks(2, 1, kv_sockets=True)
        sockets = [sock for rank in ranks for sock in (rank.sock, rank.kv_sock, rank.life_sock)]
        assert None not in sockets
        manager.kill_ranks()
        await manager.stop_ranks(0.0)
    manager.stop_fork_server()
    assert len(os.listdir("/proc/self/fd")) == before


LEADER = """
import os, sys
from services.worker.orchestrator.process_group_manager import ProcessGroupManager, RankStart
manager = ProcessGroupManager(start="fork")
ranks = manager.spawn_ranks(2, 1)
while not all(rank.pid for rank in ranks): pass
print(*[rank.pid for rank in ranks], flush=True)
sys.stdin.read()
"""


def test_the_death_of_a_leader_ends_fork_server_and_ranks() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as leader:
        assert leader.stdout is not None
        pids = [int(pid) for pid in leader.stdout.readline().split()]
        pids.append(psutil.Process(pids[0]).ppid())
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # only the leader handles Ctrl-C
        time.sleep(0.1)
        assert all(map(runs, pids))
        leader.kill()
    wait_for(lambda: not any(map(runs, pids)), "all have ended")
