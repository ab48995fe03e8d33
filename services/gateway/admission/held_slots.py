"""Places of connections and streams that stay open between requests: an idle one gives way to a new one.

WebSockets and gRPC streams may be open for long without a request. When all places are taken, or all of a
party, the one that has been idle longest is ended. One with a request under way never gives way.
"""

from typing import Protocol

from services.gateway.admission.quota import Quota
from shared.errors import Overloaded, RateLimited

SOCKET_EVICTED = "socket_gave_way"  # counted in `ryz_gateway_closed_connections_total`


class SlotHolder(Protocol):
    """What holds a place: a WebSocket or a stream."""

    def begin_request(self) -> None:
        """Called when its first request begins, or another one after it was idle."""

    def end_request(self) -> None:
        """Called when it becomes idle."""

    def evict(self, reason: str) -> None:
        """Ends it; `reason` is for the count of those that were ended."""


class HeldSlot:
    """A place, idle at first.

    Args:
        slots: All slots of its kind.
        holder: What holds it.
        party: For whom it counts.
    """

    def __init__(self, slots: "HeldSlots", holder: SlotHolder, party: str) -> None:
        self._slots = slots
        self.holder = holder
        self.party = party
        self._requests = 0

    def begin_request(self) -> None:
        """A request is under way: the place is kept until `end_request`."""
        self._requests += 1
        if self._requests == 1:
            self._slots.idle.pop(self, None)
            self.holder.begin_request()

    def end_request(self) -> None:
        """A request has ended."""
        self._requests -= 1
        if not self._requests:
            self._slots.idle[self] = None
            self.holder.end_request()

    def move(self, party: str) -> None:
        """Counts for another party, now that it is known; if that raises (see `HeldSlots.take`), not."""
        before, self.party = self.party, party
        self._slots.quota.free_units(before)
        try:
            self._slots.make_room(self)
        except (RateLimited, Overloaded):
            self._slots.quota.take_over_units(before)
            self.party = before
            raise

    def free(self) -> None:
        """Gives the place back; called once."""
        self._slots.idle.pop(self, None)
        self._slots.quota.free_units(self.party)


class HeldSlots:
    """All places of one kind.

    Args:
        quota: How many there are, and how many of them a party may have.
        reason: For the count of what was ended to make room.

    Attributes:
        idle: Places without a request; the one that has been idle longest is the first.
    """

    def __init__(self, quota: Quota, reason: str) -> None:
        self.quota = quota
        self.idle: dict[HeldSlot, None] = {}
        self._reason = reason

    def take(self, holder: SlotHolder, party: str) -> HeldSlot:
        """Takes a place, if need be that of an idle one.

        Raises:
            RateLimited: The party has its share, each with a request under way.
            Overloaded: All places have a request under way.
        """
        slot = HeldSlot(self, holder, party)
        self.make_room(slot)
        self.idle[slot] = None
        return slot

    def make_room(self, newcomer: HeldSlot) -> None:
        """Takes a unit for the newcomer; raises like `take`."""
        try:
            self.quota.take_units(newcomer.party)
        except RateLimited:
            self._end_first(newcomer, newcomer.party)
        except Overloaded:
            self._end_first(newcomer, None)

    def _end_first(self, newcomer: HeldSlot, party: str | None) -> None:
        """Ends the place that has been idle longest, of one party or of all; raises if none is idle."""
        for slot in self.idle:
            if slot is not newcomer and (party is None or slot.party == party):
                break
        else:
            self.quota.check_units(newcomer.party)
            raise AssertionError("unreachable: there was no room a moment ago")
        del self.idle[slot]
        self.quota.take_over_units(newcomer.party)  # the other one is freed when its task has ended
        slot.holder.evict(self._reason)
