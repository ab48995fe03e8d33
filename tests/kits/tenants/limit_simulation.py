"""Holders of leases and a store in virtual time, without a bus."""

from dataclasses import dataclass, field
from random import Random

from services.kvstate.limits.store import PoolAsk, TakeAsk
from shared.accounts.register import AccountRegister
from shared.errors import RyzError
from shared.limits.book import LeaseBook, Needs
from shared.limits.refusals import over_limit
from shared.limits.windows import windows_around
from shared.messages import LeasedLimits, LeaseLimits, LimitLease, StoredAccount, TenantRecord
from tests.kits.kvstate.memory_limits import MemoryLimitStore


@dataclass
class World:
    """A clock, a store, and what it is asked."""

    wall_s: float
    store: MemoryLimitStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryLimitStore(lambda: self.wall_s)

    def lease(self, asked: LeaseLimits) -> LeasedLimits:
        """As the KV state service answers."""
        pools = []
        for pool in asked.pools:
            windows: tuple[int, ...] = ()
            if pool.window != "running":
                windows = windows_around(pool.window, int(self.wall_s * 1000), pool.time_zone)
            name = f"{pool.tenant}:{pool.key_id}:{pool.measure}:{pool.window}"
            pools.append(
                PoolAsk(name, pool.limit, pool.began_ms, pool.had, pool.ahead, windows, 0, pool.seen)
            )
        takes = [TakeAsk(take.count, take.pools, take.units) for take in asked.takes]
        found = self.store.lease_now(asked.holder, asked.number, pools, takes)
        leases = [
            LimitLease(granted=one.granted, left=one.left, began_ms=one.began_ms, ends_ms=one.ends_ms)
            for one in found.pools
        ]
        return LeasedLimits(leases=leases, now_ms=found.now_ms, holders=found.holders)


class SimulatedHolder:
    """One gateway: requests wait for the store for no time at all.

    Attributes:
        book: Its leases.
    """

    def __init__(self, world: World, name: str, record: TenantRecord) -> None:
        register = AccountRegister()
        register.replace_all([StoredAccount(record=record, revision=1)], 1)
        self.book = LeaseBook(register, name)
        self._world = world
        self._tenant = record.tenant

    def request(self, tokens: int = 1, used: int | None = None) -> RyzError | None:
        """Serves one request, or returns its refusal.

        Args:
            tokens: What it is estimated to use.
            used: What it really uses; None: the estimate.
        """
        now = self._world.wall_s
        party = self.book.party(self._tenant, "", now)
        needs: Needs = [
            (lease, tokens if lease.pool.name.measure == "tokens" else 1) for lease in party.leases
        ]
        short = self.book.take(needs, now)
        if short is not None:
            if short.is_short(dict(needs)[short], now):
                return over_limit(short.pool, short.ends_at - now)
            self.exchange([needs])
            if self.book.take(needs, now) is not None:
                lacking = self.book.note_lacking(needs, now)
                assert lacking is not None
                return over_limit(lacking.pool, lacking.ends_at - now)
        if used is not None:
            for lease, units in needs:
                if lease.pool.name.measure == "tokens":
                    self.book.owe(lease, used, now)
                    self.book.put_back([(lease, units, lease.began_ms)])
        return None

    def exchange(self, waiting: list[Needs] | None = None, *, lost: Random | None = None) -> None:
        """Tells and asks the store once; `lost`: the answer may be lost."""
        report = self.book.report(waiting or [], self._world.wall_s)
        if report is None:
            return
        answer = self._world.lease(report.message)
        if lost is None or lost.random() < 0.7:
            self.book.accept(report, answer)
