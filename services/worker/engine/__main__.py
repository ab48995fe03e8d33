"""Entry point of a rank with its own interpreter: `python -m services.worker.engine FD PID`.

FD is its end of the leader's socket pair, PID the leader's process id. Started by `ProcessGroupManager` where
ranks are not forked (`rank/fork_server.py`). Before it loads anything it makes sure that it cannot outlive
its leader.
"""

import socket
import sys
import time

from services.worker.engine.rank.process import (
    bind_to_parent,
    end_process,
    name_process,
    name_rank_lines,
    write_rank_lines,
)


def main() -> int:
    """Runs one rank; returns the exit code."""
    started = time.monotonic()
    if not bind_to_parent(int(sys.argv[2])):
        return 0
    name_process("ryz-rank")
    write_rank_lines("rank")
    sock = socket.socket(fileno=int(sys.argv[1]))
    from services.worker.engine.rank.rank_process import serve  # noqa: PLC0415 (torch takes a second to import)

    return serve(sock, started, adapt=name_rank_lines)


if __name__ == "__main__":
    if sys.argv[1].startswith("-"):
        from services.worker.engine.rank.join import main as join

        end_process(join(sys.argv[1:]))
    end_process(main())
