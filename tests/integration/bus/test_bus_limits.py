"""Rate-limited subscriptions after a restart of the broker: restored, with their limit."""

import asyncio
from pathlib import Path

import pytest

from shared.bus import Message
from shared.bus.nats import NatsBus
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S, until


@pytest.mark.parametrize("spent", [False, True])
async def test_a_limited_subscription_outlives_the_broker(tmp_path: Path, spent: bool) -> None:
    broker = NatsServer(tmp_path)
    broker.start()
    got: list[bytes] = []

    async def keep(message: Message) -> None:
        got.append(message.data)

    bus, sender = [await NatsBus.connect(broker.url, name=name) for name in ("limited", "sender")]
    try:
        await bus.subscribe("calls", keep, max_per_s=50)
        for number in range(500 if spent else 10):
            await sender.publish("calls", b"%d" % number)
        await until(lambda: len(got) >= (50 if spent else 10))
        broker.stop()
        await until(lambda: not bus.connected and not sender.connected)
        broker.start()
        await until(lambda: bus.connected and sender.connected)
        for round_number in range(3):  # messages must arrive in every round
            before = len(got)

            async def flood(word: bytes = b"again %d" % round_number) -> None:
                while word not in got:
                    if sender.connected:
                        await sender.publish("calls", word)
                    await asyncio.sleep(0.05)
                for _ in range(2_000):
                    await sender.publish("calls", word)
                await sender.flush()

            await asyncio.wait_for(flood(), PATIENCE_S)
            await asyncio.sleep(1.2)
            assert len(got) - before < 400
    finally:
        await bus.close()
        await sender.close()
        broker.stop()
