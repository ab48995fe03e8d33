"""Keeps a copy of the register of adapters in step with the KV state service; see `copy_sync.py`."""

from collections.abc import Callable

import structlog

from shared import subjects
from shared.adapters.register import AdapterRegister
from shared.bus import Bus, Message
from shared.bus.endpoint import call
from shared.client.calls.copy_sync import REFRESH_S, CopySync
from shared.errors import RyzError, Unavailable
from shared.messages import Adapter, AdapterChanged, AdapterList, AdapterPage

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


class RegisterSync(CopySync[AdapterChanged]):
    """See `CopySync`.

    Args:
        register: The copy.
    """

    def __init__(
        self,
        bus: Bus,
        register: AdapterRegister,
        refresh_s: float = REFRESH_S,
        count: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(
            bus,
            register,
            subject=subjects.ADAPTER_CHANGED,
            kind=AdapterChanged,
            refresh_s=refresh_s,
            count=count,
            bad_event="bad_adapter_news",
        )
        self._register = register

    def on_change(self, change: AdapterChanged, _: Message) -> None:
        """See `CopySync.on_change`."""
        if self._during is not None:
            self._during.append(change)
        elif not self._register.apply(change):
            self._missed = True

    async def read(self) -> bool:
        """See `CopySync.read`."""
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
