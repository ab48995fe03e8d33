"""Becomes the given command after asking the kernel for SIGTERM when the supervisor dies.

Run as a script by the supervisor, in a fresh interpreter without site packages (a dozen milliseconds). The
request survives `exec`; a `preexec_fn` would run Python between fork and exec in a process with threads.
"""

import os
import sys

PR_SET_PDEATHSIG = 1
SIGTERM = 15


def main() -> None:
    """Become the command; the arguments are the supervisor's pid, then the command."""
    supervisor, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 (only Linux needs it)

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0)
    if os.getppid() != supervisor:  # it died before the request was made
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
