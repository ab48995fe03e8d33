"""Remembers whether several parties use the engine: steps with prompts are short then. Pure."""

from collections.abc import Sequence as Many

from services.worker.domain.scheduling.sequence import Sequence

SEEN_S = 1.0  # how long after its last sequence another party is expected to come back


class PartiesSeen:
    """When several parties were seen last, in a step with prompts."""

    def __init__(self) -> None:
        self._seen_at = -SEEN_S

    def were_several(self, now: float) -> bool:
        """Returns whether there were several a moment ago; `now`: monotonic seconds."""
        return now - self._seen_at < SEEN_S

    def see(self, running: Many[Sequence], now: float) -> bool:
        """Looks at the sequences that run; returns whether several parties use the engine or did."""
        first = running[0].party if running else ""
        if any(sequence.party != first for sequence in running):
            self._seen_at = now
        return self.were_several(now)
