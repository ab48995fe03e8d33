"""Limits the messages a second of a subscription. The broker drops the others, so they cost nothing here.

A broker ends a subscription after a number of messages if it was asked to. A limited subscription therefore
consists of lives with so many messages each. The next life usually begins before the last one ends, but not
sooner than the rate allows.
"""

from collections.abc import Callable

from shared.bus.api import Message

WINDOW_S = 1.0


class Credit:
    """Takes the messages of one life of a limited subscription.

    Args:
        limit: Messages of one life.
        offer: Called with each message.
        renew: Called once, with the seconds after which the next life may begin.
        on_spent: Called when all messages were used before the next life could begin.
        clock: Returns seconds.
    """

    __slots__ = ("_began", "_clock", "_half", "_limit", "_offer", "_on_spent", "_renew", "_renewed", "_used")

    def __init__(
        self,
        limit: int,
        offer: Callable[[Message], None],
        *,
        renew: Callable[[float], None],
        on_spent: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._limit, self._half = limit, limit // 2
        self._offer = offer
        self._renew = renew
        self._on_spent = on_spent
        self._clock = clock
        self._began = clock()
        self._used = 0
        self._renewed = False

    @property
    def spent(self) -> bool:
        """True if the broker sends no more messages of this life."""
        return self._used >= self._limit

    def __call__(self, message: Message) -> None:
        """Takes a message."""
        self._used += 1
        if self._used >= self._half and not self._renewed:
            self._consider()
        self._offer(message)

    def _consider(self) -> None:
        age_s = self._clock() - self._began
        if age_s >= WINDOW_S / 2:  # half of the messages in half of the time, or later
            self._renewed = True
            self._renew(0.0)
        elif self.spent:
            self._renewed = True
            self._on_spent()
            self._renew(WINDOW_S - age_s)


def limit_of(max_per_s: int) -> int:
    """Returns the messages of one life; 0 for a subscription without a limit."""
    return max(2, round(max_per_s * WINDOW_S)) if max_per_s else 0
