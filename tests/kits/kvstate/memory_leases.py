"""A store of leases in memory: the plain form of the contract."""

from collections.abc import Callable

from services.kvstate.leases.store import LeaseState


class MemoryLeaseStore:
    """Implements `LeaseStore`; `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leases: dict[str, tuple[str, int, float, float]] = {}

    async def claim(self, name: str, holder: str, ttl_ms: int, heard_epoch: int = 0) -> LeaseState:
        """See `LeaseStore.claim`."""
        now = self._clock()
        had, epoch, ends, most_s = self._leases.get(name, ("", 0, 0.0, 60.0))
        ends = min(ends, now + most_s)
        if ends <= now:
            had = ""
        if had not in ("", holder):
            return LeaseState(had, epoch, int((ends - now) * 1000))
        if ttl_ms == 0:
            self._leases[name] = "", epoch, 0.0, most_s
            return LeaseState("", epoch, 0)
        if not had:
            epoch = max(epoch + 1, int(now * 1000), heard_epoch + 1)
        elif epoch < heard_epoch:
            epoch = heard_epoch + 1
        self._leases[name] = holder, epoch, now + ttl_ms / 1000, ttl_ms / 1000
        return LeaseState(holder, epoch, ttl_ms)

    async def close(self) -> None:
        """See `LeaseStore.close`."""
