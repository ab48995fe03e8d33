"""Keeps a copy of a register of the KV state service in step with it.

Changes are published; the copy is read again when one is missing, when the broker is back, and now and then
in case that news was lost. While the service is away, what is known stands. `register_sync.py` and
`accounts_sync.py` say how their registers are read.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Generic, Protocol, TypeVar

import structlog

from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint
from shared.errors import InvalidRequest
from shared.messages import Wire
from shared.telemetry.repeated import RepeatedLog

REFRESH_S = 10.0
MAX_PENDING = 8192  # changes that may wait to be taken in
_POLL_S = 0.1  # how soon a connection that is back is seen
_RETRY_S = 0.5
C = TypeVar("C", bound=Wire)
log = structlog.get_logger(__name__)


class Copy(Protocol):
    """A copy of a register.

    Attributes:
        is_current: Whether it was read, and no change is known to be missing.
    """

    is_current: bool


class CopySync(ABC, Generic[C]):
    """Call `open` once, or `listen` and run `keep` as a task.

    Args:
        bus: The connection.
        copy: What is kept in step.
        subject: Of the changes, which are messages of the type `kind`.
        kind: See `subject`.
        refresh_s: How often the versions are compared.
        count: Counts what happened, by name; None: it is not counted.
        bad_event: The name of a change that cannot be read.
    """

    def __init__(
        self,
        bus: Bus,
        copy: Copy,
        *,
        subject: str,
        kind: type[C],
        refresh_s: float,
        count: Callable[[str], None] | None,
        bad_event: str,
    ) -> None:
        self._bus = bus
        self._copy = copy
        self._subject = subject
        self._kind = kind
        self._refresh_s = refresh_s
        self._count = count
        self._bad_event = bad_event
        self._repeated = RepeatedLog(log)
        self._missed = False
        self._during: list[C] | None = None  # changes while the register is read

    async def listen(self) -> None:
        """Subscribes to changes."""
        listener = Endpoint(self._bus, self._report_bad).listener(self._kind, self.on_change)
        await self._bus.subscribe(self._subject, listener, max_pending=MAX_PENDING)

    async def open(self, stack: AsyncExitStack) -> None:
        """Subscribes, and keeps the copy in step until the stack closes."""
        await self.listen()
        keeping = asyncio.create_task(self.keep())
        stack.callback(keeping.cancel)

    @abstractmethod
    def on_change(self, change: C, _: Message) -> None:
        """The register has changed."""

    @abstractmethod
    async def read(self) -> bool:
        """Reads the register if it has another version; False if the KV state service did not answer."""

    async def keep(self) -> None:
        """Keeps the copy in step until it is cancelled."""
        loop = asyncio.get_running_loop()
        asked_at = due_at = float("-inf")
        while True:
            now = loop.time()
            if self._bus.restored_at > asked_at > float("-inf"):
                self._copy.is_current = False  # news may have been lost
                self._missed = True
            if self._bus.connected and (now >= due_at or self._missed):
                asked_at = now
                wait_s = self._refresh_s if await self.read() else min(_RETRY_S, self._refresh_s)
                due_at = loop.time() + wait_s
            await asyncio.sleep(min(_POLL_S, self._refresh_s))

    def _note(self, event: str) -> None:
        if self._count is not None:
            self._count(event)

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._note(self._bad_event)
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
