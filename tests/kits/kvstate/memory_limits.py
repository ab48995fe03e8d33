"""A store of limits in memory: the plain form of the contract."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.kvstate.limits.store import HOLD_MS, HOLDER_MS, Leased, PoolAsk, PoolLease, TakeAsk
from shared.limits.portions import ahead_of, fitting


@dataclass
class _Counted:
    """What holders have of one limit in one window."""

    had: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    ends_ms: dict[str, int] = field(default_factory=dict)
    used: int = 0
    unknown: int = 0


@dataclass
class _Open:
    """A limit during one call."""

    ask: PoolAsk
    counted: _Counted
    began_ms: int
    ends_ms: int
    had: int
    left: int
    late: bool
    granted: int = 0

    def grant(self, units: int) -> None:
        self.granted += units
        self.left -= units


class MemoryLimitStore:
    """Implements `LimitStore`; `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float], hold_ms: int = HOLD_MS) -> None:
        self.clock = clock
        self._hold_ms = hold_ms
        self._counted: dict[tuple[str, int], _Counted] = {}
        self._seen: dict[str, int] = {}

    def flush(self) -> None:
        """Loses all contents."""
        self._counted.clear()
        self._seen.clear()

    def total(self, name: str, began_ms: int) -> int:
        """What all holders have of a limit in one window."""
        return sum(self._counted.get((name, began_ms), _Counted()).had.values())

    def running(self, name: str) -> dict[str, int]:
        """What each holder that is there has running of a limit."""
        counted, now = self._counted.get((name, 0), _Counted()), int(self.clock() * 1000)
        return {one: had for one, had in counted.had.items() if had and counted.ends_ms[one] > now}

    async def lease(
        self, holder: str, number: int, pools: Sequence[PoolAsk], takes: Sequence[TakeAsk]
    ) -> Leased:
        """See `LimitStore.lease`."""
        return self.lease_now(holder, number, pools, takes)

    def lease_now(
        self, holder: str, number: int, pools: Sequence[PoolAsk], takes: Sequence[TakeAsk]
    ) -> Leased:
        """Like `lease`, for simulations in virtual time."""
        now = int(self.clock() * 1000)
        self._seen = {name: at for name, at in self._seen.items() if at > now - HOLDER_MS}
        self._seen[holder] = now
        opened = [self._open(holder, number, pool, now) for pool in pools]
        for take in takes:
            parts = [opened[position] for position in take.pools]
            count = fitting(take.requests, [part.left for part in parts], list(take.units))
            if any(part.late for part in parts):
                count = 0
            for part, units in zip(parts, take.units, strict=True):
                part.grant(count * units)
        for pool in opened:
            if pool.late:
                continue
            pool.grant(ahead_of(pool.ask.ahead, pool.left, len(self._seen)))
            pool.counted.had[holder] = pool.had + pool.granted
            pool.counted.numbers[holder] = number
            pool.counted.ends_ms[holder] = now + self._hold_ms
        leases = [PoolLease(one.granted, max(0, one.left), one.began_ms, one.ends_ms) for one in opened]
        return Leased(leases, now, len(self._seen))

    async def close(self) -> None:
        """See `LimitStore.close`."""

    def _open(self, holder: str, number: int, ask: PoolAsk, now: int) -> _Open:
        began_ms, ends_ms, had, used = 0, 0, ask.had, ask.used
        if ask.windows:
            which = 0 if now < ask.windows[1] else 2 if now >= ask.windows[2] else 1
            began_ms, ends_ms = ask.windows[which], ask.windows[which + 1]
            used = ask.used if which == 1 else 0
            had = ask.had if ask.began_ms in {0, began_ms} else 0
        counted = self._counted.setdefault((ask.name, began_ms), _Counted())
        late = counted.numbers.get(holder, 0) > number
        if late:
            had = counted.had[holder]
        if not ask.windows:
            gone = [name for name, ends in counted.ends_ms.items() if ends <= now and name != holder]
            for name in gone:
                del counted.had[name], counted.ends_ms[name], counted.numbers[name]
        counted.used = max(counted.used, used)
        if ask.windows:
            if not counted.had:  # a new window, or the store has lost its contents
                counted.unknown = max(ask.seen if ask.began_ms == began_ms else 0, had)
            if holder not in counted.had:
                counted.unknown = max(0, counted.unknown - had)
        total = sum(counted.had.values()) - counted.had.get(holder, 0) + had + counted.unknown
        left = ask.limit - max(total, counted.used)
        return _Open(ask, counted, began_ms, ends_ms, had, left, late)
