"""The small calls a caller makes about a request that runs: cancel it, send frames again."""

from services.worker.leader.generations import Generations
from services.worker.leader.replies import Replies
from shared import codec
from shared.bus.api import Message
from shared.errors import InvalidRequest
from shared.messages import Cancel, Resend


class Control:
    """Handlers of the cancel and resend subjects."""

    def __init__(self, generations: Generations, replies: Replies, reply_bytes: int) -> None:
        self._generations = generations
        self._replies = replies
        self._reply_bytes = reply_bytes

    async def on_cancel(self, message: Message) -> None:
        """Ends the request; one that is unknown may still be on its way."""
        try:
            cancel = codec.decode(message.data, Cancel)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        self._generations.cancel(cancel.request_id, cancel.reason, cancel.attempt)

    async def on_resend(self, message: Message) -> None:
        """Answers with the frames from the number on, or with nothing when the attempt is unknown."""
        try:
            resend = codec.decode(message.data, Resend)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        reply = self._generations.outbox.resend(
            resend.request_id, resend.attempt, resend.from_seq, self._reply_bytes
        )
        await self._replies.send(message, reply)
