"""A leader that breaks each request: `python -m tests.kits.alerts.breaking_leader URL MODEL`.

SIGTERM ends it; it tells routers so.
"""

import asyncio
import signal
import sys
from typing import Any

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.messages import (
    Accepted,
    AnyFrame,
    Failed,
    FrameBatch,
    GenerateRequest,
    Heartbeat,
    Load,
    ModelCard,
    Work,
)

GROUP, INSTANCE = "breaks", "breaks-1"
BEAT_MS = 25


async def main(url: str, model: str) -> None:
    """Sends heartbeats and breaks requests until the process is ended."""
    bus = await NatsBus.connect(url, name=f"worker/{INSTANCE}")
    broken = seq = 0

    async def take(message: Message) -> None:
        nonlocal broken
        work = decode(message.data, Work)
        request = decode(work.request, GenerateRequest)
        names: dict[str, Any] = {"request_id": request.request_id, "attempt": request.attempt}
        frames: list[AnyFrame] = [
            Accepted(**names, group=GROUP, instance_id=INSTANCE),
            Failed(**names, seq=1, code="group_lost", message="it breaks", resumable=True),
        ]
        await bus.publish(work.reply_to, encode(FrameBatch(frames=frames, group=GROUP)))
        broken += 1

    await bus.subscribe(subjects.work(GROUP), take)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    over = False
    while not over:
        over = ended.is_set()  # the last heartbeat says so
        heartbeat = Heartbeat(
            group=GROUP,
            instance_id=INSTANCE,
            seq=seq,
            interval_ms=BEAT_MS,
            state="stopped" if over else "ready",
            model=ModelCard(name=model, context_length=1024),
            load=Load(max_running=64, max_waiting=64),
            accepted_total=broken,
            broken_total=broken,
        )
        seq += 1
        await bus.publish(subjects.heartbeat(GROUP), encode(heartbeat))
        await asyncio.sleep(BEAT_MS / 1000)
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
