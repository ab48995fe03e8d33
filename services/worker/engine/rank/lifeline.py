"""A socket that closes at once when its process dies, however much memory the kernel then has to free.

When a process dies, the kernel frees its memory before it closes its files, which takes tens of milliseconds
per gigabyte. The memory is freed when the last thread ends, a file table when the last thread that shares it
ends. Here one thread gets a file table of its own that holds only the socket. If that thread ends before the
last one, the socket closes before memory is freed. If it is the last, the other threads' files, the leader's
socket among them, have closed before.
"""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
from _thread import LockType, allocate_lock

import structlog

from services.worker.rank_protocol.trace_messages import LIFE_PONG

log = structlog.get_logger(__name__)
_CLOSE_RANGE = 436  # the system call's number on all machines that torch runs on
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_HIGHEST = 2**32 - 1


def hold_in_thread(descriptor: int) -> int:
    """Moves the descriptor to a thread that holds it as long as this process lives.

    Call it before other files are open: the thread has copies of them for a moment, so closing them would not
    be seen by their peers. If the kernel refuses the table, the descriptor stays open in this process.

    Returns:
        The thread's id in the kernel; 0 if the kernel refused.
    """
    if sys.platform != "linux":
        return 0
    ready, answers = allocate_lock(), list[int]()
    ready.acquire()
    collects = gc.isenabled()
    # a finalizer that ran in that thread would close descriptors of the wrong table
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
    with contextlib.suppress(OSError):  # the leader is gone; the rank's main socket ends as well
        while ping := os.read(descriptor, 1):  # answered here, so that no step delays it
            received_ns = time.monotonic_ns()
            os.write(descriptor, LIFE_PONG.pack(ping[0], received_ns, time.monotonic_ns()))


def _take_own_table(descriptor: int) -> None:
    """Gives this thread a file table of its own, with that descriptor and 0 to 2.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # most containers forbid `unshare`; older kernels lack the flag of `close_range`
    close_range = map(ctypes.c_long, (_CLOSE_RANGE, descriptor + 1, _HIGHEST, _CLOSE_RANGE_UNSHARE))
    if libc.syscall(*close_range) and libc.unshare(_CLONE_FILES):
        raise OSError(ctypes.get_errno(), "unshare")
    for name in os.listdir("/proc/thread-self/fd"):
        if int(name) > 2 and int(name) != descriptor:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
