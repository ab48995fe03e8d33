"""Keeps a copy of the register of adapters in step with the KV state service.

Changes are published; the copy is read again when one is missing, when the broker is back, and now and then
in case that news was lost. While the service is away, what is known stands.
"""

import asyncio
from collections.abc import Callable

import structlog

from shared import subjects
from shared.adapters.register import AdapterRegister
from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint, call
from shared.errors import InvalidRequest, RyzError, Unavailable
from shared.messages import Adapter, AdapterChanged, AdapterList, AdapterPage
from shared.telemetry.repeated import RepeatedLog

REFRESH_S = 10.0
_POLL_S = 0.1  # how soon a connection that is back is seen
_RETRY_S = 0.5
_CALL_S = 2.0
_TRIES = 5  # reads that a change has cut in two
log = structlog.get_logger(__name__)


async def read_register(bus: Bus, known: int = 0, timeout_s: float = _CALL_S) -> tuple[list[Adapter], int]:
    """Returns all adapters and the version; no adapters if the version is the one that is known.

    Raises:
        Unavailable: The KV state service or its store does not answer, or the register changes all the time.
    """
    for _ in range(_TRIES):
        page = await _page(bus, AdapterList(known=known), timeout_s)
        adapters, version = list(page.adapters), page.version
        while page.cursor and page.version == version:
            page = await _page(bus, AdapterList(cursor=page.cursor), timeout_s)
            adapters += page.adapters
        if page.version == version:
            return adapters, version
    raise Unavailable("the register of adapters changes faster than it can be read", reason="adapters")


async def _page(bus: Bus, query: AdapterList, timeout_s: float) -> AdapterPage:
    return await call(bus, subjects.ADAPTERS, query, AdapterPage, timeout_s=timeout_s)


class RegisterSync:
    """Call `listen` once, and run `keep` as a task.

    Args:
        register: The copy.
        count: Counts what happened, by name; None: it is not counted.
    """

    def __init__(
        self,
        bus: Bus,
        register: AdapterRegister,
        refresh_s: float = REFRESH_S,
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._bus = bus
        self._register = register
        self._refresh_s = refresh_s
        self._count = count
        self._repeated = RepeatedLog(log)
        self._missed = False
        self._during: list[AdapterChanged] | None = None  # changes while the register is read

    async def listen(self) -> None:
        """Subscribes to changes."""
        listener = Endpoint(self._bus, self._report_bad).listener(AdapterChanged, self.on_change)
        await self._bus.subscribe(subjects.ADAPTER_CHANGED, listener, max_pending=8192)

    def on_change(self, change: AdapterChanged, _: Message) -> None:
        """The register has changed."""
        if self._during is not None:
            self._during.append(change)
        elif not self._register.apply(change):
            self._missed = True

    async def read(self) -> bool:
        """Reads the register if it has another version; False if the KV state service did not answer."""
        register, known = self._register, self._register.version
        during = self._during = list[AdapterChanged]()
        try:
            adapters, version = await read_register(self._bus, known)
        except RyzError as error:
            log.debug("adapters not read, the known ones stand", error=error.message, known=len(register))
            self._note("adapters_not_read")
            self._missed = self._missed or bool(during)
            return False
        finally:
            self._during = None
        if version != known:
            register.replace_all(adapters, version)
            log.info("adapters read", known=len(register), version=version)
        register.is_current = True
        applied = [register.apply(change) for change in during]
        self._missed = not all(applied)
        return True

    async def keep(self) -> None:
        """Keeps the copy in step until it is cancelled."""
        loop = asyncio.get_running_loop()
        asked_at = due_at = float("-inf")
        while True:
            now = loop.time()
            if self._bus.restored_at > asked_at > float("-inf"):
                self._register.is_current = False  # news may have been lost
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
        self._note("bad_adapter_news")
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
