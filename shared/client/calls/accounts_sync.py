"""Keeps a copy of tenants, keys and prices in step with the KV state service; see `copy_sync.py`.

Changes hold as soon as they are heard, also while the copy is read. While the service is away, what is known
stands; `last_read_at` says since when, so that its user can bound for how long.
"""

import asyncio
from collections.abc import Callable

import structlog

from shared import subjects
from shared.accounts.register import AccountRegister
from shared.bus import Bus, Message
from shared.bus.endpoint import call
from shared.client.calls.copy_sync import REFRESH_S, CopySync
from shared.errors import RyzError, Unavailable
from shared.messages import AccountChanged, AccountPage, AccountQuery, StoredAccount

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


class AccountsSync(CopySync[AccountChanged]):
    """See `CopySync`.

    Args:
        register: The copy.
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
        super().__init__(
            bus,
            register,
            subject=subjects.ACCOUNT_CHANGED,
            kind=AccountChanged,
            refresh_s=refresh_s,
            count=count,
            bad_event="bad_account_news",
        )
        self.register = register
        self.last_read_at = float("-inf")
        self.no_store = False
        self._on_applied = on_applied

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
        """See `CopySync.read`."""
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
