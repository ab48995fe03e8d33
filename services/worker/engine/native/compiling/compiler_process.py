"""Runs a compiler that ends, with all processes that it starts, when its caller ends, however that happens.

A driver such as `g++` starts the compiler proper, the assembler and the linker. Killed alone, or left by a
caller that was killed, it leaves those running, and they would write into the file of the next compilation.
So this file, run as a script, stands between caller and driver as the first process of a group of their own:
the kernel tells it when the caller ends, and it ends the group.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1
_TIDY_S = 2.0  # for drivers to remove their temporary files
_NOT_STARTED = 127  # as shells have it


def run_compiler(command: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Runs a compiler; returns its exit code and what it wrote to stderr.

    The thread that calls it must live until it returns: the kernel takes its end for that of the caller.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It took longer than the limit.
    """
    # -I -S: without site packages it starts in a dozen milliseconds
    guarded = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]
    with subprocess.Popen(
        guarded, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, errors


def main() -> int:
    """Runs the command behind the caller's pid in the arguments; returns its exit code."""
    caller, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, _end_group)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != caller:  # it ended before the kernel was asked
        return 1
    try:
        status = subprocess.run(command, check=False).returncode
    except OSError as error:
        print(error, file=sys.stderr)
        return _NOT_STARTED
    return status if status >= 0 else 128 - status  # ended by a signal, as shells have it


def _end_group(_signum: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGALRM, _kill_group)
    signal.setitimer(signal.ITIMER_REAL, _TIDY_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, 0)
    _kill_group()


def _kill_group(*_: object) -> None:
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
