"""The contract of a store of limits.

`redis_limits.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

HOLD_MS = 10_000  # running requests of a holder that says nothing for so long are free again
HOLDER_MS = 60_000  # a holder that says nothing for so long does not count among the holders


class PoolAsk(NamedTuple):
    """One limit, as a holder stands to it.

    Attributes:
        name: Names the limit; without spaces.
        limit: Units of a window.
        began_ms: The window that `had` is of; 0: the one that runs now.
        had: What the holder has of it.
        ahead: What it wants beyond its takes.
        windows: When the window before, the one that runs and the next one begin, and when that ends; the
            clock of the store decides. Empty: units are held, and come back when the holder is gone.
        seen: What all holders had in that window, as the holder was told last.
        used: What is known to be used in the window that runs by the caller's clock, from elsewhere.
    """

    name: str
    limit: int
    began_ms: int = 0
    had: int = 0
    ahead: int = 0
    windows: tuple[int, ...] = ()
    used: int = 0
    seen: int = 0


class TakeAsk(NamedTuple):
    """`requests` that each need `units` of `pools` (positions among the pools): all of them or none."""

    requests: int
    pools: Sequence[int]
    units: Sequence[int]


class PoolLease(NamedTuple):
    """What a holder has got of a limit; see `shared.messages.LimitLease`."""

    granted: int
    left: int
    began_ms: int
    ends_ms: int


class Leased(NamedTuple):
    """What a holder has got; `holders` counts the processes that have asked lately."""

    pools: list[PoolLease]
    now_ms: int
    holders: int


class LimitStore(Protocol):
    """Counts units by limit, window and holder. Each call is atomic.

    It raises `Unavailable` when the store cannot be reached, does not answer or refuses, and may then be
    repeated as it is.
    """

    async def lease(
        self, holder: str, number: int, pools: Sequence[PoolAsk], takes: Sequence[TakeAsk]
    ) -> Leased:
        """Takes what a holder has of each limit as the truth about it, then gives it more.

        What counts of a window is the larger of what holders have and of `used`. With a number below one that
        the holder has used before, nothing changes, and nothing is granted. A store that has lost its
        contents counts what the first holder has seen of a window, and takes the others' parts out of that.

        Args:
            holder: Who asks; one call at a time.
            number: Of the call.
            pools: The limits.
            takes: Requests that wait, in their order.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
