"""The call that drains the group."""

from services.worker.leader.context import LeaderContext
from services.worker.leader.fleet.drain import Drain
from services.worker.leader.request_table import RequestTable
from shared.bus.api import Message
from shared.messages import DrainGroup, Draining


class DrainCalls:
    """The call of the drain subject.

    Args:
        drain: Is begun; the process ends when it is done.
        timeout_s: For calls that name none.
    """

    def __init__(self, context: LeaderContext, drain: Drain, table: RequestTable, timeout_s: float) -> None:
        self._context = context
        self._drain = drain
        self._table = table
        self._timeout_s = timeout_s

    async def drain_group(self, asked: DrainGroup, _: Message) -> Draining:
        """Begins to drain, and returns how long running requests may go on."""
        self._drain.begin_drain(asked.timeout_ms / 1000 if asked.timeout_ms else self._timeout_s)
        return Draining(
            group=self._context.group,
            instance_id=self._context.instance_id,
            requests=len(self._table.by_key),
            timeout_ms=round(1000 * self._drain.left_s),
        )
