"""Tells routers where sessions are, as turns end.

Turns are told when they end, not when they are stored: late news would hide where a session went since.
"""

import asyncio
from contextlib import suppress

from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.messages import SessionRecord, SessionTurn, SessionTurns

MAX_TURNS = 256  # in one message
TELL_S = 0.01  # between two messages about turns that ended; each costs every router a wake-up


class TurnAnnouncer:
    """Publishes `SessionTurns`; turns that end within a short time share a message."""

    def __init__(self, group: str, bus: Bus) -> None:
        self._group = group
        self._bus = bus
        self._untold: list[SessionRecord] = []
        self._telling: asyncio.Task[None] | None = None

    def announce_soon(self, record: SessionRecord) -> None:
        """Announces a turn at once after a quiet moment, else together with others; in their order."""
        self._untold.append(record)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._announce_untold())

    async def announce(self, records: list[SessionRecord]) -> None:
        """Announces the newest turns of sessions. Raises `Unavailable` without a broker."""
        turns = [
            SessionTurn(
                tenant=record.tenant,
                session_id=record.session_id,
                group=self._group,
                num_tokens=len(record.token_ids) // 4,
            )
            for record in records
        ]
        await self._bus.publish(subjects.SESSION_TURNS, codec.encode(SessionTurns(turns=turns)))

    async def _announce_untold(self) -> None:
        while self._untold:
            turns, self._untold = self._untold[:MAX_TURNS], self._untold[MAX_TURNS:]
            with suppress(Unavailable):  # the next turn of each session announces it
                await self.announce(turns)
            await asyncio.sleep(TELL_S)
