"""Undecodable messages on every subject of a running stack are answered if possible, and no service ends."""

import asyncio
import random
from contextlib import AsyncExitStack

import httpx

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import PATIENCE_S

OUTSIDE = subjects.OutsideService("outside", "outside")
SENDERS = {
    subjects.generate("demo", OUTSIDE): "outside",
    subjects.generate("demo"): "gateway",
    subjects.generate("no such model"): "gateway",
    subjects.work("g0"): "router",
    subjects.cancel("g0", OUTSIDE): "outside",
    subjects.cancel_all(OUTSIDE): "outside",
    subjects.resend("g0", OUTSIDE): "outside",
    subjects.cancel("g0"): "gateway",
    subjects.CANCEL_ALL: "gateway",
    subjects.resend("g0"): "gateway",
    subjects.heartbeat("g0"): "worker",
    subjects.MODELS: "gateway",
    subjects.STATUS: "cli",
    subjects.EXPLAIN: "cli",
    subjects.PROFILE: "cli",
    subjects.SESSION_GET: "worker",
    subjects.SESSION_COMMIT: "worker",
    subjects.SESSION_LIST: "gateway",
    subjects.SESSION_DELETE: "gateway",
}
SUBJECTS = list(SENDERS)
ANSWERED = {
    subjects.generate("demo", OUTSIDE),
    subjects.generate("demo"),
    subjects.generate("no such model"),
    subjects.work("g0"),
    subjects.resend("g0", OUTSIDE),
    subjects.resend("g0"),
    subjects.SESSION_GET,
    subjects.SESSION_COMMIT,
    subjects.SESSION_LIST,
    subjects.SESSION_DELETE,
}


def garbage() -> list[bytes]:
    rng = random.Random(7)
    return [
        b"",
        b"\xc1",
        b"\x81",
        b"\x93\x01\x02\x03",
        b"\x81\xa5model\xa4demo",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 2000,
        b'{"model": "demo"}',
        *(rng.randbytes(rng.randint(1, 400)) for _ in range(25)),
    ]


async def test_garbage_is_answered_and_nothing_dies(null_stack: Stack) -> None:
    restarts = {one.name: one.restarts for one in null_stack.state.services}
    stack = AsyncExitStack()
    buses = {}
    for user in {"gateway", *SENDERS.values()}:
        buses[user] = await NatsBus.connect(null_stack.state.broker(user), name="garbage")
        stack.push_async_callback(buses[user].close)
    answers: dict[str, int] = {}
    complete = asyncio.Event()

    async def count(message: Message) -> None:
        inbox = message.subject.rsplit(".", 1)[1]
        answers[inbox] = answers.get(inbox, 0) + 1
        if all(answers.get(str(SUBJECTS.index(subject)), 0) >= len(garbage()) for subject in ANSWERED):
            complete.set()

    try:
        inboxes = {user: bus.new_inbox() for user, bus in buses.items()}
        for user, bus in buses.items():
            await bus.subscribe(f"{inboxes[user]}.*", count)
        for inbox, subject in enumerate(SUBJECTS):
            sender = buses[SENDERS[subject]]
            for data in garbage():
                await sender.publish(subject, data, reply=f"{inboxes[SENDERS[subject]]}.{inbox}")
                await sender.publish(subject, data)
        for sender in buses.values():
            await sender.flush()
        async with asyncio.timeout(PATIENCE_S):
            await complete.wait()
    finally:
        await stack.aclose()
    async with httpx.AsyncClient(base_url=null_stack.state.url, timeout=10) as client:
        assert (await client.get("/ready")).status_code == 200
        body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "still there?"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert {one.name: one.restarts for one in null_stack.state.services} == restarts
