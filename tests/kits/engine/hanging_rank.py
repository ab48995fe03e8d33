"""A rank that hangs on a signal: `python -m tests.kits.engine.hanging_rank FD PID`, as a rank is spawned.

SIGUSR1: it computes without end. SIGUSR2: it is blocked in a system call without end.
"""

import os
import signal

from services.worker.engine.__main__ import main
from services.worker.engine.rank.process import end_process


def _spin(*_: object) -> None:
    while True:
        pass


def _block(*_: object) -> None:
    ours, _theirs = os.pipe()
    os.read(ours, 1)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _spin)
    signal.signal(signal.SIGUSR2, _block)
    end_process(main())
