"""Keeps a copy of tenants, keys and prices in step with the KV state service.

Changes are published, and hold as soon as they are heard. The copy is read again when one is missing, when
the broker is back, and now and then in case that news was lost. While the service is away, what is known
stands; `last_read_at` says since when, so that its user can bound for how long.
"""

import asyncio
from collections.abc import Callable

import structlog

from shared import subjects
from shared.accounts.register import AccountRegister
from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint, call
from shared.errors import InvalidRequest, RyzError, Unavailable
from shared.messages import AccountChanged, AccountPage, AccountQuery, StoredAccount
from shared.telemetry.repeated import RepeatedLog

REFRESH_S = 10.0
_POLL_S = 0.1  # how soon a connection that is back is seen
_RETRY_S = 0.5
_CALL_S = 2.0
_TRIES = 5  # reads that a change has cut in two
log = structlog.get_logger(__name__)


async def read_accounts(
    bus: Bus, known: int = 0, timeout_s: float = _CALL_S, wait_s: float = 0.0
) -> tuple[list[StoredAccount], int]:
    """Returns all records and the version; no records if the version is the one that is known.

    Args:
        bus: The connection.
        known: A version; 0: none.
        timeout_s: For each page.
        wait_s: How long to wait for a service that does not listen, as in a restart.

    Raises:
        Unavailable: The KV state service or its store does not answer, or the records change all the time.
    """
    for _ in range(_TRIES):
        page = await _page(bus, AccountQuery(known=known), timeout_s, wait_s)
        records, version = list(page.records), page.version
        while page.cursor and page.version == version:
            page = await _page(bus, AccountQuery(cursor=page.cursor), timeout_s, wait_s)
            records += page.records
        if page.version == version:
            return records, version
    raise Unavailable("tenants and keys change faster than they can be read", reason="accounts")


async def _page(bus: Bus, query: AccountQuery, timeout_s: float, wait_s: float) -> AccountPage:
    return await call(bus, subjects.ACCOUNTS, query, AccountPage, timeout_s=timeout_s, wait_s=wait_s)


class AccountsSync:
    """Call `listen` once, and run `keep` as a task.

    Args:
        register: The copy.
        count: Counts what happened, by name; None: it is not counted.
        on_applied: Called with each change that was heard, once the copy has it.

    Attributes:
        last_read_at: When the service was last asked and answered, by the running loop's clock; -inf: never.
            Every change before that time is in the copy.
        no_store: The service answered last that the broker has no JetStream, so that there can be no records.
    """

    def __init__(
        self,
        bus: Bus,
        register: AccountRegister,
        refresh_s: float = REFRESH_S,
        count: Callable[[str], None] | None = None,
        on_applied: Callable[[AccountChanged], None] | None = None,
    ) -> None:
        self.register = register
        self.last_read_at = float("-inf")
        self.no_store = False
        self._bus = bus
        self._refresh_s = refresh_s
        self._count = count
        self._on_applied = on_applied
        self._repeated = RepeatedLog(log)
        self._missed = False
        self._during: list[AccountChanged] | None = None  # changes while the records are read

    async def listen(self) -> None:
        """Subscribes to changes."""
        listener = Endpoint(self._bus, self._report_bad).listener(AccountChanged, self.on_change)
        await self._bus.subscribe(subjects.ACCOUNT_CHANGED, listener, max_pending=8192)

    def on_change(self, change: AccountChanged, _: Message) -> None:
        """Takes in a change at once, and again after a read that was under way."""
        self._note("accounts_changed")
        if self._during is not None:
            self._during.append(change)
        if not self.register.apply(change):
            self._missed = True
        if self._on_applied is not None:
            self._on_applied(change)

    async def read(self) -> bool:
        """Reads the records if they have another version; False if the KV state service did not answer."""
        register = self.register
        # a copy that has lost news may have a version by chance that others have for something else
        was_current = register.is_current
        known = register.version if was_current else 0
        asked_at = asyncio.get_running_loop().time()
        during = self._during = list[AccountChanged]()
        no_store = False
        try:
            records, version = await read_accounts(self._bus, known)
        except RyzError as error:
            log.debug("accounts not read, the known ones stand", error=error.message, known=len(register))
            self.no_store = no_store = error.data.get("reason") == "no_jetstream"
            if not no_store or register.version:
                self._note("accounts_not_read")
                return False
            records, version = [], 0  # where nothing can be kept there is nothing, unless there was before
        finally:
            self._during = None
        if version != known or not was_current:
            register.replace_all(records, version)
            log.info("accounts read", known=len(register), version=version)
        register.is_current = True
        applied = [register.apply(change) for change in during]
        self._missed = not all(applied)
        self.last_read_at, self.no_store = asked_at, no_store
        return True

    async def keep(self) -> None:
        """Keeps the copy in step until it is cancelled."""
        loop = asyncio.get_running_loop()
        asked_at = due_at = float("-inf")
        while True:
            now = loop.time()
            if self._bus.restored_at > asked_at > float("-inf"):
                self.register.is_current = False  # news may have been lost
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
        self._note("bad_account_news")
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
