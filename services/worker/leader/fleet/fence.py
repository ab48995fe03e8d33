"""Fencing: a leader that routers have given up ends all its requests, since they are resumed elsewhere.

The leader was frozen, cut off or slow; when `GroupDown` reaches it, its callers have gone on with other
groups. It drops all requests and takes new ones. A caller that missed `GroupDown` learns from the last frame
that its request can be resumed.
"""

import structlog

from services.worker.leader.context import LeaderContext
from services.worker.leader.request_table import RequestTable
from shared.bus.api import Message
from shared.errors import GroupLost, InvalidRequest
from shared.messages import GroupDown
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class Fence:
    """The handler of `GroupDown`."""

    def __init__(self, context: LeaderContext, table: RequestTable) -> None:
        self._context = context
        self._table = table
        self._repeated = RepeatedLog(log)

    def report_bad(self, message: Message, error: InvalidRequest) -> None:
        """Logs a message that could not be decoded."""
        self._repeated.warning("news that cannot be read", subject=message.subject, error=error.message)

    async def end_requests(self, down: GroupDown, _: Message) -> None:
        """Ends every request if this instance was given up."""
        if (down.group, down.instance_id) != (self._context.group, self._context.instance_id):
            return
        log.warning("given up by a router", reason=down.reason, requests=len(self._table.by_key))
        self._table.fail_all(
            GroupLost(f"group {down.group} was given up ({down.reason})", reason=down.reason)
        )
