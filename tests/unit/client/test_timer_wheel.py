"""The wheel fires each entry once, not before its time, and late by a tick at most."""

import asyncio
import math
from dataclasses import dataclass

from shared.client.running_streams import TimerWheel
from tests.kits.waiting import until


@dataclass
class Entry:
    delay_s: float
    timer_due: float = math.inf


async def test_entries_fire_in_their_tick() -> None:
    loop = asyncio.get_running_loop()
    events: list[str] = []
    fired: dict[float, float] = {}
    start, tick_s = loop.time(), 0.01

    def fire(entry: Entry, now: float) -> None:
        fired[entry.delay_s] = now
        events.append(f"fired {entry.delay_s}")

    wheel: TimerWheel[Entry] = TimerWheel(tick_s, fire)
    delays = (0.05, 0.01, 0.03, 0.0)  # not in the order of their times
    for delay in delays:
        wheel.schedule(Entry(delay), start + delay)
        # a loop that is late runs its timers in the order of their times all the same
        loop.call_at(start + delay + 2 * tick_s, events.append, f"past {delay}")
    await until(lambda: len(events) == 2 * len(delays))
    for delay in delays:
        assert fired[delay] >= start + delay
        assert events.index(f"fired {delay}") < events.index(f"past {delay}")
    assert list(fired) == sorted(delays)


async def test_an_entry_fires_at_the_earliest_of_its_times_and_once() -> None:
    loop = asyncio.get_running_loop()
    fired: list[Entry] = []
    wheel: TimerWheel[Entry] = TimerWheel(0.005, lambda entry, _: fired.append(entry))
    entry, last = Entry(0.0), Entry(0.0)
    start = loop.time()
    for delay in (0.03, 0.01, 0.02):
        wheel.schedule(entry, start + delay)
    wheel.schedule(last, start + 0.05)
    await until(lambda: last in fired)
    assert fired == [entry, last]
    assert fired[0] is entry


async def test_an_entry_may_come_back_and_the_wheel_may_stop() -> None:
    loop = asyncio.get_running_loop()
    times = []

    def again(entry: Entry, now: float) -> None:
        times.append(now)
        wheel.schedule(entry, now)

    wheel: TimerWheel[Entry] = TimerWheel(0.005, again)
    wheel.schedule(Entry(0.0), loop.time())
    await until(lambda: len(times) >= 3)
    wheel.stop()
    count = len(times)
    await asyncio.sleep(0.02)
    assert len(times) == count
