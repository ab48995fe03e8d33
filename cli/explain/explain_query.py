"""Asks all services what they recorded of a request."""

import asyncio
import time

from cli.explain.course import HeardExplanation
from cli.stack.state import StateDir
from cli.status.status_query import GATHER_S, connect_broker
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import ExplainQuery, Explanation


async def query_explanations(nats_url: str, place: StateDir, request_id: str) -> list[HeardExplanation]:
    """Asks and waits `GATHER_S` for answers. Raises `RyzError` without a broker."""
    bus = await connect_broker(nats_url, place, "ryz explain")
    heard: list[HeardExplanation] = []

    async def collect(message: Message) -> None:
        if not message.no_responders:
            heard_us = time.time_ns() // 1000
            heard.append(HeardExplanation(decode(message.data, Explanation), sent_us, heard_us))

    try:
        inbox = bus.new_inbox()
        await bus.subscribe(inbox, collect, max_pending=4096)
        sent_us = time.time_ns() // 1000
        await bus.publish(subjects.EXPLAIN, encode(ExplainQuery(request_id=request_id)), reply=inbox)
        await asyncio.sleep(GATHER_S)  # the number of answers is not known
    finally:
        await bus.close()
    return heard
