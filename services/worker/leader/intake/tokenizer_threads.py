"""A few threads for long work on texts and tokens. Tenants are served in rotation; none has all threads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from prometheus_client import Counter

from services.worker.leader.intake.thread_work import ThreadWork
from services.worker.text.library_panics import guarded
from shared.errors import DeadlineExceeded
from shared.flow.tenant_slots import TenantSlots

THREADS = 3
PER_TENANT = 2  # one thread fewer: the prompts of one tenant alone never delay another's
T = TypeVar("T")


class TokenizerThreads:
    """The threads; stop them when the leader ends.

    Args:
        timeout_s: CPU time of one piece of work, and how long it may wait for a thread.
        slow_prompts: Counts what took longer.
    """

    def __init__(self, timeout_s: float, slow_prompts: Counter) -> None:
        self._timeout_s = timeout_s
        self._slow_prompts = slow_prompts
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._slots = TenantSlots(THREADS, per_tenant=PER_TENANT)
        self._running: set[asyncio.Future[Any]] = set()

    def stop_threads(self) -> None:
        """Takes no more work; a busy thread ends with its prompt."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for running in list(self._running):
            running.cancel()  # its thread may end after the loop

    async def run_in_thread(self, tenant: str, work: Callable[[], T], failure: str) -> T:
        """Does the work of a tenant in a thread, in the tenant's turn, and returns its result.

        Args:
            tenant: Whose turn is waited for.
            work: Called in the thread.
            failure: Beginning of the error's sentence: what was not done in time.

        Raises:
            DeadlineExceeded: It takes too much CPU time, or it waits too long for a thread.
        """
        timed = ThreadWork(work)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._slots.enter(tenant)
            return await timed.await_end(self._submit_work(tenant, timed), self._timeout_s)
        except TimeoutError as error:
            raise self.too_slow(failure) from error

    def too_slow(self, failure: str) -> DeadlineExceeded:
        """Counts work that took too long, and returns its error, which begins with `failure`."""
        self._slow_prompts.inc()
        return DeadlineExceeded(
            f"{failure} within {self._timeout_s:g} s (RYZ_TOKENIZE_TIMEOUT_S): it is "
            "too long, the group is too busy with others, or the model's chat template is too slow",
            reason="tokenizing",
        )

    def _submit_work(self, tenant: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Puts work into a thread. The tenant's slot is free again when the thread is."""
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, guarded, work)
        except BaseException:
            self._slots.leave(tenant)
            raise

        def ended(_: object) -> None:
            self._running.discard(running)
            self._slots.leave(tenant)

        self._running.add(running)
        running.add_done_callback(ended)
        return running
