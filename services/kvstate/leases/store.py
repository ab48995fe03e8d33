"""The contract of a store of leases.

`redis_leases.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).
"""

from typing import NamedTuple, Protocol


class LeaseState(NamedTuple):
    """Who has a lease.

    Attributes:
        holder: Empty: no one has it.
        epoch: Of the last holder.
        ttl_ms: How long the holder has it from now on, if it does not prolong it.
    """

    holder: str
    epoch: int
    ttl_ms: int


class LeaseStore(Protocol):
    """Leases by name. Each claim is atomic.

    It raises `Unavailable` when the store cannot be reached, does not answer or refuses, and may then be
    repeated as it is.
    """

    async def claim(self, name: str, holder: str, ttl_ms: int, heard_epoch: int = 0) -> LeaseState:
        """Takes the lease if it is free, or prolongs it if the holder has it; returns who has it now.

        Each taking has a higher epoch than all before, also if the store has lost its contents meanwhile; a
        prolongation keeps the epoch. A lease that has run out or was given back is free. Where the clock was
        set back, it is free after the time for which it was taken, counted anew.

        Args:
            ttl_ms: 0: the holder gives the lease back; without effect on the lease of another one.
            heard_epoch: The highest that the holder knows of. A store that was emptied and whose clock was
                set back gives a higher one all the same; so does a prolongation of a lower one.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
