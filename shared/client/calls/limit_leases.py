"""Keeps leases of limits at the KV state service, ahead of the requests of this process.

A request takes its units in memory; one for which too few are here waits for the store, for a bounded time.
While the store is away, minutes and running requests go on with this process's share; days, months and money
with what was leased.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress

import structlog

from shared import subjects
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.limits.book import LeaseBook, Needs, Party, Report
from shared.limits.lease import TICK_S, Lease
from shared.limits.refusals import limits_away, over_limit
from shared.messages import LeasedLimits

WAIT_S = 0.5  # a request waits for the store at most so long; then its limits count as away
CALL_S = 2.0  # the service's own limit for an exchange with Redis is shorter, and it answers then
RETRY_S = 0.5
PRESENCE_S = 20.0  # so that the share of a minute is known when the store goes away
log = structlog.get_logger(__name__)


class _Waiting:
    """A request that waits for the store."""

    __slots__ = ("done", "needs")

    def __init__(self, needs: Needs, done: asyncio.Future[None]) -> None:
        self.needs = needs
        self.done = done


class LimitLeases:
    """Run `keep` as a task.

    Args:
        bus: To the KV state service.
        register: Has the limits.
        instance_id: Of this process.
        clock: Seconds on a clock that only grows.

    Attributes:
        book: The leases.
        is_local: The store does not answer, and limits are counted here alone.
    """

    def __init__(
        self,
        bus: Bus,
        register: AccountRegister,
        instance_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # a restarted process is another holder: its numbers begin anew
        holder = f"{instance_id[:40].replace('.', '-')}-{os.urandom(6).hex()}"
        self.book = LeaseBook(register, holder)
        self.is_local = False
        self._bus = bus
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._heard_at = self._retry_at = float("-inf")

    def party(self, tenant: str, key_id: str) -> Party:
        """Returns the limits of a tenant's requests with that key; empty: without one."""
        had_limits = self.book.has_limits
        party = self.book.party(tenant, key_id, self._clock())
        if self.book.has_limits and not had_limits:
            self._wake.set()  # from now on `keep` looks at regular times, also if nothing is ever taken
        return party

    def take(self, needs: Needs) -> Awaitable[None] | None:
        """Takes units for a request, all of them or none.

        Returns:
            None if that is done; else what is to be awaited, which raises the same errors.

        Raises:
            RateLimited: A limit of requests or tokens has not enough left.
            QuotaUsedUp: One of money.
            Unavailable: The limit cannot be counted now: reason `limits_away`.
        """
        now = self._clock()
        if self.book.take(needs, now) is None:
            for lease, _ in needs:
                if lease.held < lease.low and now >= lease.ahead_at:
                    self._wake.set()
            return None
        self._refuse_short(needs, now)
        if self.is_local:
            self._take_local(needs)
            return None
        return self._wait(needs)

    def check(self, party: Party, *, spends: bool) -> None:
        """Raises like `take` if a request of this party would be refused without asking; takes nothing.

        Running requests are not looked at: what resumes or ends one of them is no further one.

        Args:
            party: Whose request it is.
            spends: It takes tokens; else only limits of requests are looked at.
        """
        now = self._clock()
        for lease in party.leases:
            counts = lease.pool.name.measure == "requests" or (spends and not lease.is_running)
            if counts and lease.held < 1 and lease.is_short(1, now):
                raise over_limit(lease.pool, lease.ends_at - now)

    def count(self, needs: Needs) -> None:
        """Counts a request that cannot wait; raises like `take` if a limit is known to have nothing left."""
        now = self._clock()
        if self.book.take(needs, now) is None:
            return
        self._refuse_short(needs, now)
        if self.is_local:
            self._take_local(needs)
            return
        for lease, units in needs:
            self.book.owe(lease, units, now)
        self._wake.set()

    def put_back(self, taken: Iterable[tuple[Lease, int, int]]) -> None:
        """Takes units back that a request did not use; see `LeaseBook.put_back`."""
        self.book.put_back(taken)

    def owe(self, lease: Lease, units: int) -> None:
        """Counts units that were used."""
        self.book.owe(lease, units, self._clock())

    async def keep(self) -> None:
        """Asks for units and gives them back, until it is cancelled."""
        while True:
            await self._next_round()
            now = self._clock()
            if now < self._retry_at:
                continue
            report = self.book.report([one.needs for one in self._waiting], now)
            if report is None:
                due_at = self._heard_at + (RETRY_S if self.is_local else PRESENCE_S)
                if not self.book.has_limits or now < due_at:
                    continue
                report = self.book.presence(now)
            await self._send(report)

    async def give_back(self) -> None:
        """Tells the store that this process uses nothing more of what it holds."""
        report = self.book.final_report(self._clock())
        if report is not None and not self.is_local:
            await self._send(report)

    def _refuse_short(self, needs: Needs, now: float) -> None:
        """Raises if the store had too little a moment ago."""
        for lease, units in needs:
            if lease.held < units and lease.is_short(units, now):
                raise over_limit(lease.pool, lease.ends_at - now)

    async def _next_round(self) -> None:
        try:
            async with asyncio.timeout(TICK_S if self.book.has_limits else None):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _send(self, report: Report) -> None:
        asked = [one for position, one in enumerate(self._waiting) if position in report.asked]
        try:
            answer = await call(
                self._bus, subjects.LEASE_LIMITS, report.message, LeasedLimits, timeout_s=CALL_S
            )
        except RyzError as error:
            self._retry_at = self._clock() + RETRY_S
            self._note_away(error.message)
        else:
            self._note_back()
            self.book.accept(report, answer)
        self._serve(asked)

    def _note_away(self, problem: str) -> None:
        if not self.is_local:
            log.warning("limits are counted here alone", error=problem)
        self.is_local = True

    def _note_back(self) -> None:
        self._heard_at = self._clock()
        if self.is_local:
            log.info("limits are leased again")
        self.is_local = False

    def _serve(self, asked: list[_Waiting]) -> None:
        """Lets requests pass for which there are units now, and refuses those that the store had none for."""
        now, rest = self._clock(), []
        for one in self._waiting:
            if one.done.done():
                continue
            if self.is_local:
                self._end_locally(one)
                continue
            if self.book.take(one.needs, now) is None:
                one.done.set_result(None)
                continue
            lacking = self.book.note_lacking(one.needs, now) if one in asked else None
            if lacking is None:
                rest.append(one)
            else:
                one.done.set_exception(over_limit(lacking.pool, lacking.ends_at - now))
        self._waiting = rest
        if rest:
            self._wake.set()

    async def _wait(self, needs: Needs) -> None:
        loop = asyncio.get_running_loop()
        one = _Waiting(needs, loop.create_future())
        timer = loop.call_later(WAIT_S, self._give_up, one)
        self._waiting.append(one)
        self._wake.set()
        try:
            await one.done
        except asyncio.CancelledError:
            if one.done.done() and not one.done.cancelled() and one.done.exception() is None:
                self.book.put_back([(lease, units, lease.began_ms) for lease, units in needs])
            raise
        finally:
            timer.cancel()

    def _give_up(self, one: _Waiting) -> None:
        if not one.done.done():
            self._note_away(f"no answer within {WAIT_S:g} s")
            self._end_locally(one)

    def _end_locally(self, one: _Waiting) -> None:
        if one.done.done():
            return
        try:
            self._take_local(one.needs)
        except RyzError as error:
            one.done.set_exception(error)
        else:
            one.done.set_result(None)

    def _take_local(self, needs: Needs) -> None:
        """Takes units without the store; raises like `take`."""
        now, wall_ms = self._clock(), int(time.time() * 1000)
        for lease, units in needs:
            lease.end_window(now)
            if lease.held < units and lease.pool.name.window in {"minute", "running"}:
                lease.take_local(now, wall_ms, self.book.holders)
        short = self.book.take(needs, now)
        if short is None:
            return
        if short.pool.name.window in {"minute", "running"}:
            raise over_limit(short.pool, short.ends_at - now)
        raise limits_away(short.pool)


async def kept_leases(
    bus: Bus, register: AccountRegister, instance_id: str, stack: AsyncExitStack
) -> LimitLeases:
    """Leases that are kept until the stack closes; then what is not used is given back."""
    leases = LimitLeases(bus, register, instance_id)
    keeping = asyncio.create_task(leases.keep())

    async def end() -> None:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await leases.give_back()

    stack.push_async_callback(end)
    return leases
