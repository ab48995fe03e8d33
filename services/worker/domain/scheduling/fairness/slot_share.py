"""How many running slots one party may have: all of them alone, a part of them beside others. Pure.

Nothing that runs is interrupted for another party, so one that comes while a flood has every slot waits for
the end of an answer. A few slots that the flood may not have spare it that. A party that is alone would leave
them idle, so they are kept only while others were there of late.
"""

import math

SHARE_BESIDE_OTHERS = 0.875
KEEP_S = 60.0  # after the last sequence of another party: one that comes back in that time finds a slot


class SlotShare:
    """The bound of one group.

    Args:
        max_running: Running slots.
        share: The part of them that one party may have beside others.

    Attributes:
        most: Slots that a party may have now.
    """

    def __init__(self, max_running: int, share: float) -> None:
        self.most = max_running
        self._max_running = max_running
        self._beside_others = min(max_running, max(1, math.ceil(max_running * share)))
        self._until = -math.inf

    def see(self, *, several: bool, now: float) -> None:
        """Looks at the parties before a step is planned.

        Args:
            several: Several parties have sequences.
            now: Monotonic seconds.
        """
        if several:
            self._until = now + KEEP_S
        self.most = self._beside_others if now < self._until else self._max_running
