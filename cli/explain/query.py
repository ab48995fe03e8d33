"""Asks all services what they recorded of a request."""

import time

from cli.explain.course import HeardExplanation
from cli.stack.state import StateDir
from cli.status.gathering import Gathering
from cli.status.query import connect_broker
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import ExplainQuery, Explanation


async def query_explanations(nats_url: str, state_dir: StateDir, request_id: str) -> list[HeardExplanation]:
    """Asks and waits for answers. Raises `RyzError` without a broker."""
    bus = await connect_broker(nats_url, state_dir, "ryz explain")
    heard: list[HeardExplanation] = []

    async def collect(message: Message) -> None:
        if message.no_responders:
            answers.note_no_responders()
            return
        heard_us = time.time_ns() // 1000
        heard.append(HeardExplanation(decode(message.data, Explanation), sent_us, heard_us))
        answers.note_answer()

    try:
        inbox = bus.new_inbox()
        await bus.subscribe(inbox, collect, max_pending=4096)
        answers, sent_us = Gathering(), time.time_ns() // 1000
        await bus.publish(subjects.EXPLAIN, encode(ExplainQuery(request_id=request_id)), reply=inbox)
        await answers.wait_for_answers()
    finally:
        await bus.close()
    return heard
