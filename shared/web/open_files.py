"""The limit of open files, and so of connections, of this process."""

import resource

import structlog

log = structlog.get_logger(__name__)

RESERVED = 256  # files for the broker, logs, libraries, and connections that are being closed


def raise_limit(connections: int) -> int:
    """Raises the limit of open files as far as needed and allowed.

    Args:
        connections: How many connections are wanted.

    Returns:
        How many connections fit under the limit, at least one and at most those wanted.
    """
    wanted = connections + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        soft = max(soft, reachable)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fitting = connections if soft == resource.RLIM_INFINITY else min(connections, soft - RESERVED)
    fitting = max(1, fitting)
    if fitting < connections:
        log.warning(
            "fewer connections than configured",
            open_files=soft,
            connections=fitting,
            remedy="raise the limit of open files (ulimit -n)",
            configured=connections,
        )
    return fitting
