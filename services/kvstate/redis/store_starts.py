"""Notices each start of the session store's Redis, and counts what is there after it.

It counts also when this service starts, beside a Redis that may have run for long.

Redis starts even if it refuses commands of its own append-only log, and then lacks what they stored. It says
so in its own log only; `unexpected_error_replies` of INFO counts these commands.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from services.kvstate.domain import keys
from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.lua_files import read_lua
from shared.errors import Unavailable

REMEDY = (
    "Its user `default`, as whom Redis reads the log, needs all rights and stays off: `user default off ~* "
    "&* +@all` (deploy/redis.acl). Mend the ACL and start Redis again before its log is rewritten; see "
    "docs/operations.md, section `What lasts`"
)
_CENSUS = (
    f"local SESSION, RESPONSE = '{keys.SESSION_PREFIX}', '{keys.RESPONSE_PREFIX}'\n"
    f"local GONE = '{keys.GONE_PREFIX}'\n" + read_lua(__package__, "census")
)
_STEP = 1000
_PAUSE_S = 0.002  # between steps: turns come first
log = structlog.get_logger(__name__)


class StoreContents(msgspec.Struct, frozen=True):
    """What the session store had when this service had started, or after a later start of Redis.

    Attributes:
        pins: Sessions with a pin.
        responses: Records of the Responses API.
        tombstones: Deletions that are remembered.
    """

    sessions: int = 0
    pins: int = 0
    responses: int = 0
    tombstones: int = 0


class StoreStarts:
    """Follows the starts of one Redis.

    Args:
        link: Connections of its own, so that counting delays no call.

    Attributes:
        contents: What it had when it was counted last; None before the first count.
        refused_commands: Commands of its log that it refused at its last start.
    """

    def __init__(self, link: RedisLink) -> None:
        self.contents: StoreContents | None = None
        self.refused_commands = 0
        self._link = link
        self._run_id = ""  # of the Redis process that was reached last
        self._counted_id = ""  # of the one whose contents were counted

    async def check(self) -> bool:
        """Checks whether Redis was started since the last call, and which commands of its log it refused.

        Returns:
            Whether this is the first contact and Redis refused some: then this service must not go on.

        Raises:
            Unavailable: Redis does not answer.
        """
        server, stats = await self._link.pipeline([("INFO", "server"), ("INFO", "stats")])
        is_first, run_id = not self._run_id, str(server["run_id"])
        if run_id == self._run_id:
            return False
        self._run_id, self.refused_commands = run_id, int(stats.get("unexpected_error_replies", 0))
        if self.refused_commands:
            log.error("the session store refused commands of its log", refused=self.refused_commands,
                      remedy=REMEDY)  # fmt: skip
        return is_first and self.refused_commands > 0

    async def watch(self, every_s: float, on_incomplete: Callable[[], object]) -> None:
        """Follows Redis until it is cancelled, and counts its contents at first and after each of its starts.

        Args:
            every_s: Interval of checks, in seconds.
            on_incomplete: Called if `check` says that this service must not go on.
        """
        while True:
            try:
                if await self.check():
                    on_incomplete()
                if self._counted_id != self._run_id:
                    await self._count(self._run_id)
            except Unavailable as error:
                log.debug("session store away", error=error.message)
            await asyncio.sleep(every_s)

    async def close(self) -> None:
        """Closes the connections."""
        await self._link.close()

    async def _count(self, run_id: str) -> None:
        (pins,) = await self._link.pipeline([("ZCARD", keys.PINS)])
        cursor, totals = b"0", [0, 0, 0]
        while True:
            ((cursor, *counts),) = await self._link.run_script(_CENSUS, [((), (cursor, _STEP))])
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            if not int(cursor):
                break
            await asyncio.sleep(_PAUSE_S)
        sessions, responses, tombstones = totals
        self.contents = StoreContents(sessions, int(pins), responses, tombstones)
        self._counted_id = run_id
        log.info("session store read", sessions=sessions, pins=int(pins), responses=responses,
                 tombstones=tombstones, refused=self.refused_commands)  # fmt: skip
