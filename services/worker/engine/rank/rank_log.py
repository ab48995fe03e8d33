"""Log lines of processes that have no settings of their own: ranks, and their fork server.

They look like the leader's, whose environment they share, and name the process. Local variables stay out of
traces, since they hold prompts.
"""

import os

from shared.telemetry.logs import write_lines


def write_rank_lines(role: str, rank: int | None = None) -> None:
    """Sets up this process's log lines; of a fork, in the fork."""
    names: dict[str, str | int] = {"service": "worker", "role": role, "pid": os.getpid()}
    told = {"instance": os.environ.get("RYZ_INSTANCE_ID", ""), "group": os.environ.get("RYZ_GROUP", "")}
    names |= {name: value for name, value in told.items() if value}
    if rank is not None:
        names["rank"] = rank
    level, form = os.environ.get("RYZ_LOG_LEVEL", "info"), os.environ.get("RYZ_LOG_FORMAT", "json")
    write_lines(names, level=level, form=form)
