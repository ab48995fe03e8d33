"""Opens the ledger of a process."""

import asyncio
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from shared.bus import Bus
from shared.usage.ledger import UsageLedger
from shared.usage.metrics import LedgerCollector


async def open_ledger(
    bus: Bus, registry: CollectorRegistry, prefix: str, stack: AsyncExitStack
) -> UsageLedger:
    """A ledger that sends what is put into it until the stack closes.

    Args:
        bus: The broker with the stream.
        registry: For its metrics, whose names begin with the prefix.
        prefix: Of the service, such as `ryz_gateway_`.
        stack: Closes it.
    """
    ledger = UsageLedger(bus)
    await ledger.start()
    stack.push_async_callback(ledger.close)
    sending = asyncio.create_task(ledger.send_forever())
    stack.callback(sending.cancel)
    registry.register(LedgerCollector(prefix, ledger))
    return ledger
