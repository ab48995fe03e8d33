"""Ends of children that were not started by asyncio, with real processes."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from cli.stack.forking.adopted import UNKNOWN, AdoptedProcess, collect_orphans
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors of processes are Linux's")


def spawn(*command: str, own_group: bool = True) -> int:
    """Start a child, in a process group of its own as services are, and return its id."""
    path = shutil.which(command[0])
    assert path is not None
    if own_group:
        return os.posix_spawn(path, command, os.environ, setpgroup=0)
    return os.posix_spawn(path, command, os.environ)


def end_of(pid: int) -> int:
    """Wait for a child, and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_the_exit_code_is_awaited() -> None:
    for code in (0, 3):
        adopted = AdoptedProcess(spawn("sh", "-c", f"exit {code}"))
        assert await adopted.wait() == adopted.returncode == code
        adopted.send_signal(signal.SIGTERM)  # nothing has that process id now


async def test_a_signal_is_sent_and_told() -> None:
    adopted = AdoptedProcess(spawn("sleep", "1000"))
    waiting = asyncio.create_task(adopted.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    adopted.send_signal(signal.SIGTERM)
    assert await waiting == -signal.SIGTERM


async def test_a_child_that_other_code_has_collected_has_ended() -> None:
    pid = spawn("sleep", "1000")
    adopted = AdoptedProcess(pid)
    os.kill(pid, signal.SIGKILL)
    end_of(pid)
    async with asyncio.timeout(PATIENCE_S):
        assert await adopted.wait() == UNKNOWN


async def test_only_orphans_are_collected() -> None:
    own, orphan = spawn("sleep", "1000"), spawn("sleep", "1000")
    os.kill(orphan, signal.SIGKILL)
    await until(lambda: collect_orphans({own}) and not Path(f"/proc/{orphan}").exists())
    os.kill(own, signal.SIGKILL)
    await until(lambda: not collect_orphans({own}))
    assert end_of(own) == -signal.SIGKILL


async def test_who_waits_for_its_own_children_finds_them() -> None:
    ours = spawn("true", own_group=False)
    await until(lambda: not collect_orphans(set()))
    assert end_of(ours) == 0
