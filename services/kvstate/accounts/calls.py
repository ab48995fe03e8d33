"""The calls about tenants, keys and prices: changes, the whole, the audit log; and the news of changes.

An entry of the audit log is written before its change. If the change then fails, another entry says so.
"""

import asyncio
import time
from contextlib import suppress

import structlog

from services.kvstate.accounts import rules
from services.kvstate.accounts.store import AccountStore, AuditLog, ClosedMark, VersionMoved
from services.kvstate.accounts.table import AccountTable
from services.kvstate.call_server import CallKind
from shared import subjects
from shared.bus import Bus
from shared.bus.jetstream.errors import NoJetStream
from shared.codec import encode
from shared.errors import Conflict, RyzError, Unavailable
from shared.messages import (
    AccountChange,
    AccountChanged,
    AccountPage,
    AccountQuery,
    AccountRecord,
    AccountRules,
    AccountStored,
    AuditEntry,
    AuditPage,
    AuditQuery,
    StoredAccount,
)
from shared.messages.tenants.accounts import ACCOUNTS_EMPTIED

PAGE_BYTES = 256 * 1024
_TRIES = 20  # of a change, while other replicas write
log = structlog.get_logger(__name__)


class AccountCalls:
    """Answers the calls, and publishes changes to gateways and routers.

    Args:
        bus: Where changes are published.
        store: The records.
        audit: The log.
        mark: Says, where the broker has no JetStream, whether keys were required before.

    Attributes:
        audit: The log, for what other calls do to a tenant.
    """

    def __init__(self, bus: Bus, store: AccountStore, audit: AuditLog, mark: ClosedMark) -> None:
        self._bus = bus
        self._mark = mark
        self._was_closed = False  # as this replica read last
        self._was_open = False  # it has found neither a rule nor the mark
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
        try:
            table = await self._store.read()
        except NoJetStream:
            await self._check_open()
            raise
        if not query.cursor:
            await self._note_rule(table)
            await self._check_not_emptied(table)
        return table.page(query.cursor, PAGE_BYTES, query.known)

    async def _check_open(self) -> None:
        """Raises `Unavailable` if keys were required before the broker lost its JetStream, or may have been.

        Gateways take any other error as "not known", and refuse requests without a key.
        """
        try:
            closed = self._was_closed or await self._mark.stands()
        except Unavailable as error:
            raise Unavailable(
                f"the broker has no JetStream, and whether requests needed a key cannot be told: "
                f"{error.message}",
                reason="accounts_store",
            ) from None
        if closed:
            raise Unavailable(
                "requests needed a key, and the broker that kept tenants and keys has no JetStream now: give "
                "it back its `jetstream { store_dir: ... }` (docs/tenants.md has how to go on without keys)",
                reason="accounts_store",
            )

    async def _check_not_emptied(self, table: AccountTable) -> None:
        """Raises `Unavailable` if keys were required and the stream has no rule any more, or that may be.

        No change removes the rule: a stream without it was never used, or has lost its records.
        """
        if self._was_open or _rule_in(table) is not None:
            return
        if self._was_closed or await self._mark.stands():
            raise Unavailable(
                "requests needed a key, and the broker's stream of tenants and keys has lost its records: "
                "put back its data, or say what holds now: `ryz keys require off` or `ryz keys require on`",
                reason=ACCOUNTS_EMPTIED,
            )
        self._was_open = True

    async def _note_rule(self, table: AccountTable) -> None:
        rule = _rule_in(table)
        if rule is not None:  # a stream without one says nothing of what was before
            self._was_closed, self._was_open = rule.keys_required, False
            await self._mark.note(required=self._was_closed)

    async def _entries(self, query: AuditQuery) -> AuditPage:
        return AuditPage(entries=await self.audit.newest(query.before, query.count))

    async def _change(self, change: AccountChange) -> AccountStored:
        async with self._changing:
            table = await self._store.read()
            record = rules.checked(change, table, int(time.time()))
            closing = rules.rules_before(record, table)
            if closing is not None:
                await self._write(AccountChange(actor=change.actor, put=closing))
            done = await self._write(change)
            with suppress(RyzError):  # it is done; readers' calls note it, too
                await self._note_rule(await self._store.read())
            return done

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


def _rule_in(table: AccountTable) -> AccountRules | None:
    stored = table.stored(AccountRules().name)
    rule = None if stored is None else stored.record
    return rule if isinstance(rule, AccountRules) else None
