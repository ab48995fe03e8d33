"""When silence proves something: what a router that was held up, or cut off, may say of groups.

A router sends itself a message with each tick of its clock. The broker delivers in order, so when that echo
is back, everything has been read that the broker had for this router when it was sent: who was not heard
before had not spoken by then, however much waited in sockets and queues. Two things remain. Ticks that come
late show that this process, and likely the machine, stood still: that time is nobody's silence. And after the
broker was away groups may come back to it later than this router: nobody is silent before that.
"""

import math

_LATE = 2.0  # ticks


class Listening:
    """Pure; `now` is monotonic seconds. settle_s: how long groups may take to come back to the broker."""

    def __init__(self, tick_s: float, settle_s: float, now: float, restored_at: float = -math.inf) -> None:
        self._tick_s = tick_s
        self._settle_s = settle_s
        self._ticked_at = now
        self.trusted_from = now
        self._restored_at = restored_at  # by the bus, on whatever clock: only its changes count
        self._heard_at = now

    def tick(self, now: float, connected: bool, restored_at: float) -> float:
        """To be called every `tick_s`; the seconds by which this call is late, 0 when it is on time."""
        gap, self._ticked_at = now - self._ticked_at, now
        if not connected or restored_at != self._restored_at:
            self._restored_at = restored_at
            self.trusted_from = now + self._settle_s
            self._heard_at = now
        late = gap - self._tick_s if gap > _LATE * self._tick_s else 0.0
        self._heard_at += late  # the echo had no time to come, either
        return late

    def proof(self, sent_at: float, now: float) -> float | None:
        """The echo sent at `sent_at` is here: the moment up to which silence counts; None: none counts."""
        self._heard_at = max(self._heard_at, now)
        return sent_at if sent_at >= self.trusted_from else None

    def deaf_s(self, now: float) -> float:
        """For so long no echo has come back, though the broker is connected."""
        return now - self._heard_at
