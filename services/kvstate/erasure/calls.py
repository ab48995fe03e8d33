"""The call of gateways that erases what this service has of a tenant, a part at a time."""

import time
from collections.abc import Callable

import structlog

from services.kvstate.accounts.store import AuditLog
from services.kvstate.call_server import CallKind
from services.kvstate.erasure.tenant_blocks import TenantBlocks
from services.kvstate.responses.store import ResponseStore
from services.kvstate.sessions.calls import SessionCalls
from services.kvstate.sessions.store import SessionStore
from services.kvstate.usage.tenant_usage import TenantUsage
from shared import subjects
from shared.bus.jetstream.errors import NoJetStream
from shared.errors import SessionNotFound
from shared.messages import AuditEntry, SessionDelete, TenantErase, TenantErased

PAGE = 64
log = structlog.get_logger(__name__)


class ErasureCalls:
    """Answers the call.

    Sessions go one by one, as with a deletion by their tenant: their tombstones keep a leader that still has
    one in memory from storing it again. Then responses, then the blocks that no session holds any more.
    Meanwhile the replica that adds usage up takes the tenant's name off it.
    """

    def __init__(
        self,
        deletions: SessionCalls,
        sessions: SessionStore,
        responses: ResponseStore,
        blocks: TenantBlocks,
        audit: AuditLog,
        *,
        usage: TenantUsage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deletions = deletions
        self._sessions = sessions
        self._responses = responses
        self._blocks = blocks
        self._audit = audit
        self._usage = usage
        self._clock = clock

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the call with its name, subject and type."""
        return (CallKind("erase", subjects.TENANT_ERASE, TenantErase, self._erase),)

    async def _erase(self, call: TenantErase) -> TenantErased:
        tenant, until = call.tenant, self._clock() + call.for_ms / 1000
        if call.actor:
            await self._enter(call)
            await self._usage.begin_erasure(tenant)
        gone_sessions, sessions_left = await self._erase_sessions(tenant, until)
        gone_responses, responses_left = await self._erase_responses(tenant, until)
        blocks = num_bytes = 0
        while True:
            freed, blocks_left = await self._blocks.erase_some(tenant)
            blocks, num_bytes = blocks + freed.blocks, num_bytes + freed.num_bytes
            if not (blocks_left and freed.blocks) or self._clock() >= until:
                break
        usage = await self._usage.progress(tenant)
        return TenantErased(
            usage_sums=usage.sums,
            usage_records=usage.records,
            sessions=gone_sessions,
            responses=gone_responses,
            kv_blocks=blocks,
            kv_bytes=num_bytes,
            left=sessions_left or responses_left or blocks_left or usage.left,
        )

    async def _enter(self, call: TenantErase) -> None:
        """Writes the entry of the audit log before anything is erased."""
        entry = AuditEntry(
            at_ms=time.time_ns() // 1_000_000,
            actor=call.actor,
            action="erase",
            subject=f"tenant.{call.tenant}",
            tenant=call.tenant,
        )
        try:
            await self._audit.add(entry)
        except NoJetStream as error:  # such a broker has no log, and the data goes all the same
            log.warning("audit entry not written", error=error.message)

    async def _erase_sessions(self, tenant: str, until: float) -> tuple[int, bool]:
        gone = 0
        while page := (await self._sessions.list_page(tenant, PAGE, None)).sessions:
            for session in page:
                if self._clock() >= until:
                    return gone, True
                try:
                    await self._deletions.delete(SessionDelete(tenant=tenant, session_id=session.session_id))
                except SessionNotFound:
                    continue  # it was deleted meanwhile
                gone += 1
        return gone, False

    async def _erase_responses(self, tenant: str, until: float) -> tuple[int, bool]:
        gone = 0
        while ids := await self._responses.ids_of(tenant, PAGE):
            for response_id in ids:
                if self._clock() >= until:
                    return gone, True
                gone += await self._responses.delete(tenant, response_id)
        return gone, False
