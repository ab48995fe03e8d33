"""Log lines of processes that have no settings of their own: ranks, and their fork server.

They look like the leader's, whose environment they share, and name the process. Local variables stay out of
traces, since they hold prompts.
"""

import os
import socket
import sys

from shared.telemetry.logs.log_schema import BURST
from shared.telemetry.logs.log_setup import write_lines


def write_rank_lines(role: str, rank: int | None = None) -> None:
    """Sets up this process's log lines; of a fork, in the fork."""
    names: dict[str, str | int] = {"service": "worker", "role": role, "pid": os.getpid()}
    # a rank that joins from another host has no leader's instance in its environment
    instance = os.environ.get("RYZ_INSTANCE_ID") or f"{socket.gethostname()}-{os.getpid()}"
    given = {"instance": instance, "group": os.environ.get("RYZ_GROUP", "")}
    names |= {name: value for name, value in given.items() if value}
    if rank is not None:
        names["rank"] = rank
    form = os.environ.get("RYZ_LOG_FORMAT") or (
        "console" if role == "join" and sys.stderr.isatty() else "json"
    )
    level = os.environ.get("RYZ_LOG_LEVEL", "info")
    write_lines(names, level=level, form=form, burst=BURST)
