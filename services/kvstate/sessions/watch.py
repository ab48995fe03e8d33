"""Probes the session store, so that its circuit opens and closes without the help of a caller."""

import asyncio

import structlog

from services.kvstate.sessions.redis_sessions import RedisSessionStore
from shared.errors import Unavailable

log = structlog.get_logger(__name__)


async def probe_store(store: RedisSessionStore) -> None:
    """Probes the store once, even while its circuit is open."""
    try:
        await store.can_write()
        await store.tally()
    except Unavailable as error:
        log.debug("session store away", error=error.message)  # the link has logged the change


async def watch_store(store: RedisSessionStore, every_s: float, open_every_s: float) -> None:
    """Probes until it is cancelled: each `every_s`, or each `open_every_s` while the circuit is open."""
    task = asyncio.current_task()
    while not (task and task.cancelling()):  # a cancellation may get lost in a call that just ended
        await probe_store(store)
        await asyncio.sleep(open_every_s if store.is_away else every_s)
