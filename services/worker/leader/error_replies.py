"""Answers to messages that make no sense: counted, answered where there is somebody to answer, survived."""

import structlog

from services.worker.metrics import WorkerMetrics
from shared import codec
from shared.bus.api import Bus, Message
from shared.errors import RyzError, Unavailable
from shared.messages import ErrorReply, Wire
from shared.subjects import caller_of
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class Replies:
    """Sends replies of request/reply calls; a broker that is away makes them void."""

    def __init__(self, bus: Bus, metrics: WorkerMetrics) -> None:
        self._bus = bus
        self._metrics = metrics
        self._repeated = RepeatedLog(log)

    async def undecodable(self, message: Message, error: RyzError) -> None:
        """Counts a message that could not be decoded, and tells its sender."""
        self.count_bad(message)
        self.warn("message not decoded", message, error=error.message)
        await self.send(message, ErrorReply(error=error.code, message=error.message, data=error.data))

    def warn(self, event: str, message: Message, **fields: str) -> None:
        """Logs what a sender can cause as often as it likes, now and then."""
        self._repeated.warning(event, subject=message.subject, **fields)

    def count_bad(self, message: Message) -> None:
        """Counts a message that is of no use."""
        what = 5 if caller_of(message.subject) is not None else 2  # ryz.v1.[tenant.<tenant>.<user>.]<what>
        self._metrics.bad_messages.labels(".".join(message.subject.split(".")[what : what + 1])).inc()

    async def send(self, message: Message, answer: Wire) -> None:
        """Answers, if the sender waits for an answer."""
        if not message.reply:
            return
        try:
            await self._bus.publish(message.reply, codec.encode(answer))
        except Unavailable:
            log.info("reply not sent, the broker is away", subject=message.subject)
