"""A circuit breaker for a store: after failures it is not asked until a probe succeeds. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """`failures` time-outs in a row or one refused connection open it; probes come every `probe_s`."""

    failures: int = 3
    probe_s: float = 0.25


class Circuit:
    """The state of one circuit, closed at first. While it is open, only probes ask the store.

    `now` is in monotonic seconds.
    """

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        self._failures = 0
        self._next_probe = 0.0
        self.open = False
        self.opened_total = 0

    def succeeded(self) -> bool:
        """Notes an answer of the store; returns whether this closed the circuit."""
        was_open, self.open, self._failures = self.open, False, 0
        return was_open

    def failed(self, now: float, *, refused: bool) -> bool:
        """Notes a failure; returns whether this opened the circuit.

        Args:
            now: The time.
            refused: The store is certainly away, as a time-out alone does not show.
        """
        self._failures += 1
        self._next_probe = now + self._limits.probe_s
        if self.open or not (refused or self._failures >= self._limits.failures):
            return False
        self.open = True
        self.opened_total += 1
        return True

    def retry_after_s(self, now: float) -> float:
        """Returns the seconds until the next probe."""
        return max(0.0, self._next_probe - now)
