"""Asks the leaders about their ranks while a live view is open; heartbeats tell of groups only."""

from typing import Any

from services.gateway.pages.cluster_state import ClusterState
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import decode, encode
from shared.errors import InvalidRequest, Unavailable
from shared.messages import ServiceStatus, StatusQuery

ASK_S = 1.0
MAX_RANKS = 64  # of a group, that are shown
_ANSWERS_PER_S = 512


class RankWatch:
    """Asks all services for their status, and notes the ranks of those that are leaders.

    Args:
        bus: The connection.
        state: Takes what is heard.
    """

    def __init__(self, bus: Bus, state: ClusterState) -> None:
        self._bus = bus
        self._state = state
        self._inbox = bus.new_inbox()
        self._asked_s = float("-inf")

    async def subscribe(self) -> Subscription:
        """Hears the answers from now on."""
        self._asked_s = float("-inf")
        return await self._bus.subscribe(
            f"{self._inbox}.ranks", self._take_answer, max_per_s=_ANSWERS_PER_S, sampled=True
        )

    async def ask_when_due(self, now_s: float) -> None:
        """Asks, unless that was done less than `ASK_S` ago."""
        if now_s - self._asked_s < ASK_S:
            return
        self._asked_s = now_s
        try:
            await self._bus.publish(subjects.STATUS, encode(StatusQuery()), reply=f"{self._inbox}.ranks")
        except Unavailable:
            return  # the broker is away; heartbeats are missing, too

    async def _take_answer(self, message: Message) -> None:
        try:
            status = decode(message.data, ServiceStatus)
        except InvalidRequest:
            return  # also the broker's word that no service listens
        group, ranks = status.detail.get("group"), status.detail.get("ranks")
        if isinstance(group, str) and isinstance(ranks, list):
            shown = [_shown(row) for row in ranks[:MAX_RANKS] if isinstance(row, dict)]
            self._state.take_ranks(group, status.instance_id, shown)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """What every caller with a key may know of a rank: neither its host nor its pid."""
    return {
        "rank": _number(row.get("rank")),
        "state": str(row.get("state", ""))[:16],
        "steps": _number(row.get("steps")),
        "memory_bytes": _number(row.get("memory_bytes")),
        "kernels": str(row.get("kernels", ""))[:32],
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
