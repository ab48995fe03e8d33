"""A forked service that has become a child of this process, and orphans that became children with it."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Collection
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36
UNKNOWN = 255  # the exit code of a child that other code has collected, as in asyncio


class AdoptedProcess:
    """Awaits the end of a child that this process did not start. One event loop only.

    It may be made a moment before the kernel has made the process a child of this one.

    Raises:
        OSError: The kernel has no descriptors of processes, or there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._fd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._fd, self._collect)

    async def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signum)

    def _collect(self) -> None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            try:  # also reaches one that has ended and was not collected
                signal.pidfd_send_signal(self._fd, 0)
            except ProcessLookupError:
                self._end(UNKNOWN)
            return  # its parent is still ending; the loop calls this again at once
        if pid:
            self._end(os.waitstatus_to_exitcode(status))

    def _end(self, code: int) -> None:
        self.returncode = code
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._ended.set()


def adopt_orphans() -> bool:
    """Have orphans among the descendants of this process become its children; False where that cannot be."""
    if not hasattr(os, "pidfd_open"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def has_children() -> bool:
    """Whether this process has any child, also one that has ended and was not collected."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def collect_orphans(own: Collection[int]) -> bool:
    """Collect children that have ended, but for these and those that are in the process group of this one.

    Returns:
        False if one of those has ended, and is to be collected elsewhere first; others may wait behind it.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if ended is None:
            return True
        with suppress(ProcessLookupError, ChildProcessError):  # it was collected elsewhere meanwhile
            if ended.si_pid in own or os.getpgid(ended.si_pid) == os.getpgrp():
                return False
            os.waitpid(ended.si_pid, os.WNOHANG)
