"""The one source of all viewers of the live view: hears the bus and makes a snapshot a few times a second.

Heartbeats, turns of sessions and ranks are heard only while there are viewers; losses are heard always,
since they are few and what happened before a page was opened matters. A viewer that is slow misses
snapshots, and the next one tells it everything.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from services.gateway.pages.cluster_state import ClusterState
from services.gateway.pages.rank_watch import RankWatch
from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.client.generation.commands import GenerationStats
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages import GroupDown, Heartbeat, SessionTurns

TICK_S = 0.2
BEATS_PER_S = 400  # heartbeats that are read in a second
TURNS_PER_S = 200
_BACKGROUND_S = 1.0  # how often the gateway's own counts are looked at without viewers


class ClusterFeed:
    """Keeps the state of the cluster for the viewers.

    Args:
        bus: The connection.
        stats: Of the gateway's client: which of its requests went on elsewhere.
        clock: Monotonic seconds.
    """

    def __init__(self, bus: Bus, stats: GenerationStats, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._stats = stats
        self._clock = clock
        self._state = ClusterState()
        self._ranks = RankWatch(bus, self._state)
        self._viewers = 0
        self._wanted = asyncio.Event()
        self._next = asyncio.Event()
        self._shown: dict[str, Any] = {}
        self._shared = b""
        self._resumed = stats.resumed
        self._pauses, self._longest_s = 0, 0.0
        self._due_s = clock()  # when the next round of `watch` should begin
        self._subscriptions: list[Subscription] = []
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Hears losses and makes snapshots, until it is cancelled."""
        await self._bus.subscribe(subjects.GROUP_DOWN, self._down)
        while True:
            timeout_s = TICK_S if self._viewers else _BACKGROUND_S
            self._due_s = self._clock() + timeout_s
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wanted.wait()
                self._wanted.clear()
            except TimeoutError:
                pass
            self._note_lateness()
            if self._viewers:
                await self._ranks.ask_when_due(self._clock())
            self._make_snapshot()

    def observe_pause(self, seconds: float) -> None:
        """Notes that an answer of this gateway paused because its group was lost."""
        self._pauses += 1
        self._longest_s = max(self._longest_s, seconds)

    @asynccontextmanager
    async def viewer(self, tenant: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """A viewer: the block has its snapshots in JSON, each once it is made, the first at once."""
        self._viewers += 1
        try:
            await self._listen()
            self._wanted.set()
            yield self._snapshots(tenant)
        finally:
            self._viewers -= 1
            await self._listen()

    async def _snapshots(self, tenant: str) -> AsyncIterator[bytes]:
        while True:
            await self._next.wait()
            sessions = msgspec.json.encode(self._state.sessions_of(tenant))
            yield self._shared_for(tenant)[:-1] + b',"sessions":' + sessions + b"}"

    def _shared_for(self, tenant: str) -> bytes:
        """What all viewers share, without groups of models that are for other tenants."""
        hidden = self._state.hidden_from(tenant)
        if not hidden:
            return self._shared
        groups = [one for one in self._shown["groups"] if one["group"] not in hidden]
        return msgspec.json.encode({**self._shown, "groups": groups})

    async def _listen(self) -> None:
        """Begins to hear what viewers want to see, or ends it after the last."""
        async with self._turn:
            if self._viewers and not self._subscriptions:
                self._state.groups.clear()  # what was heard before the pause says nothing of now
                for subject, handler, per_s in (
                    (subjects.HEARTBEAT_ALL, self._beat, BEATS_PER_S),
                    (subjects.SESSION_TURNS, self._turns, TURNS_PER_S),
                ):
                    self._subscriptions.append(
                        await self._bus.subscribe(subject, handler, max_per_s=per_s, sampled=True)
                    )
                self._subscriptions.append(await self._ranks.subscribe())
            elif not self._viewers and self._subscriptions:
                ended, self._subscriptions = self._subscriptions, []
                for subscription in ended:
                    await subscription.unsubscribe()

    def _note_lateness(self) -> None:
        """Counts the time for which this process was late: it read no heartbeats meanwhile."""
        now_s = self._clock()
        self._state.unread_s += max(0.0, now_s - self._due_s)
        self._due_s = max(self._due_s, now_s)

    def _make_snapshot(self) -> None:
        moved, self._resumed = self._stats.resumed - self._resumed, self._stats.resumed
        if moved > 0:
            self._state.note_moved(moved, _wall_ms())
        if self._pauses:
            self._state.note_pauses(self._pauses, self._longest_s, _wall_ms())
            self._pauses, self._longest_s = 0, 0.0
        if not self._viewers:
            return
        self._shown = {"at_ms": _wall_ms(), **self._state.snapshot(self._clock())}
        self._shared = msgspec.json.encode(self._shown)
        self._next.set()
        self._next = asyncio.Event()

    async def _beat(self, message: Message) -> None:
        try:
            beat = decode(message.data, Heartbeat)
        except InvalidRequest:
            return  # the routers count it
        self._note_lateness()
        self._state.take_beat(beat, self._clock(), _wall_ms())

    async def _down(self, message: Message) -> None:
        try:
            down = decode(message.data, GroupDown)
        except InvalidRequest:
            return
        self._state.take_down(down, self._clock(), _wall_ms())
        self._wanted.set()

    async def _turns(self, message: Message) -> None:
        try:
            turns = decode(message.data, SessionTurns).turns
        except InvalidRequest:
            return
        self._state.take_turns(turns, _wall_ms())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
