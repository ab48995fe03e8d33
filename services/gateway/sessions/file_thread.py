"""Where files of sessions are made and read: beside the event loop, and beside the threads of all else.

It is one thread. The interpreter lets no two of them compute at once, so more would bring nothing but longer
waits for the event loop.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FileThread:
    """A tenant has one file in hand at a time; its others wait for that, so that tenants go by turns.

    How many wait is bounded by the places of requests, and what they hold by the bytes of bodies.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-files")
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(
            asyncio.Lock
        )  # as many as tenants with keys

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """What `work` returns or raises, in its turn."""
        async with self._turns[tenant]:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Begins nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
