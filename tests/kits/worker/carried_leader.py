"""A leader process that only sends heartbeats, and whose event loop a test can hold up.

`python -m tests.kits.worker.carried_leader URL GROUP`. It reads a line from its standard input and does that:
`hold SECONDS` keeps the interpreter's lock for about that long, `wait SECONDS` blocks the event loop without
it, `stop` ends it cleanly.
"""

import asyncio
import sys
import time

from services.worker.leader.heartbeats.heartbeats import Heartbeats
from services.worker.leader.heartbeats.process_carrier import ProcessCarrier
from shared.bus.nats import NatsBus
from shared.messages import Heartbeat, Load, ModelCard
from tests.kits.worker.options import heartbeat_process

INTERVAL_S, STALE_S = 0.025, 1.0


def hold_lock(seconds: float) -> None:
    """Sums up numbers in one call, in which no other Python thread runs."""
    numbers = range(2_000_000)
    began = time.perf_counter()
    sum(numbers)
    sum(range(int(len(numbers) * seconds / (time.perf_counter() - began))))


async def main(url: str, group: str) -> None:
    """Sends heartbeats until the input ends or says `stop`."""
    bus = await NatsBus.connect(url, name=f"worker/{group}")

    def describe() -> Heartbeat:
        return Heartbeat(
            group=group, instance_id=group, seq=0, interval_ms=round(1000 * INTERVAL_S), state="ready",
            model=ModelCard(name="m", context_length=8), load=Load(max_running=8, max_waiting=8),
        )  # fmt: skip

    options = heartbeat_process(
        nats_url=url, connection=f"worker/{group}/heartbeats", instance_id=group, interval_s=INTERVAL_S,
        stale_s=STALE_S,
    )  # fmt: skip
    carrier = ProcessCarrier(bus, options)
    heartbeats = Heartbeats(carrier, INTERVAL_S, STALE_S, describe)
    await heartbeats.start()
    describing = asyncio.create_task(heartbeats.describe_forever())
    print(carrier.pid, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while (line := (await reader.readline()).decode().split()) and line[0] != "stop":
        (hold_lock if line[0] == "hold" else time.sleep)(float(line[1]))
        print("done", flush=True)
    describing.cancel()
    await heartbeats.stop()
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
