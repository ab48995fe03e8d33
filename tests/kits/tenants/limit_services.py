"""Tenants with limits and the store that counts them, on the bus of a scripted gateway."""

import time
from collections.abc import Callable

from services.kvstate.limits.calls import LimitCalls
from services.kvstate.limits.store import HOLD_MS
from services.kvstate.limits.used import NothingUsed
from shared import subjects
from shared.bus import Bus, Message
from shared.bus.endpoint import Endpoint
from shared.codec import encode
from shared.errors import Unavailable
from shared.messages import (
    AccountChanged,
    AccountPage,
    AccountQuery,
    AccountRecord,
    LeasedLimits,
    LeaseLimits,
    StoredAccount,
)
from tests.kits.kvstate.memory_limits import MemoryLimitStore


class LimitServices:
    """Answers the calls about accounts and limits.

    Attributes:
        store: Counts.
        away: Calls about limits are refused, as without Redis.
        calls: Calls about limits so far.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.time, hold_ms: int = HOLD_MS) -> None:
        self.store = MemoryLimitStore(clock, hold_ms)
        self.away = False
        self.calls = 0
        self._bus = bus
        self._records: dict[str, StoredAccount] = {}
        self._version = 0
        (kind,) = LimitCalls(self.store, NothingUsed(), clock).calls()
        self._lease = kind.answer

    async def start(self) -> None:
        """Subscribes."""
        endpoint = Endpoint(self._bus)
        for subject, handler in (
            (subjects.ACCOUNTS, endpoint.handler(AccountQuery, self._page)),
            (subjects.LEASE_LIMITS, endpoint.handler(LeaseLimits, self._answer)),
        ):
            await self._bus.subscribe(subject, handler, queue=subjects.KVSTATE_QUEUE)

    async def put(self, *records: AccountRecord) -> None:
        """Puts records, and publishes the changes."""
        for record in records:
            before, self._version = self._version, self._version + 1
            stored = self._records[record.name] = StoredAccount(record=record, revision=self._version)
            change = AccountChanged(before=before, version=self._version, put=stored)
            await self._bus.publish(subjects.ACCOUNT_CHANGED, encode(change))

    async def _page(self, query: AccountQuery, _: Message) -> AccountPage:
        records = [] if query.known == self._version else list(self._records.values())
        return AccountPage(records=records, version=self._version)

    async def _answer(self, asked: LeaseLimits, _: Message) -> LeasedLimits:
        self.calls += 1
        if self.away:
            raise Unavailable("the session store is away", reason="session_store")
        answer = await self._lease(asked)
        assert isinstance(answer, LeasedLimits)
        return answer
