"""The circuit before the store: after failures nobody waits for it, until a probe gets through. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """`failures` time-outs in a row open it, a refused connection does at once; a probe each `probe_s`."""

    failures: int = 3
    probe_s: float = 0.25


class Circuit:
    """Open means: do not ask the store. It starts closed; `now` is monotonic seconds."""

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        self._failures = 0
        self._next_probe = 0.0
        self.open = False
        self.opened_total = 0

    def succeeded(self) -> bool:
        """The store answered; True when this closed the circuit."""
        was_open, self.open, self._failures = self.open, False, 0
        return was_open

    def failed(self, now: float, *, refused: bool) -> bool:
        """The store did not answer; `refused`: it is certainly away. True when this opened the circuit."""
        self._failures += 1
        self._next_probe = now + self._limits.probe_s
        if self.open or not (refused or self._failures >= self._limits.failures):
            return False
        self.open = True
        self.opened_total += 1
        return True

    def retry_after_s(self, now: float) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._next_probe - now)
