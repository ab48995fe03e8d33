"""The memory of groups, as an agent measures it."""

import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from cli.stack.agent.group_memory import group_bytes, process_bytes
from tests.kits.waiting import wait_for


@pytest.fixture
def leader() -> Iterator[psutil.Process]:
    """A process with a child and a grandchild, each in a process group of its own, as ranks are."""
    nested = "setsid sh -c 'setsid sleep 60 & wait' & wait"
    process = subprocess.Popen(["sh", "-c", nested], process_group=0)
    tree = psutil.Process(process.pid)
    wait_for(lambda: any(one.name() == "sleep" for one in tree.children(recursive=True)), "the tree is there")
    children = tree.children(recursive=True)
    yield tree
    for one in (tree, *children):
        os.kill(one.pid, signal.SIGKILL)
    process.wait()


def test_all_processes_that_descend_from_a_leader_count(
    leader: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {leader.pid, *(one.pid for one in leader.children(recursive=True))}
    assert len({os.getpgid(pid) for pid in members}) == 3
    measured = set[int]()

    def one_byte(pid: int) -> int:
        measured.add(pid)
        return 1

    monkeypatch.setattr("cli.stack.agent.group_memory.process_bytes", one_byte)
    assert group_bytes({"g0": leader.pid, "gone": 0}) == {"g0": 3}
    assert measured == members
    child = leader.children()[0]
    assert group_bytes({"g0": leader.pid, "g1": child.pid}) == {"g0": 1, "g1": 2}


def test_the_bytes_are_those_of_the_kernel(leader: psutil.Process) -> None:
    assert process_bytes(leader.pid) > 0
    assert group_bytes({"g0": leader.pid})["g0"] > process_bytes(leader.pid)
    with pytest.raises(OSError, match="No such file"):
        process_bytes(2**22 + 1)
