"""Limits of CPU time on work in threads: what counts, and when the wait ends."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.worker.leader.intake.thread_work import ThreadWork
from services.worker.rank_protocol.run_config import STRETCH


def five_after(seconds: float) -> int:
    time.sleep(seconds)
    return 5


async def test_work_that_uses_its_cpu_time_up_is_given_up() -> None:
    released = threading.Event()

    def spin() -> None:
        while not released.is_set():
            pass

    with ThreadPoolExecutor(1) as threads:
        work = ThreadWork(spin)
        try:
            with pytest.raises(TimeoutError):
                await work.await_end(asyncio.get_running_loop().run_in_executor(threads, work), 0.1)
            assert work.cpu_s() >= 0.1
        finally:
            released.set()


async def test_time_without_a_core_does_not_count() -> None:
    with ThreadPoolExecutor(1) as threads:
        work = ThreadWork(lambda: five_after(0.6))
        assert await work.await_end(asyncio.get_running_loop().run_in_executor(threads, work), 0.1) == 5


async def test_a_loop_that_stood_still_gives_nothing_up() -> None:
    with ThreadPoolExecutor(1) as threads:
        work = ThreadWork(lambda: five_after(0.02))
        ending = asyncio.create_task(
            work.await_end(asyncio.get_running_loop().run_in_executor(threads, work), 0.01)
        )
        await asyncio.sleep(0)
        time.sleep(0.01 * STRETCH * 2)  # noqa: ASYNC251 (the loop stands still)
        assert await ending == 5


async def test_work_that_never_gets_a_core_is_given_up_in_the_end() -> None:
    released = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        work = ThreadWork(released.wait)
        try:
            with pytest.raises(TimeoutError):
                await work.await_end(asyncio.get_running_loop().run_in_executor(threads, work), 0.02)
        finally:
            released.set()


async def test_errors_of_the_work_are_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as threads:
        work = ThreadWork(fail)
        with pytest.raises(ValueError, match="no"):
            await work.await_end(asyncio.get_running_loop().run_in_executor(threads, work), 1.0)
