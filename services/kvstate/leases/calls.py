"""The call of routers about leases."""

from services.kvstate.call_server import CallKind
from services.kvstate.leases.store import LeaseStore
from shared import subjects
from shared.messages import LeaseClaim, LeaseHeld


class LeaseCalls:
    """Answers the call."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the call with its name, subject and type."""
        return (CallKind("claim_lease", subjects.LEASE, LeaseClaim, self._claim),)

    async def _claim(self, claim: LeaseClaim) -> LeaseHeld:
        held = await self._store.claim(claim.name, claim.holder, claim.ttl_ms, claim.heard_epoch)
        return LeaseHeld(holder=held.holder, epoch=held.epoch, ttl_ms=held.ttl_ms)
