"""What became of a turn that says the same and was given to another group before.

A caller whose connection broke repeats its turn, and a router may give the repeat to another group, as when
the first one is busy. That group's leader asks the other one: it waits while the same turn still runs
there, and learns whether its answer was delivered.
"""

import asyncio
import hashlib

import msgspec

from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.turn_lines import TurnLines
from shared import subjects
from shared.bus.api import Bus
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.flow.backoff import Backoff
from shared.messages import ChatMessage, GenerateRequest, SessionFound, SessionGet, SessionRecord, TurnState

PAUSE_S = (0.02, 0.25)  # first and longest between two questions for a turn that runs elsewhere
_NOTHING = TurnState()
_PATIENCE = 3  # times the store's limit; a leader that is gone is noticed at once


def digest_of(messages: list[ChatMessage]) -> str:
    """Names what a turn says."""
    return hashlib.blake2b(msgspec.msgpack.encode(messages), digest_size=16).hexdigest()


class PeerTurns:
    """Asks other leaders about turns, and answers them.

    Args:
        group: The own one.
        deliveries: Know which answers of this group did not reach their callers.
        timeout_s: For one question.
    """

    def __init__(
        self, bus: Bus, group: str, lines: TurnLines, deliveries: DeliveryTracker, timeout_s: float
    ) -> None:
        self._bus = bus
        self._group = group
        self._lines = lines
        self._deliveries = deliveries
        self._timeout_s = timeout_s

    def answer(self, asked: SessionGet) -> TurnState:
        """Returns what another leader asks for."""
        runs = self._lines.running(asked.tenant, asked.session_id)
        same = runs is not None and runs.confirms and digest_of(runs.messages or []) == asked.said
        return TurnState(runs=same, undelivered=self._deliveries.undelivered(asked.tenant, asked.session_id))

    async def wait_for_same(self, request: GenerateRequest, last_group: str) -> None:
        """Waits while that group runs a turn of the session that says the same.

        Turns that wait do not count as running, so two leaders never wait for each other.
        """
        assert request.session is not None
        loop, pauses = asyncio.get_running_loop(), Backoff(*PAUSE_S)
        until = loop.time() + self._lines.wait_s
        said = digest_of(request.messages or [])
        while loop.time() < until:
            state = await self._ask(last_group, request.tenant, request.session.session_id, said)
            if not state.runs:
                break
            await asyncio.sleep(pauses.next_s())

    async def was_lost(self, record: SessionRecord) -> bool:
        """Returns whether the answer of a session's last turn was lost, in whichever group it ran.

        A gateway has `confirm_s` to confirm the delivery.
        """
        tenant, session_id, last = record.tenant, record.session_id, record.last_request
        if record.last_group in {"", self._group}:
            return await self._deliveries.was_lost(tenant, session_id, last)
        for pause_s in (self._deliveries.confirm_s, 0.0):
            state = await self._ask(record.last_group, tenant, session_id, digest_of([]))
            if state.undelivered != last:
                return False
            await asyncio.sleep(pause_s)
        return True

    async def _ask(self, group: str, tenant: str, session_id: str, said: str) -> TurnState:
        query = SessionGet(tenant=tenant, session_id=session_id, said=said)
        try:
            return await call(self._bus, subjects.peer(group), query, TurnState, timeout_s=self._timeout_s)
        except RyzError:  # it is gone, and so is its turn
            return _NOTHING


class PeerSessionClient:
    """Asks the leader of one group.

    Args:
        timeout_s: Limit of the store for the same question.
    """

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = _PATIENCE * timeout_s

    async def __call__(self, group: str, tenant: str, session_id: str) -> SessionRecord:
        """Returns the record as that leader knows it.

        Raises:
            SessionNotFound: The leader does not know the session.
            Unavailable: It is gone, or does not answer.
        """
        query, timeout_s = SessionGet(tenant=tenant, session_id=session_id), self._timeout_s
        return (await call(self._bus, subjects.peer(group), query, SessionFound, timeout_s=timeout_s)).record
