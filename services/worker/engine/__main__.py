"""Entry of a rank process: `python -m services.worker.engine FD PID`, its end of the leader's socket pair and
the leader's process id.

Started by `ProcessGroupManager` only. Before it loads anything it sees to it that it cannot outlive its
leader and that a Ctrl-C in the terminal is left for the leader to handle.
"""

import ctypes
import os
import signal
import socket
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def main() -> int:
    """Runs one rank; returns the exit code."""
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # belt and braces: the end of the socket is noticed between steps, this one always
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # the collectives sleep for some 20 us; the default slack alone is 50 us
        libc.prctl(_PR_SET_TIMERSLACK, 1000)
        if os.getppid() != int(sys.argv[2]):
            return 0  # the leader died before the line above
    sock = socket.socket(fileno=int(sys.argv[1]))
    from services.worker.engine.rank import serve  # noqa: PLC0415 (torch takes a second to import)

    return serve(sock, started)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # everything is closed; taking the interpreter down with torch in it would need half a second more
    os._exit(status)
