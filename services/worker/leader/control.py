"""The small calls a caller makes about a request that runs: cancel it, send frames again."""

from services.worker.leader.generations import Generations
from services.worker.leader.replies import Replies
from services.worker.metrics import Metrics
from shared import codec
from shared.bus.api import Message
from shared.errors import InvalidRequest
from shared.messages import Cancel, Resend


class Control:
    """Handlers of the cancel and resend subjects.

    What names another instance is ignored: two leaders of one name read the same subjects, and only the one
    that accepted a request may speak of it.
    """

    def __init__(
        self,
        generations: Generations,
        replies: Replies,
        reply_bytes: int,
        *,
        instance_id: str,
        metrics: Metrics,
    ) -> None:
        self._generations = generations
        self._replies = replies
        self._reply_bytes = reply_bytes
        self._instance_id = instance_id
        self._metrics = metrics

    async def on_cancel(self, message: Message) -> None:
        """Ends the request; one that is unknown may still be on its way."""
        try:
            cancel = codec.decode(message.data, Cancel)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        if self._is_meant(cancel.instance_id, "cancel"):
            self._generations.cancel(cancel.request_id, cancel.reason, cancel.attempt)

    async def on_resend(self, message: Message) -> None:
        """Answers with the frames from the number on, or with nothing when the attempt is unknown."""
        try:
            resend = codec.decode(message.data, Resend)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        if not self._is_meant(resend.instance_id, "resend"):
            return
        reply = self._generations.outbox.resend(
            resend.request_id, resend.attempt, resend.from_seq, self._reply_bytes
        )
        await self._replies.send(message, reply)

    def _is_meant(self, instance_id: str, what: str) -> bool:
        if not instance_id or instance_id == self._instance_id:
            return True
        self._metrics.misdirected.labels(what).inc()
        return False
