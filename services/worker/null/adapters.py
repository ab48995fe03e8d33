"""Adapters of the null engine: each shifts the answer by its own amount, so that tests see which computed.

Nothing of their files is read, but they have to be there.
"""

import asyncio
import os
from collections.abc import Callable

from services.worker.rank_protocol.adapters import NO_ADAPTER, AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed

_Waiting = tuple[LoadAdapter, "asyncio.Future[AdapterLoaded]"]


def shift_of(fingerprint: str, cycle: int) -> int:
    """Returns by how many tokens an adapter shifts an answer of `cycle` tokens: at least 1; base: 0."""
    return 1 + int(fingerprint[-8:], 16) % max(1, cycle - 1) if fingerprint else 0


class NullAdapters:
    """The slots, and orders that wait for the beginning of a step.

    Args:
        in_use: Returns whether a sequence that is not released runs with a slot.

    Attributes:
        load_s: Seconds that a load takes.
    """

    def __init__(self, in_use: Callable[[int], bool]) -> None:
        self.load_s = 0.0
        self._in_use = in_use
        self._begun = 0  # the last step that has begun
        self._slots: dict[int, str] = {}
        self._waiting: list[_Waiting] = []

    def reset(self) -> None:
        """Empties all slots."""
        self._slots.clear()
        self._begun = 0

    def fingerprint(self, slot: int) -> str:
        """Returns the adapter of a slot; empty for the base.

        Raises:
            EngineFailed: The slot is empty.
        """
        if slot == NO_ADAPTER:
            return ""
        if slot not in self._slots:
            raise EngineFailed(f"a sequence is admitted with slot {slot}, in which there is no adapter")
        return self._slots[slot]

    async def load_adapter(self, order: LoadAdapter) -> AdapterLoaded:
        """Fills a slot when its step has begun and its time is over; see `Engine`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((order, future))
        self._serve()
        loaded: AdapterLoaded = await future
        if self.load_s:
            await asyncio.sleep(self.load_s)
        if not loaded.error and order.source:
            self._slots[order.slot] = order.fingerprint
        return loaded

    def begin_step(self, step_id: int) -> None:
        """Serves orders that waited for this step, which has released its sequences.

        Raises:
            EngineFailed: The slot of an order is in use.
        """
        self._begun = step_id
        if self._waiting:
            self._serve()

    def fail(self, reason: str) -> None:
        """Ends the orders that wait."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(EngineFailed(reason))

    def _serve(self) -> None:
        due = [entry for entry in self._waiting if entry[0].after_step <= self._begun]
        self._waiting = [entry for entry in self._waiting if entry[0].after_step > self._begun]
        for order, future in due:
            if self._in_use(order.slot):
                raise EngineFailed(f"slot {order.slot} is to be changed while a sequence runs with it")
            self._slots.pop(order.slot, None)
            error = ""
            if order.source and not os.path.exists(order.source):
                error = f"there is no file or directory {order.source}"
            if not future.done():
                future.set_result(AdapterLoaded(order_id=order.order_id, error=error, seconds=self.load_s))
