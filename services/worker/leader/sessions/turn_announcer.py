"""Announces to routers where sessions are, as turns end.

Turns are announced when they end, not when they are stored: a late message would hide where a session went
since.
"""

import asyncio
from contextlib import suppress

from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.messages import SessionRecord, SessionTurn, SessionTurns

MAX_TURNS = 256  # in one message
ANNOUNCE_S = 0.01  # between two messages about turns that ended; each costs every router a wake-up


class TurnAnnouncer:
    """Publishes `SessionTurns`; turns that end within a short time share a message."""

    def __init__(self, group: str, bus: Bus) -> None:
        self._group = group
        self._bus = bus
        self._pending: list[SessionRecord] = []
        self._announcing: asyncio.Task[None] | None = None

    def announce_soon(self, record: SessionRecord) -> None:
        """Announces a turn at once after a quiet moment, else together with others; in their order."""
        self._pending.append(record)
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce_pending())

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

    async def _announce_pending(self) -> None:
        while self._pending:
            turns, self._pending = self._pending[:MAX_TURNS], self._pending[MAX_TURNS:]
            with suppress(Unavailable):  # the next turn of each session announces it
                await self.announce(turns)
            await asyncio.sleep(ANNOUNCE_S)
