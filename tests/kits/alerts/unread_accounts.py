"""A stream of tenants and keys that the KV state service cannot read, while all else goes on.

The stream gets a message under a subject that no record has, as from another writer: what is read of records
is then less than the stream has, and the service answers no call about them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared import subjects
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import stream_config
from shared.bus.nats import NatsBus
from shared.codec import encode
from shared.messages import AccountChanged
from shared.streams import ACCOUNTS_STREAM, account_record
from tests.kits.alerts.watched_stack import WatchedStack


@contextmanager
def unread_accounts(world: WatchedStack) -> Iterator[None]:
    """Puts the message into the stream, and takes it out again."""
    url = world.stack.state.nats_urls["kvstate"]
    asyncio.run(_on(url, _spoil))
    try:
        yield
    finally:
        asyncio.run(_on(url, _mend))


async def _on(url: str, work: Callable[[JetStream], Awaitable[None]]) -> None:
    bus = await NatsBus.connect(url, name="unread accounts")
    try:
        await work(JetStream(bus))
    finally:
        await bus.close()


def _config(*more: str) -> dict[str, Any]:
    return stream_config(ACCOUNTS_STREAM, [account_record("*"), *more], max_msgs_per_subject=1)


async def _spoil(jetstream: JetStream) -> None:
    await jetstream.ensure_stream(_config(subjects.ACCOUNT_CHANGED))
    # it says nothing new to those who hear it
    await jetstream.put(subjects.ACCOUNT_CHANGED, encode(AccountChanged(before=0, version=0)))


async def _mend(jetstream: JetStream) -> None:
    await jetstream.purge(ACCOUNTS_STREAM, subjects.ACCOUNT_CHANGED)
    await jetstream.ensure_stream(_config())
