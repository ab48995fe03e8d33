"""The small calls a caller makes about a request that runs: cancel it, send frames again.

On a tenant's subject the broker vouches for the caller: it reaches requests of that tenant and is answered in
its own inbox. On the others services speak, which are believed.
"""

from typing import TypeVar

from services.worker.domain.generation.resend_budget import ResendBudget
from services.worker.leader.error_replies import Replies
from services.worker.leader.request_table import RequestTable
from services.worker.metrics import WorkerMetrics
from shared import codec
from shared.bus.accounts import in_inbox
from shared.bus.api import Message
from shared.errors import InvalidRequest, Overloaded
from shared.messages import Cancel, ErrorReply, Resend, ResendReply
from shared.subjects import caller_of

M = TypeVar("M", Cancel, Resend)


class RequestCalls:
    """Handlers of the cancel and resend subjects.

    What names another instance is ignored: two leaders of one name read the same subjects, and only the one
    that accepted a request may speak of it.
    """

    def __init__(
        self,
        generations: RequestTable,
        replies: Replies,
        reply_bytes: int,
        *,
        instance_id: str,
        metrics: WorkerMetrics,
        budget: ResendBudget,
    ) -> None:
        self._generations = generations
        self._replies = replies
        self._reply_bytes = reply_bytes
        self._instance_id = instance_id
        self._metrics = metrics
        self._budget = budget

    async def on_cancel(self, message: Message) -> None:
        """Ends the request; one that is unknown may still be on its way."""
        found = await self._read(message, Cancel, "cancel")
        if found is not None:
            cancel, tenant = found
            self._generations.cancel(cancel.request_id, cancel.reason, cancel.attempt, tenant=tenant)

    async def on_resend(self, message: Message) -> None:
        """Answers with the frames from the number on, or with nothing when the attempt is unknown."""
        found = await self._read(message, Resend, "resend")
        if found is None:
            return
        resend, tenant = found
        generations, reply = self._generations, ResendReply(known=False)
        caller, now = caller_of(message.subject), generations.clock()
        if caller is not None and (wait_s := self._budget.wait_s(caller.user, now)):
            self._metrics.refused_resends.inc()
            why = f"user {caller.user} has more frames sent again than RYZ_OUTSIDE_RESEND_BYTES_S allows"
            await self._replies.send(
                message, ErrorReply(error=Overloaded.code, message=why, data={"retry_after_s": wait_s})
            )
            return
        for key in generations.keys_of(tenant, resend.request_id):
            reply = generations.outbox.resend(key, resend.attempt, resend.from_seq, self._reply_bytes)
            if reply.known:
                break
        if caller is not None:
            self._budget.spend(caller.user, len(codec.encode(reply)), now)
        await self._replies.send(message, reply)

    async def _read(self, message: Message, kind: type[M], what: str) -> tuple[M, str] | None:
        """The message and whose request it is about; None: it was refused."""
        caller = caller_of(message.subject)
        if message.reply and not in_inbox(message.reply, caller):
            self._replies.warn("answer wanted in another's inbox", message, reply=message.reply)
            self._replies.count_bad(message)
            return None
        try:
            decoded = codec.decode(message.data, kind)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return None
        if not self._is_meant(decoded.instance_id, what):
            return None
        return decoded, caller.tenant if caller is not None else decoded.tenant

    def _is_meant(self, instance_id: str, what: str) -> bool:
        if not instance_id or instance_id == self._instance_id:
            return True
        self._metrics.misdirected.labels(what).inc()
        return False
