"""Becomes the given command after asking the kernel for SIGTERM when the supervisor dies.

Run as a script by the supervisor, in a fresh interpreter without site packages (a dozen milliseconds). The
request survives `exec`; a `preexec_fn` would run Python between fork and exec in a process with threads.
"""

import os
import sys

PR_SET_PDEATHSIG = 1
SIGTERM = 15
FIRST_PASSED = 3  # the number of a socket that is passed on, as in sd_listen_fds(3)


def main() -> None:
    """Become the command.

    The arguments are the supervisor's pid, a listening socket or -1, cores such as `0,1` or an empty text for
    all, and the command.
    """
    supervisor, listener, cores, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 (only Linux needs it)

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)
    if os.getppid() != supervisor:  # it died before the request was made
        sys.exit(1)
    for variable in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):  # of a socket that was the supervisor's
        os.environ.pop(variable, None)
    if listener >= 0:
        os.dup2(listener, FIRST_PASSED)
        if listener != FIRST_PASSED:
            os.close(listener)
        os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
