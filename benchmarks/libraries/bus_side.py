"""Messages and requests over our bus and over nats-py's own client."""

import asyncio
from typing import Any

import nats

from benchmarks.libraries.alternation import alternate
from benchmarks.libraries.broker import broker
from shared.bus.api import Message
from shared.bus.nats import NatsBus

MESSAGES, BURST, DATA = 20_000, 32, bytes(200)


async def measure(rounds: int) -> None:
    """Prints what a message, and a request with its reply, cost."""
    with broker() as url:
        bus, client = await NatsBus.connect(url, name="bench"), await nats.connect(url)
        arrived = asyncio.Semaphore(0)

        async def heard(_: Message) -> None:
            arrived.release()

        async def heard_by_library(_: Any) -> None:
            arrived.release()

        async def echo(message: Message) -> None:
            await bus.publish(message.reply, message.data)

        async def echo_by_library(message: Any) -> None:
            await message.respond(message.data)

        await bus.subscribe("ours.in", heard)
        await bus.subscribe("ours.echo", echo)
        await client.subscribe("library.in", cb=heard_by_library)
        await client.subscribe("library.echo", cb=echo_by_library)
        await bus.flush()
        await client.flush()

        async def publish(send: Any, subject: str) -> int:
            for _ in range(MESSAGES // BURST):
                for _ in range(BURST):
                    await send(subject, DATA)
                for _ in range(BURST):
                    await arrived.acquire()
            return MESSAGES

        async def ask(request: Any) -> int:
            async def caller() -> None:
                for _ in range(100):
                    await request()

            await asyncio.gather(*(caller() for _ in range(BURST)))
            return 100 * BURST

        await alternate(
            "a message of 200 bytes, out and in",
            lambda: publish(bus.publish, "ours.in"),
            lambda: publish(client.publish, "library.in"),
            rounds=rounds,
        )
        await alternate(
            "a request and its reply, both ends",
            lambda: ask(lambda: bus.request("ours.echo", DATA, timeout_s=5)),
            lambda: ask(lambda: client.request("library.echo", DATA, timeout=5)),
            rounds=rounds,
        )
        await bus.close()
        await client.close()
