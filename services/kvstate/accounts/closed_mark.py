"""Remembers in Redis that requests need a key, for a broker whose JetStream is taken away.

Without JetStream there are no records, and a stack that never had any is open. A stack whose rule was
`keys_required` has to stay closed. Records are in the stream alone; this mark only says which of both it is.
"""

import structlog

from services.kvstate.domain.keys import KEYS_REQUIRED
from services.kvstate.redis.link import RedisLink
from shared.errors import Unavailable

log = structlog.get_logger(__name__)


class RedisClosedMark:
    """Implements `ClosedMark` in the Redis of sessions.

    Args:
        link: To it.
    """

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def note(self, *, required: bool) -> None:
        """See `ClosedMark.note`."""
        try:
            await self._link.pipeline([("SET", KEYS_REQUIRED, 1) if required else ("DEL", KEYS_REQUIRED)])
        except Unavailable as error:
            log.debug("rule about keys not marked", error=error.message)  # the next reader's call does it

    async def stands(self) -> bool:
        """See `ClosedMark.stands`."""
        (found,) = await self._link.pipeline([("GET", KEYS_REQUIRED)])
        return found is not None

    async def close(self) -> None:
        """Closes the connections."""
        await self._link.close()
