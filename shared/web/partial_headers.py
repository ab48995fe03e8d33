"""Headers that have come in part: how many bytes of them all connections hold, and which one gives way."""

from collections.abc import Hashable
from typing import Protocol


class Holder(Protocol):
    """A connection whose headers have come in part."""

    def give_up_headers(self) -> None:
        """Answers 503 `partial_headers` and ends. It holds nothing any more when this returns."""


class PartialHeaders:
    """Who holds how many bytes.

    When they are too many, the client that holds most gives way, so that one address cannot keep out others
    whose headers come in two reads. Nothing is kept of requests whose headers come at once.
    """

    __slots__ = ("_held", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0
        self._held: dict[Hashable, dict[Holder, int]] = {}  # by client

    def hold(self, holder: Holder, client: Hashable, num_bytes: int) -> None:
        """The holder, a connection of that client, has so many bytes from now on."""
        held = self._held.setdefault(client, {})
        self.num_bytes += num_bytes - held.pop(holder, 0)
        if num_bytes:
            held[holder] = num_bytes
        elif not held:
            del self._held[client]

    def largest(self) -> Holder:
        """The connection that holds most of the client that holds most; there must be one."""
        held = max(self._held.values(), key=lambda each: sum(each.values()))
        return max(held, key=held.__getitem__)
