"""A leader process that sends heartbeats and accepts requests; tests can kill, freeze and disconnect it.

`python -m tests.kits.worker.beating_leader URL GROUP INSTANCE MODEL [HEARTBEATS-URL]`. It has two connections
with the names of `Service.connect_bus`, as a real leader has. It accepts requests and never ends them.
"""

import asyncio
import sys
from contextlib import suppress

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.errors import Unavailable
from shared.messages import Accepted, FrameBatch, GenerateRequest, Heartbeat, Load, ModelCard, Work

BEAT_MS = 25


async def main(url: str, group: str, instance_id: str, model: str, beats_url: str = "") -> None:
    """Sends heartbeats until the process is ended."""
    bus = await NatsBus.connect(url, name=f"worker/{instance_id}")
    beats = await NatsBus.connect(beats_url or url, name=f"worker/{instance_id}/heartbeats")
    taken = 0

    async def take(message: Message) -> None:
        nonlocal taken
        taken += 1
        work = decode(message.data, Work)
        request = decode(work.request, GenerateRequest)
        frame = Accepted(
            request_id=request.request_id, attempt=request.attempt, group=group, instance_id=instance_id
        )
        await bus.publish(work.reply_to, encode(FrameBatch(frames=[frame])))

    await bus.subscribe(subjects.work(group), take)
    seq = 0
    while True:
        heartbeat = Heartbeat(
            group=group,
            instance_id=instance_id,
            seq=seq,
            interval_ms=BEAT_MS,
            state="ready",
            model=ModelCard(name=model, context_length=1024),
            load=Load(max_running=64, max_waiting=64),
            accepted_total=taken,
        )
        seq += 1
        with suppress(Unavailable):  # the connection will be restored
            await beats.publish(subjects.heartbeat(group), encode(heartbeat))
        await asyncio.sleep(BEAT_MS / 1000)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
