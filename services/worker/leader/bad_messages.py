"""Counts messages that cannot be used, and logs some of them, as senders can cause any number."""

import structlog

from services.worker.metrics import WorkerMetrics
from shared.bus.accounts import in_inbox
from shared.bus.api import Handler, Message
from shared.errors import RyzError
from shared.subjects import caller_of
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class BadMessages:
    """Counts and logs the bad messages of one leader."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._repeated = RepeatedLog(log)

    def report(self, message: Message, error: RyzError) -> None:
        """Counts and logs a message that could not be decoded."""
        self.count(message)
        self._repeated.warning("message not decoded", subject=message.subject, error=error.message)

    def count(self, message: Message) -> None:
        """Counts a message under what its subject is for."""
        what = 5 if caller_of(message.subject) is not None else 2  # ryz.v1.[tenant.<tenant>.<user>.]<what>
        self._metrics.bad_messages.labels(".".join(message.subject.split(".")[what : what + 1])).inc()

    def without_foreign_inboxes(self, handle: Handler) -> Handler:
        """Returns a handler that drops messages whose reply subject is in the inbox of another caller."""

        async def checked(message: Message) -> None:
            if message.reply and not in_inbox(message.reply, caller_of(message.subject)):
                self._repeated.warning(
                    "answer wanted in another's inbox", subject=message.subject, reply=message.reply
                )
                self.count(message)
                return
            waits = handle(message)
            if waits is not None:
                await waits

        return checked
