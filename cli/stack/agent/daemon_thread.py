"""Runs a slow call in a thread that does not keep the process from ending."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises; a caller that is cancelled leaves it running."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def hand_over(set_outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            loop.call_soon_threadsafe(lambda: None if done.done() else set_outcome())

    def run() -> None:
        try:
            found = call()
        except Exception as error:
            failure = error
            hand_over(lambda: done.set_exception(failure))
        else:
            hand_over(lambda: done.set_result(found))

    threading.Thread(target=run, daemon=True).start()
    return await done
