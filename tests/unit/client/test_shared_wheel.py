"""The wheel fires each entry once, not before its time, and late by a tick at most."""

import asyncio

from shared.client.generation.timer_wheel import Wheel
from tests.kits.waiting import until


async def test_entries_fire_in_their_tick() -> None:
    loop = asyncio.get_running_loop()
    fired: dict[str, float] = {}
    wheel: Wheel[str] = Wheel(0.01, fired.__setitem__)
    start = loop.time()
    for delay in (0.05, 0.01, 0.03, 0.0):  # the earliest is not the first
        wheel.add(f"{delay}", start + delay)
    await until(lambda: len(fired) == 4)
    for name, when in fired.items():
        assert start + float(name) <= when < start + float(name) + 0.1
    assert list(fired) == ["0.0", "0.01", "0.03", "0.05"]


async def test_an_entry_may_come_back_and_the_wheel_may_stop() -> None:
    loop = asyncio.get_running_loop()
    times = []

    def again(entry: str, now: float) -> None:
        times.append(now)
        wheel.add(entry, now)

    wheel: Wheel[str] = Wheel(0.005, again)
    wheel.add("x", loop.time())
    await until(lambda: len(times) >= 3)
    wheel.stop()
    count = len(times)
    await asyncio.sleep(0.02)
    assert len(times) == count
