"""Calls about a request that runs: cancel it, send frames again.

On a tenant's subject the broker vouches for the caller, which reaches requests of that tenant only. The other
subjects are for services, whose messages are trusted.
"""

import structlog

from services.worker.leader.context import LeaderContext
from services.worker.leader.request_table import RequestTable
from shared import codec
from shared.bus.api import Message
from shared.errors import Overloaded
from shared.flow.retry_budgets import ResendBudget
from shared.messages import Cancel, Resend, ResendReply
from shared.subjects import caller_of, tenant_of

log = structlog.get_logger(__name__)


class RequestCalls:
    """The calls of the cancel and resend subjects.

    Calls that name another instance are ignored: two leaders of one name read the same subjects, and only the
    one that accepted a request may answer for it.
    """

    def __init__(self, context: LeaderContext, table: RequestTable, budget: ResendBudget) -> None:
        self._table = table
        self._reply_bytes = context.bus.max_payload // 2
        self._instance_id = context.instance_id
        self._metrics = context.metrics
        self._clock = context.clock
        self._budget = budget

    async def cancel_request(self, cancel: Cancel, message: Message) -> None:
        """Ends the request; a cancel of an unknown one is remembered."""
        if self._is_meant(cancel.instance_id, "cancel"):
            tenant = tenant_of(message.subject, cancel.tenant)
            self._table.cancel_request(cancel.request_id, cancel.reason, cancel.attempt, tenant=tenant)

    async def resend_frames(self, resend: Resend, message: Message) -> ResendReply | None:
        """Returns the frames from the number on; `known` is false for an attempt that is unknown.

        Raises:
            Overloaded: The user has more frames sent again than it may.
        """
        if not self._is_meant(resend.instance_id, "resend"):
            return None
        table, reply = self._table, ResendReply(known=False)
        caller, now = caller_of(message.subject), self._clock()
        if caller is not None and (wait_s := self._budget.wait_s(caller.user, now)):
            self._metrics.refused_resends.inc()
            most = self._budget.bytes_per_s
            why = f"user {caller.user} has more frames sent again than {most} bytes a second"
            raise Overloaded(why, retry_after_s=wait_s)
        kept = []
        for key in table.keys_of(tenant_of(message.subject, resend.tenant), resend.request_id):
            reply = table.buffer.frames_from(key, resend.attempt, resend.from_seq, self._reply_bytes)
            if reply.known:
                break
            if (retained := table.buffer.kept(key)) is not None:
                kept.append(f"attempt {retained.attempt} from frame {retained.first_seq}")
        if not reply.known:
            log.info("frames that are asked for are not kept", request_id=resend.request_id,
                     attempt=resend.attempt, from_seq=resend.from_seq,
                     why=f"kept: {', '.join(kept) or 'nothing'}")  # fmt: skip
        if caller is not None:
            self._budget.spend_bytes(caller.user, len(codec.encode(reply)), now)
        return reply

    def _is_meant(self, instance_id: str, what: str) -> bool:
        if not instance_id or instance_id == self._instance_id:
            return True
        self._metrics.misdirected.labels(what).inc()
        return False
