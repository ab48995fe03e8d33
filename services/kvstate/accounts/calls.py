"""The calls about tenants, keys and prices: changes, the whole, the audit log; and the news of changes.

An entry of the audit log is written before its change. If the change then fails, another entry says so.
"""

import asyncio
import time

import structlog

from services.kvstate.accounts import rules
from services.kvstate.accounts.store import AccountStore, AuditLog, VersionMoved
from services.kvstate.call_server import CallKind
from shared import subjects
from shared.bus import Bus
from shared.codec import encode
from shared.errors import Conflict, RyzError, Unavailable
from shared.messages import (
    AccountChange,
    AccountChanged,
    AccountPage,
    AccountQuery,
    AccountRecord,
    AccountStored,
    AuditEntry,
    AuditPage,
    AuditQuery,
    StoredAccount,
)

PAGE_BYTES = 256 * 1024
_TRIES = 20  # of a change, while other replicas write
log = structlog.get_logger(__name__)


class AccountCalls:
    """Answers the calls, and publishes changes to gateways and routers.

    Attributes:
        audit: The log, for what other calls do to a tenant.
    """

    def __init__(self, bus: Bus, store: AccountStore, audit: AuditLog) -> None:
        self._bus = bus
        self._store = store
        self.audit = audit
        self._changing = asyncio.Lock()

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the calls with their names, subjects and types."""
        return (
            CallKind("change_account", subjects.ACCOUNT_CHANGE, AccountChange, self._change),
            CallKind("accounts", subjects.ACCOUNTS, AccountQuery, self._page),
            CallKind("audit", subjects.AUDIT, AuditQuery, self._entries),
        )

    async def _page(self, query: AccountQuery) -> AccountPage:
        table = await self._store.read()
        return table.page(query.cursor, PAGE_BYTES, query.known)

    async def _entries(self, query: AuditQuery) -> AuditPage:
        return AuditPage(entries=await self.audit.newest(query.before, query.count))

    async def _change(self, change: AccountChange) -> AccountStored:
        async with self._changing:
            table = await self._store.read()
            record = rules.checked(change, table, int(time.time()))
            closing = rules.rules_before(record, table)
            if closing is not None:
                await self._write(AccountChange(actor=change.actor, put=closing))
            return await self._write(change)

    async def _write(self, change: AccountChange) -> AccountStored:
        entered = False
        try:
            for _ in range(_TRIES):
                table = await self._store.read()
                record = rules.checked(change, table, int(time.time()))
                name = change.remove if record is None else record.name
                known, version = table.stored(name), table.version
                if record is not None and known is not None and known.record == record:
                    return AccountStored(stored=known, version=version)
                if not entered:
                    owner = rules.tenant_of(record if known is None else known.record)
                    await self._enter(change, name, record, owner)
                    entered = True
                try:
                    await self._store.write(name, record, version)
                except VersionMoved:
                    continue
                return await self._done(name, record, version, end_streams=change.end_streams)
            raise Unavailable(
                "tenants and keys change faster than one can be written", reason="accounts_store"
            )
        except RyzError as error:
            if entered:
                await self._enter_failure(change, error)
            raise

    async def _done(
        self, name: str, record: AccountRecord | None, version: int, *, end_streams: bool
    ) -> AccountStored:
        """Publishes a change that is done; if the broker is away, readers find it with their next poll."""
        stored = None if record is None else StoredAccount(record=record, revision=version + 1)
        removed = name if record is None else ""
        news = AccountChanged(
            before=version, version=version + 1, put=stored, removed=removed, end_streams=end_streams
        )
        try:
            await self._bus.publish(subjects.ACCOUNT_CHANGED, encode(news))
        except RyzError as error:
            log.warning("change not published", subject=subjects.ACCOUNT_CHANGED, error=error.message)
        return AccountStored(stored=stored, version=version + 1)

    async def _enter(
        self, change: AccountChange, name: str, record: AccountRecord | None, owner: str
    ) -> None:
        await self.audit.add(
            AuditEntry(
                at_ms=time.time_ns() // 1_000_000,
                actor=change.actor,
                action="remove" if record is None else "put",
                subject=name,
                detail=rules.detail_of(record),
                tenant=owner,
            )
        )

    async def _enter_failure(self, change: AccountChange, error: RyzError) -> None:
        name = change.remove if change.put is None else change.put.name
        action = "refused" if isinstance(error, Conflict) else "failed"
        try:
            await self.audit.add(
                AuditEntry(
                    at_ms=time.time_ns() // 1_000_000,
                    actor=change.actor,
                    action=action,
                    subject=name,
                    detail=error.message[: rules.MAX_DETAIL],
                )
            )
        except RyzError as problem:
            log.warning("audit entry not written", error=problem.message)
