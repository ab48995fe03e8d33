"""Heartbeats: the state and load of the group, many times a second, from a thread of their own.

The leader's event loop describes the group; the thread sends the newest description at each interval, over a
connection of its own. So the group does not look dead because of a long plan or a backlog of frames. A loop
that hangs does look dead: a description that is too old is not sent.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec
import structlog

from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.messages import Heartbeat

log = structlog.get_logger(__name__)
STOP_WAIT_S = 2.0  # for the last heartbeat and the end of the connection
DESCRIBE_SHARE = 0.02  # of the event loop's time that descriptions may take, however long the queues are


class HeartbeatSender:
    """Sends the newest description at each interval, while it is not older than `stale_s`.

    `tell` may be called from any thread; `run`, `wake` and `end` from the loop that sends.
    """

    def __init__(
        self, interval_s: float, stale_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._clock = clock
        self._newest: tuple[Heartbeat, float] | None = None  # and when it was told; replaced as a whole
        self._seq = 0
        self._woken = asyncio.Event()
        self._ended = False
        self._is_stale = False

    def tell(self, heartbeat: Heartbeat) -> None:
        """Replaces the description."""
        self._newest = (heartbeat, self._clock())

    def wake(self) -> None:
        """Sends without waiting for the interval's end."""
        self._woken.set()

    def end(self) -> None:
        """Sends once more, and then no more."""
        self._ended = True
        self._woken.set()

    async def run(self, bus: Bus) -> None:
        """Sends until it is ended; extra heartbeats do not change the average interval."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._ended:
            self._woken.clear()
            await self._send(bus)
            now, soon = loop.time(), self._interval_s / 4
            if due < now + soon:
                due = max(due, now - soon) + self._interval_s
            timer = loop.call_at(due, self._woken.set)
            await self._woken.wait()
            timer.cancel()
        await self._send(bus)

    async def _send(self, bus: Bus) -> None:
        """Sends one now, if there is a description; goes on if the broker is away."""
        if self._newest is None:
            return
        heartbeat, told_at = self._newest
        age_s = self._clock() - told_at
        if age_s > self._stale_s:
            if not self._is_stale:
                log.error("the leader's event loop hangs, heartbeats stop", for_s=round(age_s, 3))
            self._is_stale = True
            return
        self._is_stale = False
        heartbeat = msgspec.structs.replace(heartbeat, seq=self._seq)
        self._seq += 1
        try:
            await bus.publish(subjects.heartbeat(heartbeat.group), codec.encode(heartbeat))
        except Unavailable:
            log.debug("heartbeat not sent, the broker is away", seq=heartbeat.seq)


class HeartbeatCarrier(Protocol):
    """Where a sender runs. `wake` may be called at any time between `start` and `stop`."""

    async def start(self, pulse: HeartbeatSender) -> None:
        """Connects and begins. Raises `Unavailable` when there is no broker."""
        ...

    def wake(self) -> None:
        """Sends at once."""
        ...

    async def stop(self) -> None:
        """Sends once more, and ends; does nothing without `start`, and at a second call."""
        ...


class LoopCarrier:
    """Sends on the running event loop, over a given bus: for buses of one process, as in tests."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pulse: HeartbeatSender | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, pulse: HeartbeatSender) -> None:
        """See `HeartbeatCarrier.start`."""
        self._pulse = pulse
        self._task = asyncio.create_task(pulse.run(self._bus), name="heartbeats")
        await asyncio.sleep(0)  # the first one goes out before anything else happens

    def wake(self) -> None:
        """See `HeartbeatCarrier.wake`."""
        if self._pulse is not None:
            self._pulse.wake()

    async def stop(self) -> None:
        """See `HeartbeatCarrier.stop`."""
        pulse, task, self._pulse, self._task = self._pulse, self._task, None, None
        if pulse is not None and task is not None:
            pulse.end()
            await asyncio.wait({task}, timeout=STOP_WAIT_S)


class ThreadCarrier:
    """Sends from a thread with an event loop of its own.

    Args:
        connect: Makes the connection in the thread's loop; the stack closes it there.
    """

    def __init__(self, connect: Callable[[AsyncExitStack], Awaitable[Bus]]) -> None:
        self._connect = connect
        self._pulse: HeartbeatSender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    async def start(self, pulse: HeartbeatSender) -> None:
        """See `HeartbeatCarrier.start`."""
        ours = asyncio.get_running_loop()
        connected: asyncio.Future[None] = ours.create_future()

        def tell(result: BaseException | None) -> None:
            if not connected.done():
                connected.set_exception(result) if result is not None else connected.set_result(None)

        async def beat() -> None:
            async with AsyncExitStack() as stack:
                bus = await self._connect(stack)
                self._loop = asyncio.get_running_loop()
                ours.call_soon_threadsafe(tell, None)
                await pulse.run(bus)

        def run() -> None:
            try:
                asyncio.run(beat())
            except Exception as error:
                if not isinstance(error, Unavailable):
                    log.critical("the heartbeats' thread crashed", exc_info=error)
                _call(ours, tell, error)
            finally:
                self._loop = None
                _call(ours, self._ended.set)

        self._pulse = pulse
        self._ended.clear()
        # a daemon: a broker that does not take the last heartbeat must not keep the process
        threading.Thread(target=run, name="heartbeats", daemon=True).start()
        await connected

    def wake(self) -> None:
        """See `HeartbeatCarrier.wake`."""
        if self._pulse is not None and self._loop is not None:
            _call(self._loop, self._pulse.wake)

    async def stop(self) -> None:
        """See `HeartbeatCarrier.stop`."""
        pulse, self._pulse = self._pulse, None
        if pulse is None or self._loop is None:
            return
        _call(self._loop, pulse.end)
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("the last heartbeat was not sent in time", waited_s=STOP_WAIT_S)


class Heartbeats:
    """The heartbeats of a leader.

    Call `start`, then run `describe_forever` as a task, `beat` after changes that routers must know at once,
    and `stop` at the end.

    Args:
        carrier: Runs the sender.
        interval_s: Between two heartbeats.
        stale_s: Age of a description beyond which it is not sent.
        describe: Makes a heartbeat; it gets its number when it is sent.
    """

    def __init__(
        self, carrier: HeartbeatCarrier, interval_s: float, stale_s: float, describe: Callable[[], Heartbeat]
    ) -> None:
        self._carrier = carrier
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._describe = describe
        self._pulse = HeartbeatSender(interval_s, stale_s)

    async def start(self) -> None:
        """Begins to send. Raises `Unavailable` when there is no broker."""
        self._pulse.tell(self._describe())
        await self._carrier.start(self._pulse)

    async def describe_forever(self) -> None:
        """Describes the group until cancelled: at each interval, or more rarely where that takes long."""
        while True:
            began = time.perf_counter()
            self._pulse.tell(self._describe())
            took = time.perf_counter() - began
            await asyncio.sleep(min(max(self._interval_s, took / DESCRIBE_SHARE), self._stale_s / 4))

    async def beat(self) -> None:
        """Sends a heartbeat now."""
        self._pulse.tell(self._describe())
        self._carrier.wake()

    async def stop(self) -> None:
        """Sends a last heartbeat, and ends."""
        self._pulse.tell(self._describe())
        await self._carrier.stop()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Calls a function in another thread's loop, unless that is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        log.debug("the other event loop is closed")
