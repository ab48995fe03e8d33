"""Answers `ExplainQuery`: when a request passed the parts of this service."""

import time

import structlog

from shared import subjects
from shared.bus import Bus, Message
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import ExplainQuery, Explanation
from shared.messages.timelines import MAX_TIMELINES
from shared.telemetry.timelines import Timelines

log = structlog.get_logger(__name__)


async def answer_explain(bus: Bus, service: str, instance_id: str, timelines: Timelines) -> None:
    """Answers on this bus until it is closed; of too many records the newest are sent."""

    async def explain(message: Message) -> None:
        try:
            wanted = decode(message.data, ExplainQuery).request_id
        except InvalidRequest as error:
            log.warning("a query that cannot be read", error=error.message)
            return
        found = timelines.find(wanted, MAX_TIMELINES)
        while found and message.reply:
            now_us = time.time_ns() // 1000
            explanation = Explanation(
                service=service, instance_id=instance_id, now_us=now_us, timelines=found
            )
            data = encode(explanation)
            if len(data) <= bus.max_payload:
                await bus.publish(message.reply, data)
                return
            found = found[len(found) // 2 + 1 :]  # the newest

    await bus.subscribe(subjects.EXPLAIN, explain, max_pending=256)
