"""Removes KV blocks from the session store, where they were kept before blocks had a store of their own.

They take memory of the sessions, and nothing else removes their facts.
"""

import asyncio

import structlog

from services.kvstate.domain.keys import PREFIX
from services.kvstate.redis.link import RedisLink
from shared.errors import Unavailable

_PATTERN = f"{PREFIX}:kv:*"
_STEP = 512
_PAUSE_S = 0.005  # between steps: turns come first
_RETRY_S = 5.0
log = structlog.get_logger(__name__)


async def remove_leftovers(sessions: RedisLink, blocks: RedisLink) -> int:
    """Deletes the keys of blocks in `sessions`, unless `blocks` is the same server.

    It waits for both servers without a limit: nothing may be deleted before it is known that they differ.

    Returns:
        How many keys were deleted.
    """
    while True:
        try:
            if await _server(sessions) == await _server(blocks):
                return 0
            return await _remove(sessions)
        except Unavailable as error:
            log.debug("leftovers wait", error=error.message)
            await asyncio.sleep(_RETRY_S)


async def _server(link: RedisLink) -> str:
    """Returns the id of the Redis process at the other end."""
    (info,) = await link.pipeline([("INFO", "server")])
    return str(info["run_id"])


async def _remove(link: RedisLink) -> int:
    cursor, removed = 0, 0
    while True:
        ((cursor, found),) = await link.pipeline([("SCAN", cursor, "MATCH", _PATTERN, "COUNT", _STEP)])
        if found:
            await link.pipeline([("UNLINK", *found)])
            removed += len(found)
        if not int(cursor):
            if removed:
                log.info("KV blocks of an earlier version were removed from the session store", keys=removed)
            return removed
        await asyncio.sleep(_PAUSE_S)
