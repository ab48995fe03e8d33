"""A thread that makes and reads session files, apart from the event loop and from other threads.

It is a single thread. The interpreter lets only one thread compute at a time, so more threads would only make
the event loop wait longer.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FileThread:
    """Works on one file of each tenant at a time, so that tenants take turns.

    The places of requests bound how many files wait, and the bytes of bodies bound their memory.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-files")
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one for each tenant

    async def run_queued(self, tenant: str, work: Callable[[], T]) -> T:
        """Runs `work` when it is the tenant's turn, and returns or raises what it does."""
        async with self._turns[tenant]:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Drops work that has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)
