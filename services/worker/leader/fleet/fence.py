"""A leader that hears that routers have given it up: what it runs is being resumed elsewhere.

It was frozen, or cut off, or only slow; by the time it hears of it, its callers have gone on with other
groups. So it drops everything at once and starts afresh with what comes next. A caller that has not heard of
it learns from the last frame that its request can be resumed.
"""

import structlog

from services.worker.leader.request_table import RequestTable
from shared.bus.api import Message
from shared.errors import GroupLost, InvalidRequest
from shared.messages import GroupDown
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class Fence:
    """The handler of `GroupDown` in the group that may be meant."""

    def __init__(self, group: str, instance_id: str, generations: RequestTable) -> None:
        self._group = group
        self._instance_id = instance_id
        self._generations = generations
        self._repeated = RepeatedLog(log)

    def report_bad(self, message: Message, error: InvalidRequest) -> None:
        """Logs a message that could not be decoded."""
        self._repeated.warning("news that cannot be read", subject=message.subject, error=error.message)

    async def on_group_down(self, down: GroupDown, _: Message) -> None:
        """Ends every request if it is this instance that was given up."""
        if (down.group, down.instance_id) != (self._group, self._instance_id):
            return
        log.warning("given up by a router", reason=down.reason, requests=len(self._generations.by_id))
        self._generations.fail_all(
            GroupLost(f"group {self._group} was given up ({down.reason})", reason=down.reason)
        )
