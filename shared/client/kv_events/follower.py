"""Follows the KV events of all groups on the bus: keeps the lease, and asks for what was missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from shared import subjects
from shared.bus.api import Bus, Message, Subscription
from shared.bus.call_all import call_all
from shared.bus.endpoint import call
from shared.client.connected_bus import connected_bus
from shared.client.kv_events.group_view import WantedCall
from shared.client.kv_events.index import KVEventIndex
from shared.codec import decode
from shared.errors import InvalidRequest, RyzError
from shared.messages import KVEvents, KVFollow, KVFollowed, KVReplay, KVReplayed, KVSnapshotPage

log = structlog.get_logger(__name__)
RENEW_S = 5.0
FORGET_ROUNDS = 3  # without an answer
MANY = 1 << 16  # groups: all that answer in time are waited for
ANSWER_S, MORE_S = 2.0, 0.25
CALL_S = 5.0
PAUSE_S = 0.2  # after a call that failed


class KVEventFollower:
    """Keeps a `KVEventIndex` like the caches of all groups. Use it as an async context manager.

    Args:
        bus: A connection of a user that may follow KV events, such as `indexer`.
        renew_s: Seconds between two rounds in which all groups are asked for their state. In this time a
            lost last event is found, and a group that came without its announcement.

    Attributes:
        index: The index; read it at any time.
    """

    def __init__(self, bus: Bus, *, renew_s: float = RENEW_S) -> None:
        self.index = KVEventIndex()
        self._bus = bus
        self._renew_s = renew_s
        self._missing = asyncio.Event()  # there may be something to ask for
        self._complete = asyncio.Event()  # there was nothing
        self._renew_soon = asyncio.Event()  # a group has begun another epoch
        self._silent: dict[str, int] = {}  # rounds without an answer
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str = "", *, connect_wait_s: float = 10.0
    ) -> AsyncIterator["KVEventFollower"]:
        """Yields a follower with a connection of its own.

        Args:
            url: Of the broker, with user and password; empty: `RYZ_NATS_URL`.
            connect_wait_s: How long to wait for the broker.
        """
        wait_s = connect_wait_s
        async with (
            connected_bus(url, "", name="kv-events", connect_wait_s=wait_s) as (bus, _),
            cls(bus) as one,
        ):
            yield one

    async def __aenter__(self) -> "KVEventFollower":
        self._subscription = await self._bus.subscribe(subjects.KV_EVENTS_ALL, self._take_events)
        self._tasks = [asyncio.create_task(self._renew_forever()), asyncio.create_task(self._ask_forever())]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def renew(self) -> None:
        """Asks all groups for their state once, which prolongs the lease."""
        before = self.index.changes()
        answers: list[KVFollowed | RyzError] = []
        with suppress(RyzError):  # no group, or no broker
            answers = await call_all(
                self._bus,
                subjects.KV_FOLLOW,
                KVFollow(),
                KVFollowed,
                expected=MANY,
                timeout_s=ANSWER_S,
                more_s=MORE_S,
            )
        for answer in answers:
            if isinstance(answer, KVFollowed):
                self._silent.pop(answer.group, None)
                self.index.take_followed(answer, before)
        if not self._bus.connected:
            return  # a silence that says nothing of the groups
        heard = {answer.group for answer in answers if isinstance(answer, KVFollowed)}
        for group in before.keys() - heard:
            self._silent[group] = self._silent.get(group, 0) + 1
            if self._silent[group] >= FORGET_ROUNDS:
                del self._silent[group]
                self.index.forget(group)
        self._missing.set()

    async def until_current(self, timeout_s: float) -> None:
        """Returns when the index has every event up to now.

        Args:
            timeout_s: How long that may take.

        Raises:
            TimeoutError: It took longer.
        """
        async with asyncio.timeout(timeout_s):
            await self.renew()
            self._complete.clear()
            self._missing.set()
            await self._complete.wait()

    def _take_events(self, message: Message) -> None:
        try:
            events = decode(message.data, KVEvents)
        except InvalidRequest as error:
            log.warning("a KV event cannot be read", subject=message.subject, error=error.message)
            return
        self.index.take_events(events)
        if not self.index.is_described(events.group):
            self._renew_soon.set()
        if not self.index.is_current(events.group):
            self._missing.set()

    async def _renew_forever(self) -> None:
        while True:
            self._renew_soon.clear()
            await self.renew()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew_s):
                    await self._renew_soon.wait()

    async def _ask_forever(self) -> None:
        while True:
            await self._missing.wait()
            self._missing.clear()
            all_wanted = list(self.index.wanted())
            if not all_wanted:
                self._complete.set()
            for wanted in all_wanted:
                if wanted.group not in self._asking:
                    task = asyncio.create_task(self._ask(wanted))
                    self._asking[wanted.group] = task

    async def _ask(self, wanted: WantedCall) -> None:
        """Makes a call of one group; there is one at a time for each."""
        try:
            answer: KVReplayed | KVSnapshotPage
            if isinstance(wanted.call, KVReplay):
                subject = subjects.kv_replay(wanted.group)
                answer = await call(self._bus, subject, wanted.call, KVReplayed, timeout_s=CALL_S)
            else:
                subject = subjects.kv_snapshot(wanted.group)
                answer = await call(self._bus, subject, wanted.call, KVSnapshotPage, timeout_s=CALL_S)
            self.index.take_answer(wanted, answer)
        except RyzError as error:
            log.debug("a group does not answer", group=wanted.group, error=error.message)
            await asyncio.sleep(PAUSE_S)
        finally:
            self._asking.pop(wanted.group, None)
            self._missing.set()
