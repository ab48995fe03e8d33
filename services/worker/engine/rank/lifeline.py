"""A socket that ends the moment its process dies, however much memory the kernel then has to take back.

When a process dies, the kernel takes its memory back before it closes its files: tens of milliseconds for a
gigabyte. Both happen when the last thread that has them ends: the memory with the last of all threads, the
files with the last that shares their table. So here one thread gets a table of its own that holds nothing but
the socket. Either it goes before the last thread, and the socket ends with it, or it is the last itself, and
what the other threads have open ended with them.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
from _thread import LockType, allocate_lock

import structlog

log = structlog.get_logger(__name__)
_CLOSE_RANGE = 436  # the system call's number on all machines that torch runs on
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_HIGHEST = 2**32 - 1


def hold(descriptor: int) -> int:
    """Gives the descriptor to a thread that holds it as long as this process lives; the others lose it.

    Call it before much is open: what the thread has for a moment must be nothing that somebody waits to see
    closed. Where the kernel does not allow a table of its own, nothing changes.

    Returns:
        The thread's id in the kernel; 0: there is none, and the descriptor is open as before.
    """
    if sys.platform != "linux":
        return 0
    ready, answers = allocate_lock(), list[int]()
    ready.acquire()
    collects = gc.isenabled()
    # a finalizer that ran in that thread would close its descriptors, not those that it means
    gc.disable()
    try:
        threading.Thread(
            target=_keep, args=(descriptor, ready, answers), name="lifeline", daemon=True
        ).start()
        ready.acquire()
    finally:
        if collects:
            gc.enable()
    if not answers:
        log.debug("no lifeline: the leader sees a death of this rank when its memory is free")
        return 0
    os.close(descriptor)
    return answers[0]


def _keep(descriptor: int, ready: LockType, answers: list[int]) -> None:
    try:
        _take_own_table(descriptor)
        answers.append(threading.get_native_id())
    except OSError:
        return
    finally:
        ready.release()
    with contextlib.suppress(OSError):  # the leader is gone; the rank's own socket tells that as well
        while os.read(descriptor, 1):  # the leader sends nothing
            pass


def _take_own_table(descriptor: int) -> None:
    """Leaves this thread a table of its own, with that descriptor and 0 to 2.

    Raises:
        OSError: the kernel refuses that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # containers mostly forbid `unshare` altogether, and older kernels have no flag for it here
    close_range = map(ctypes.c_long, (_CLOSE_RANGE, descriptor + 1, _HIGHEST, _CLOSE_RANGE_UNSHARE))
    if libc.syscall(*close_range) and libc.unshare(_CLONE_FILES):
        raise OSError(ctypes.get_errno(), "unshare")
    for name in os.listdir("/proc/thread-self/fd"):
        if int(name) > 2 and int(name) != descriptor:
            with contextlib.suppress(OSError):  # the one that read the list
                os.close(int(name))
