"""Decides up to when the silence of groups counts, for a router that may itself have been held up. Pure.

A router sends itself a message with each tick of its clock. The broker delivers in order, so when that echo
is back, the router has read everything that the broker had for it when the echo was sent: a group that was
not heard before had not spoken by then. Two cases are left. Ticks that come late show that this process, and
likely the machine, stood still; that time does not count as silence. After the broker was away groups may
come back to it later than this router; until then no silence counts.

A broker that waited for a core reads its connections one after another when it goes on, so an echo may
overtake heartbeats that were sent before it. How long echoes took lately says by how much.
"""

import math

_LATE_TICKS = 2.0
_DELAY_TIME_S = 60.0  # after which a delay of the broker no longer counts


class SelfEchoMonitor:
    """Follows the ticks and echoes of one router. `now` is monotonic seconds everywhere.

    Attributes:
        silence_counts_from: Before that time groups may still be coming back to the broker.
        late_total_s: All the time by which ticks were late so far; to be sent with an echo.
    """

    def __init__(self, tick_s: float, settle_s: float, now: float, restored_at: float = -math.inf) -> None:
        """Starts to listen.

        Args:
            tick_s: The interval of `on_tick`.
            settle_s: How long groups may take to come back to the broker.
            restored_at: When the connection was restored, on whatever clock: only its changes count.
        """
        self.silence_counts_from = now
        self._tick_s = tick_s
        self._settle_s = settle_s
        self._ticked_at = now
        self._restored_at = restored_at
        self._echo_at = now
        self.late_total_s = 0.0
        self._delay_s, self._delayed_at = 0.0, now

    def on_tick(self, now: float, connected: bool, restored_at: float) -> float:
        """A tick; returns the seconds by which it is late, 0 if it is on time."""
        gap_s, self._ticked_at = now - self._ticked_at, now
        if not connected or restored_at != self._restored_at:
            self._restored_at = restored_at
            self.silence_counts_from = now + self._settle_s
            self._echo_at = now
        late_s = gap_s - self._tick_s if gap_s > _LATE_TICKS * self._tick_s else 0.0
        self._echo_at += late_s  # the echo had no time to come, either
        self.late_total_s += late_s
        return late_s

    def on_echo(self, sent_at: float, late_total_s: float, now: float) -> float | None:
        """An echo is back; returns the time up to which silence counts; None: none counts.

        Args:
            sent_at: When it was sent.
            late_total_s: `late_total_s` of that time.
        """
        self._echo_at = max(self._echo_at, now)
        own_s = self.late_total_s - late_total_s + max(0.0, now - self._ticked_at - self._tick_s)
        delay_s = now - sent_at - own_s - self._tick_s
        if delay_s > self.delay_s(now):
            self._delay_s, self._delayed_at = delay_s, now
        return sent_at if sent_at >= self.silence_counts_from else None

    def delay_s(self, now: float) -> float:
        """The largest recent delay of echoes by the broker, in seconds; it decays with time."""
        return self._delay_s * max(0.0, 1.0 - (now - self._delayed_at) / _DELAY_TIME_S)

    def echo_missing_s(self, now: float) -> float:
        """How long no echo has come back though the broker is connected, in seconds."""
        return now - self._echo_at
