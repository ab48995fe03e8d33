"""Ends answers under way of a key that was revoked, or of a tenant that was suspended, if that was asked for.

New requests need nothing of this: they are refused as soon as the copy of the register has the change.
"""

import time
from collections.abc import Callable

import structlog

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.answering.context import GatewayContext
from shared.messages import AccountChanged, GenerateRequest, KeyRecord, TenantRecord

_KEY = "key."  # the kind in the name of a record
IsMeant = Callable[[GenerateRequest], bool]
log = structlog.get_logger(__name__)


class RevokedKeys:
    """Hears of changes of the register.

    Args:
        context: Has the answers under way.
        enders: End generations that run without a caller here, and return how many.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        context: GatewayContext,
        enders: tuple[Callable[[IsMeant], int], ...],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._enders = enders
        self._now = now

    def on_change(self, change: AccountChanged) -> None:
        """Called with each change once the copy of the register has it."""
        if not change.end_streams:
            return
        record = None if change.put is None else change.put.record
        if record is None and change.removed.startswith(_KEY):
            self._end_key(change.removed.removeprefix(_KEY))
        elif isinstance(record, KeyRecord) and 0 < record.expires_s <= self._now():
            self._end_key(record.key_id)
        elif isinstance(record, TenantRecord) and record.suspended:
            refusal = HttpRefusal(403, "tenant_suspended", f"the tenant {record.tenant!r} was suspended")
            self._end("", record.tenant, refusal)

    def _end_key(self, key_id: str) -> None:
        self._end(key_id, "", HttpRefusal(401, "key_revoked", "the API key was revoked"))

    def _end(self, key_id: str, tenant: str, reason: HttpRefusal) -> None:
        """Ends the answers of a key, or of a tenant."""
        ended = 0
        for answer in tuple(self._context.running):
            if answer.is_of(key_id, tenant):
                answer.abort(reason)
                ended += 1

        def is_meant(request: GenerateRequest) -> bool:
            return request.key_id == key_id if key_id else request.tenant == tenant

        ended += sum(end(is_meant) for end in self._enders)
        self._context.metrics.revoked_streams.inc(ended)
        log.info(
            "answers of a key or tenant ended", reason=reason.code, key_id=key_id, tenant=tenant, ended=ended
        )
