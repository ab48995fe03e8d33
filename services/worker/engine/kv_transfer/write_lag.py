"""How long blocks of the host tier wait before they are sent to the store. Pure: time is an argument.

Sending costs this process, and a store on the same machine even more, while decoding needs every core. The
other groups of the host have the blocks already. So they are sent when no step runs, or have waited enough.
"""

QUIET_S = 0.05  # without a new step, after which decoding has ended; steps of a batch are shorter


class WriteLag:
    """For one writer. The thread of the steps calls `note_step` and `hurry`, the writer `wait_s`.

    Args:
        lag_s: How long a block waits at most; 0: not at all.
        most: How many blocks may wait; with more the oldest one is sent.
    """

    def __init__(self, lag_s: float, most: int) -> None:
        self._lag_s = lag_s
        self._most = most
        self._step_at = -QUIET_S
        self._hurried_at = -1.0

    def note_step(self, now: float) -> None:
        """A step begins."""
        self._step_at = now

    def hurry(self, now: float) -> None:
        """What waits now is sent at once."""
        self._hurried_at = now

    def wait_s(self, copied_at: float, waiting: int, now: float) -> float:
        """Returns how long to wait before it is asked again about the oldest block; 0: send it.

        Args:
            copied_at: When the block was copied.
            waiting: Number of blocks that wait with it.
            now: The time on the same clock.
        """
        if waiting >= self._most or copied_at <= self._hurried_at:
            return 0.0
        return max(0.0, min(copied_at + self._lag_s, self._step_at + QUIET_S) - now)
