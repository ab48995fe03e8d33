"""Runs tests in several processes, forked from one that has imported and collected all of them.

xdist starts each process from nothing: each imports, instruments and collects everything, which costs half a
minute of CPU time or more. Here it happens once. A process gets one scope of tests after another
(`side_by_side.py`) and asks for the next one before its last test, since the fixtures that this test tears
down depend on the test that follows. A process that dies is replaced; its test has failed.

Tests with the marker `alone` measure time. They run one after another in one process when all other processes
have ended.
"""

import gc
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest

from tests.kits.parallel.forked_process import run_tests
from tests.kits.parallel.side_by_side import next_scope, scope_of

# how long a process may take to end after its last test, or after it was told to stop
_END_S = 60.0
# so many ended processes are a fault of the machine or of this runner, rather than of tests
_MAX_ENDED = 10


@dataclass
class _Process:
    """One forked process, and what is known of it."""

    number: int
    pid: int
    connection: Connection
    scope: str = ""
    given: list[int] = field(default_factory=list)
    current: int | None = None


class ForkedRun:
    """A pytest plugin that gives the collected tests to `count` forked processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._scopes: dict[str, list[int]] = {}
        self._alone: dict[str, list[int]] = {}
        self._processes: list[_Process] = []
        self._num_ended = 0
        self._unfinished: set[int] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Collect without the garbage collector: modules stay, and there are millions of objects."""
        gc.disable()
        yield
        gc.freeze()
        gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests and return True; None if there is nothing to run here."""
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        assert threading.active_count() == 1, f"threads would be lost in forks: {threading.enumerate()}"
        for index, item in enumerate(session.items):
            scopes = self._alone if item.get_closest_marker("alone") else self._scopes
            scopes.setdefault(scope_of(item.nodeid), []).append(index)
        self._unfinished = set(range(len(session.items)))
        if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False
        root = tempfile.mkdtemp(prefix="ryz-tests-")
        os.environ["PYTEST_DEBUG_TEMPROOT"] = root
        try:
            self._run_scopes(session, self._count)
            self._scopes = self._alone
            self._run_scopes(session, 1)
        finally:
            self._end()
        if self._unfinished:
            some = session.items[min(self._unfinished)].nodeid
            raise session.Interrupted(f"{len(self._unfinished)} tests were not run, such as {some}")
        if not session.testsfailed:
            shutil.rmtree(root, ignore_errors=True)
        return True

    def _run_scopes(self, session: pytest.Session, count: int) -> None:
        """Run the tests of all scopes in `count` processes, until these have ended."""
        if not self._scopes:
            return
        for number in range(count):
            self._start(session, number)
        self._follow(session)

    def _start(self, session: pytest.Session, number: int) -> None:
        ours, theirs = Pipe()
        if pid := os.fork():
            theirs.close()
            self._processes.append(_Process(number, pid, ours))
            return
        for other in (ours, *(process.connection for process in self._processes)):
            other.close()
        run_tests(session, theirs, number)

    def _follow(self, session: pytest.Session) -> None:
        """Serve the processes until all have ended."""
        while self._processes:
            ready = wait([one.connection for one in self._processes], timeout=1.0)
            for process in [one for one in self._processes if one.connection in ready or _ended(one.pid)]:
                # what a test started may hold the connection open when the process is gone
                ended = _ended(process.pid)
                try:
                    while process.connection.poll():
                        self._hear(session, process)
                except (EOFError, ConnectionError):
                    ended = True
                if ended:
                    self._gone(session, process)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)

    def _hear(self, session: pytest.Session, process: _Process) -> None:
        kind, value = process.connection.recv()
        hook = session.config.hook
        if kind == "next":
            process.given = self._take(process)
            process.connection.send(process.given)
        elif kind == "begin":
            process.current = value
            item = session.items[value]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "report":
            hook.pytest_runtest_logreport(
                report=hook.pytest_report_from_serializable(config=session.config, data=value)
            )
        elif kind == "end":
            process.current = None
            self._unfinished.discard(value)
            item = session.items[value]
            if value in process.given:
                process.given.remove(value)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _take(self, process: _Process) -> list[int]:
        """The tests of the next scope; none are left: an empty list."""
        if not self._scopes:
            return []
        process.scope = next_scope(self._scopes, stacks=process.number % 2 == 0, last=process.scope)
        return self._scopes.pop(process.scope)

    def _gone(self, session: pytest.Session, process: _Process) -> None:
        """Note that a process has ended; a test that it was running has failed, and another goes on."""
        self._processes.remove(process)
        process.connection.close()
        _, status = os.waitpid(process.pid, 0)
        if process.current is None and not process.given:
            return
        lost = process.current if process.current is not None else process.given[0]
        self._unfinished.discard(lost)
        item = session.items[lost]
        text = f"process {process.number} ended during this test: {os.waitstatus_to_exitcode(status)}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        self._num_ended += 1
        if self._num_ended > _MAX_ENDED:
            raise session.Interrupted(f"{self._num_ended} processes of tests have ended")
        if rest := [index for index in process.given if index != lost]:
            self._scopes = {f"{scope_of(item.nodeid)}": rest, **self._scopes}
        self._start(session, process.number)

    def _end(self) -> None:
        """End the processes that are left, which is only needed after an interruption."""
        for process in self._processes:
            process.connection.close()
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        for process in self._processes:
            late = threading.Timer(_END_S, os.kill, (process.pid, signal.SIGKILL))
            late.start()
            with suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
            late.cancel()


def _ended(pid: int) -> bool:
    """Whether a child has ended; it can be waited for still."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
