"""All leases of one process, and the requests that count for them. Pure: the time is an argument.

A request takes units of several limits at once, all of them or none. `report` makes the message for the
store, and `accept` takes in its answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shared.accounts.register import AccountRegister
from shared.limits.lease import Lease
from shared.limits.pools import Pool, PoolName, pools_of
from shared.messages.tenants.limits import (
    MAX_POOLS,
    MAX_TAKES,
    LeasedLimits,
    LeaseLimits,
    LimitPool,
    LimitTake,
    Measure,
)

MAX_PARTIES = 20_000  # tenants and keys whose limits are remembered; more of them begin anew
Needs = Sequence[tuple[Lease, int]]


class Party:
    """The limits of the requests of a tenant with one of its keys, or without.

    Attributes:
        leases: All of them.
        by_measure: The same by what they measure.
        of_requests: What each request needs of those that count requests.
    """

    __slots__ = ("by_measure", "leases", "of_requests")

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = tuple(leases)
        self.by_measure: dict[Measure, tuple[Lease, ...]] = {
            measure: tuple(lease for lease in leases if lease.pool.name.measure == measure)
            for measure in ("requests", "tokens", "money", "running")
        }
        counted = (*self.by_measure["requests"], *self.by_measure["running"])
        self.of_requests = tuple((lease, 1) for lease in counted)

    def tightest(self, measure: Measure) -> Lease | None:
        """The limit of which least remains; None: there is none."""
        leases = self.by_measure[measure]
        if len(leases) < 2:
            return leases[0] if leases else None
        return min(leases, key=_remaining)


def _remaining(lease: Lease) -> int:
    return lease.remaining


NO_LIMITS = Party(())


class Report(NamedTuple):
    """A message on its way to the store.

    Attributes:
        leases: Those of its pools.
        asked: Positions of the waiting requests that are among its takes.
    """

    message: LeaseLimits
    leases: list[Lease]
    asked: set[int]
    sent_at: float


class LeaseBook:
    """The leases of one process.

    Args:
        register: Has the limits.
        holder: Names the process, and no process before.

    Attributes:
        holders: Processes that lease, as the store said last.
    """

    def __init__(self, register: AccountRegister, holder: str) -> None:
        self.holders = 1
        self._register = register
        self._holder = holder
        self._leases: dict[PoolName, Lease] = {}
        self._touched: dict[Lease, None] = {}
        self._parties: dict[tuple[str, str], Party] = {}
        self._parties_at = -1
        self._number = 0

    def party(self, tenant: str, key_id: str, now: float) -> Party:
        """Returns the limits that requests of a tenant and key count for."""
        if self._parties_at != self._register.changed_at:
            self._parties_at = self._register.changed_at
            self._parties.clear()
        found = self._parties.get((tenant, key_id))
        if found is None:
            if len(self._parties) >= MAX_PARTIES:
                self._parties.clear()
                self._leases = {name: one for name, one in self._leases.items() if one.had or one.held}
            found = self._parties[tenant, key_id] = self._new_party(tenant, key_id, now)
        return found

    @property
    def has_limits(self) -> bool:
        """Whether any lease was needed so far."""
        return bool(self._leases)

    def take(self, needs: Needs, now: float) -> Lease | None:
        """Takes units for one request; returns the limit that is short, None if all were taken.

        Args:
            needs: What of each limit, at least one unit.
            now: The time.
        """
        for lease, units in needs:
            if lease.held < units or now >= lease.ends_at:
                lease.end_window(now)
                self._touched[lease] = None
                return lease
        for lease, units in needs:
            lease.take(units)
            self._touched[lease] = None
        return None

    def note_lacking(self, needs: Needs, now: float) -> Lease | None:
        """Returns the limit of which the store had too little for a request, after it was asked.

        None: it has enough of all, and is to be asked again.
        """
        for lease, units in needs:
            if 0 <= lease.left < units - max(0, lease.held):
                lease.note_short(units, now)
                return lease
        return None

    def put_back(self, taken: Iterable[tuple[Lease, int, int]]) -> None:
        """Takes units back that a request did not use: lease, units, and the window of which they were."""
        for lease, units, began_ms in taken:
            lease.put_back(units, began_ms)
            self._touched[lease] = None

    def owe(self, lease: Lease, units: int, now: float) -> None:
        """Counts units that were used, whatever is held of them."""
        lease.end_window(now)
        lease.owe(units)
        self._touched[lease] = None

    def report(self, waiting: Sequence[Needs], now: float) -> Report | None:
        """Makes a message for the store; None if there is nothing to tell or to ask.

        Args:
            waiting: What requests wait for, in their order.
            now: The time.
        """
        needed: dict[Lease, int] = {}
        asked: set[int] = set()
        kinds: dict[tuple[tuple[Lease, int], ...], int] = {}
        for position, needs in enumerate(waiting):
            for lease, _ in needs:
                lease.end_window(now)
            short = tuple(_missing(needs, needed))
            if short and short not in kinds:
                if len(kinds) >= MAX_TAKES or len({*needed, *(lease for lease, _ in short)}) > MAX_POOLS:
                    continue
                kinds[short] = 0
            for lease, units in needs:
                needed[lease] = needed.get(lease, 0) + units
            if short:
                kinds[short] += 1
            asked.add(position)
        pools: dict[Lease, tuple[int, LimitPool]] = {}
        for lease in [*needed, *(one for one in self._touched if one not in needed)]:
            if len(pools) >= MAX_POOLS:
                break
            lease.end_window(now)
            found = lease.report(now, self.holders, needed.get(lease, 0))
            if found is not None:
                pools[lease] = len(pools), found
            elif lease.is_idle():
                self._touched.pop(lease, None)
        if not pools:
            return None
        takes = [
            LimitTake(
                count=count,
                pools=[pools[lease][0] for lease, _ in kind],
                units=[units for _, units in kind],
            )
            for kind, count in kinds.items()
        ]
        self._number += 1
        message = LeaseLimits(
            holder=self._holder,
            number=self._number,
            pools=[pool for _, pool in pools.values()],
            takes=takes,
        )
        return Report(message, list(pools), asked, now)

    def presence(self, now: float) -> Report:
        """Makes a message that says only that this process is there."""
        self._number += 1
        return Report(LeaseLimits(holder=self._holder, number=self._number), [], set(), now)

    def final_report(self, now: float) -> Report | None:
        """Makes a message that gives back all that is not used; None if there is nothing."""
        for lease in self._leases.values():
            lease.end_window(now)
            if lease.held > 0:
                lease.idle()
                self._touched[lease] = None
        return self.report([], now)

    def accept(self, report: Report, answer: LeasedLimits) -> None:
        """Takes in the answer of the store."""
        self.holders = answer.holders
        for lease, found in zip(report.leases, answer.leases, strict=True):
            lease.accept(found, report.sent_at, answer.now_ms)

    def _new_party(self, tenant: str, key_id: str, now: float) -> Party:
        record = self._register.tenant(tenant)
        time_zone = record.time_zone if record is not None else "UTC"
        pools: list[Pool] = []
        if record is not None:
            pools += pools_of(record.limits, tenant, "", time_zone)
        key = self._register.key(key_id) if key_id else None
        if key is not None:
            pools += pools_of(key.limits, tenant, key_id, time_zone)
        return Party([self._lease(pool, now) for pool in pools]) if pools else NO_LIMITS

    def _lease(self, pool: Pool, now: float) -> Lease:
        lease = self._leases.get(pool.name)
        if lease is None:
            lease = self._leases[pool.name] = Lease(pool, now)
        lease.pool = pool
        return lease


def _missing(needs: Needs, needed: dict[Lease, int]) -> Iterator[tuple[Lease, int]]:
    """What a request lacks after those before it, which need `needed`."""
    for lease, units in needs:
        free = max(0, lease.held - needed.get(lease, 0))
        if units > free:
            yield lease, units - free
