"""What one process has leased of one limit: it takes for requests, owes, gives back, asks for more. Pure.

Times are seconds on a clock that only grows; windows are named by when they begin by the store's clock. All
that a lease had of a window is void at its end.
"""

import math

from shared.limits.pools import Pool
from shared.limits.windows import window_at
from shared.messages.tenants.limits import LimitLease, LimitPool

AHEAD_S = 0.5  # a portion lasts for so long at the observed rate
TICK_S = 0.25  # rates are measured over at least so long
RECHECK_S = 1.0  # so long after the store had none left it is not asked again: others may give some back
PROLONG_S = 3.0  # running requests are reported at least so often
SPARE_PARTS = (
    100  # one request's units are kept ahead if they are at most such a part of the limit, everywhere
)
SPARE_S = 30.0  # a process without requests for so long gives that back as well
FOREVER = math.inf


class Lease:
    """The lease of one limit.

    Attributes:
        pool: The limit.
        held: Units that are not used; below 0: used without being leased.
        had: Units that the store is to count for this process in the window, used or not.
        left: Units that no process has, as the store said last; below 0: not known.
        began_ms: The window; 0: it is not known yet, or units are held and not used up.
        ends_at: When the window ends; -inf: no window is known.
        low: Below so many units it is time to ask for more.
        ahead_at: From then on; the store had not enough shortly before.
        typical: Units that a request used lately.
    """

    __slots__ = (
        "_alone", "_asked", "_measured_at", "_rate", "_reported_at", "_short_units", "_short_until", "_taken",
        "_used_at", "ahead_at", "began_ms", "ends_at", "had", "held", "left", "low", "pool", "typical",
    )  # fmt: skip

    def __init__(self, pool: Pool, now: float) -> None:
        self.pool = pool
        self.held = 0
        self.had = 0
        self.left = -1
        self.began_ms = 0
        self.ends_at = -math.inf
        self.low = 0
        self.ahead_at = -math.inf
        self.typical = 0
        self._alone = 0  # units taken without the store since it was asked last
        self._asked = 0
        self._rate = 0.0
        self._taken = 0
        self._measured_at = self._used_at = now
        self._reported_at = -math.inf
        self._short_until = -math.inf
        self._short_units = 0

    @property
    def is_running(self) -> bool:
        """Whether units are held by requests and come back, rather than being used up."""
        return self.pool.name.window == "running"

    @property
    def remaining(self) -> int:
        """What this process could use now, as far as it knows."""
        left = self.pool.limit if self.left < 0 else self.left
        return max(0, min(self.pool.limit, self.held + left))

    def end_window(self, now: float) -> None:
        """Forgets a window that has ended."""
        if now >= self.ends_at > -math.inf:
            self.held = self.had = self.began_ms = self._alone = 0
            self.left, self.ends_at = -1, -math.inf
            self._short_until = -math.inf

    def take(self, units: int) -> None:
        """Takes units for a request; there must be as many."""
        self.held -= units
        self._taken += units
        if units:
            self.typical = units

    def put_back(self, units: int, began_ms: int) -> None:
        """Takes units back that were taken in the window `began_ms`; those of an earlier one are void."""
        if began_ms == self.began_ms:
            self.held += units

    def owe(self, units: int) -> None:
        """Counts units that were used, whatever is held."""
        self.held -= units
        self._taken += units
        if units:
            self.typical = units

    def is_short(self, units: int, now: float) -> bool:
        """Whether the store had less than that a moment ago, so that it need not be asked."""
        return now < self._short_until and units >= self._short_units

    def note_short(self, units: int, now: float) -> None:
        """The store has less than `units` left."""
        if now >= self._short_until or units < self._short_units:
            self._short_units = units
        self._short_until = min(self.ends_at, now + RECHECK_S)

    def take_local(self, now: float, wall_ms: int, holders: int) -> None:
        """Takes this process's even share of a minute, or of running requests, without the store."""
        self.end_window(now)
        if self.is_running:
            self.ends_at = FOREVER
        elif self.ends_at == -math.inf:
            window = window_at("minute", wall_ms, "UTC")
            self.began_ms = window.began_ms
            self.ends_at = now + (window.ends_ms - wall_ms) / 1000
        share = max(1, self.pool.limit // holders) - self.had
        if self.left >= 0:
            share = min(share, math.ceil(self.left / holders))
        if share > 0:
            self.held += share
            self.had += share
            self._alone += share
            self.left = max(0, self.left - share) if self.left >= 0 else -1

    def measure(self, now: float, holders: int) -> None:
        """Follows the rate at which units are taken, and what is to be held ahead of requests."""
        passed_s = now - self._measured_at
        if passed_s < TICK_S:
            return
        rate = self._taken / passed_s
        self._rate = rate if rate > self._rate else (rate + self._rate) / 2
        if self._rate * AHEAD_S < 0.5 and rate == 0.0:
            self._rate = 0.0
        self._taken, self._measured_at = 0, now
        if rate:
            self._used_at = now
        self.low = math.ceil(self._target(now, holders) / 2)

    def report(self, now: float, holders: int, needed: int) -> LimitPool | None:
        """Returns what the store is to be told, or asked for; None: nothing.

        What is given back is gone from here at once, whether the store hears of it or not.

        Args:
            now: The time.
            holders: Processes that lease.
            needed: Units that waiting requests need, with those that are held.
        """
        self.measure(now, holders)
        target = self._target(now, holders)
        free = self.held - needed
        asks = free < self.low and now >= self.ahead_at and not self.is_short(1, now)
        wanted = target - max(0, free) if asks else 0
        surplus = free - target if free > 2 * target else 0
        missing = max(0, needed - max(0, self.held))
        prolong = self.is_running and self.had > 0 and now - self._reported_at >= PROLONG_S
        if not (missing > 0 or wanted > 0 or surplus > 0 or self.held < 0 or prolong):
            return None
        if surplus > 0:
            self.held -= surplus
            self.had -= surplus
        if self.held < 0:  # counted from now on
            self.had -= self.held
            self.held = 0
        self._reported_at, self._asked, self._alone = now, missing + wanted, 0
        pool, seen = self.pool, 0 if self.left < 0 or self.is_running else max(0, self.pool.limit - self.left)
        if self.left >= 0:
            self.left += max(0, surplus)  # without an answer, this process may take it again
        return LimitPool(
            tenant=pool.name.tenant,
            key_id=pool.name.key_id,
            measure=pool.name.measure,
            window=pool.name.window,
            limit=pool.limit,
            time_zone=pool.time_zone,
            began_ms=self.began_ms,
            had=max(0, self.had),
            seen=seen,
            ahead=max(0, wanted),
        )

    def accept(self, lease: LimitLease, sent_at: float, now_ms: int) -> None:
        """Takes in the answer of the store to a report.

        What was taken alone while the answer was on its way is a part of what it grants, whatever minute
        this process took it for.

        Args:
            lease: The answer.
            sent_at: When the report was sent: the window ends rather too early than too late here.
            now_ms: The store's time.
        """
        alone, self._alone = self._alone, 0
        if self.is_running:
            self.ends_at = FOREVER
        elif lease.began_ms != self.began_ms:
            if self.began_ms:
                self.held, self.had = max(0, min(self.held, alone)), alone
            self.began_ms = lease.began_ms
        if not self.is_running:
            self.ends_at = sent_at + (lease.ends_ms - now_ms) / 1000
        granted = max(0, lease.granted - alone)
        self.held += granted
        self.had += granted
        self.left = lease.left
        if lease.granted < self._asked:
            self.ahead_at = sent_at + TICK_S
        if lease.left == 0 and self.held <= 0:
            self.note_short(1, sent_at)

    def idle(self) -> None:
        """No more requests come: nothing is to be held ahead of them."""
        self._rate, self._taken, self.typical, self.low = 0.0, 0, 0, 0

    def is_idle(self) -> bool:
        """Whether nothing needs to be told or asked until the next request."""
        busy = self._rate > 0.0 or self._taken > 0
        return not busy and self.held == 0 and not (self.is_running and self.had > 0)

    def _target(self, now: float, holders: int) -> int:
        ahead = math.ceil(self._rate * AHEAD_S)
        spare = self.typical if self.typical * SPARE_PARTS * holders <= self.pool.limit else 0
        if now - self._used_at > SPARE_S:
            spare = 0
        return min(self.pool.limit, max(ahead, spare))
