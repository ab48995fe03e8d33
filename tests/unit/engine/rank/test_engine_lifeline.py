"""The life socket of a rank reports the death of a process with much memory and several threads."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.worker.orchestrator.rank_process_handle import coming_exit_code

LARGE = 256 * 2**20
# Arguments: file descriptors of an ordinary socket and of the life socket, bytes of memory to touch.
PROCESS = """
import ctypes, gc, json, mmap, os, socket, sys, threading, time
from pathlib import Path
from services.worker.engine.rank import lifeline
{before}
sock, life = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
def files(task):
    found = [(int(fd.name), fd) for fd in Path(f"/proc/self/task/{{task}}/fd").iterdir()]
    return [os.readlink(fd) for number, fd in found if number > 2 and fd.is_symlink()]
held = os.readlink(f"/proc/self/fd/{{life}}")
thread = lifeline.hold_in_thread(life)
memory = mmap.mmap(-1, int(sys.argv[3]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[::4096] = bytes([1]) * (len(memory) // 4096)
for _ in range(3):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
told = {{
    "thread": thread,
    "tasks": [int(task.name) for task in Path("/proc/self/task").iterdir()],
    "main_has_it": held in files(os.getpid()),
    "thread_has": [name == held for name in files(thread)] if thread else [],
    "collects": gc.isenabled(),
}}
sock.sendall(json.dumps(told).encode() + b"\\n")
{after}
time.sleep(1000)
"""
REFUSED = """
class Refusing:
    def syscall(self, *arguments): return -1
    def unshare(self, flags): return -1
ctypes.CDLL = lambda *arguments, **options: Refusing()
"""
OLDER_KERNEL = """
real = ctypes.CDLL(None, use_errno=True)
class Older:
    def syscall(self, *arguments): return -1
    unshare = real.unshare
ctypes.CDLL = lambda *arguments, **options: Older()
"""
CONTAINER = """
real = ctypes.CDLL(None, use_errno=True)
class Container:
    syscall = real.syscall
    def unshare(self, flags): return -1
ctypes.CDLL = lambda *arguments, **options: Container()
"""


class Watched:
    """A child process, the leader's ends of its sockets, and the facts that it reported at its start."""

    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket, life: socket.socket) -> None:
        self.process, self.sock, self.life = process, sock, life
        with sock.makefile("rb") as lines:
            self.reported: dict[str, Any] = json.loads(lines.readline())

    def ended(self, wait_s: float = 0.0) -> list[socket.socket]:
        return select.select([self.sock, self.life], [], [], wait_s)[0]

    def may_be_collected(self) -> bool:
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def memory_in_use() -> int:
    """Anonymous memory of all processes, in bytes."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonPages:"))


@contextmanager
def process(memory: int = 4096, before: str = "", after: str = "") -> Iterator[Watched]:
    ours, theirs = socket.socketpair()
    life, passed = socket.socketpair()
    fds = theirs.fileno(), passed.fileno()
    with ours, life:
        child = subprocess.Popen(
            [sys.executable, "-c", PROCESS.format(before=before, after=after), *map(str, fds), str(memory)],
            pass_fds=fds,
        )
        theirs.close()
        passed.close()
        try:
            yield Watched(child, ours, life)
        finally:
            child.kill()
            child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="tables of threads' own are Linux's")
class TestLinux:
    @pytest.mark.parametrize("before", [CONTAINER, OLDER_KERNEL])
    def test_the_thread_has_the_socket_and_nothing_else(self, before: str) -> None:
        with process(before=before) as watched:
            reported = watched.reported
            assert reported["thread"] in reported["tasks"]
            assert reported["thread"] != watched.process.pid
            assert reported["thread_has"] == [True]
            assert not reported["main_has_it"]
            assert reported["collects"]
            assert not watched.ended()

    def test_a_death_is_seen_before_the_memory_is_free(self) -> None:
        """The exit code is known by then, too.

        This process may be scheduled too late to see it, so one success in eight tries is enough.
        """
        for _ in range(8):
            with process(LARGE) as watched:
                watched.process.kill()
                assert watched.ended(30)
                in_use, code = memory_in_use(), coming_exit_code(watched.process.pid)
                runs = not watched.may_be_collected()
                watched.process.wait(30)
                assert code == -signal.SIGKILL
                if runs and in_use - memory_in_use() > LARGE // 2:
                    return
        pytest.fail("no socket ended before the memory was free")

    def test_both_end_in_the_end(self) -> None:
        with process() as watched:
            watched.process.send_signal(signal.SIGTERM)
            watched.process.wait(30)
            assert len(watched.ended(30)) == 2

    def test_what_the_process_closes_itself_leaves_the_life_socket(self) -> None:
        with process(after="sock.close()") as watched:
            assert watched.ended(30) == [watched.sock]
            assert watched.process.poll() is None

    def test_the_end_of_the_leader_ends_the_thread_only(self) -> None:
        with process(after="sock.recv(1); sock.sendall(b'%d' % threading.active_count())") as watched:
            watched.life.close()
            task = f"/proc/{watched.process.pid}/task/{watched.reported['thread']}"
            for _ in range(1000):
                if not os.path.exists(task):
                    break
                select.select([], [], [], 0.01)
            watched.sock.sendall(b"?")
            assert watched.sock.recv(10) == b"4"

    def test_a_kernel_that_refuses_changes_nothing(self) -> None:
        with process(before=REFUSED) as watched:
            assert watched.reported["thread"] == 0
            assert watched.reported["main_has_it"]
            assert watched.reported["collects"]
            assert not watched.ended()
            watched.process.kill()
            watched.process.wait(30)
            assert len(watched.ended(30)) == 2


def test_elsewhere_there_is_none() -> None:
    with process(before="sys.platform = 'darwin'") as watched:
        assert watched.reported["thread"] == 0
        assert watched.reported["main_has_it"]
        assert not watched.ended()
