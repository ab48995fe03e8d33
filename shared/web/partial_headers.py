"""Counts bytes of headers that have come in part, and chooses the connection that gives way."""

from collections.abc import Hashable
from typing import Protocol


class Holder(Protocol):
    """A connection whose headers have come in part."""

    def give_up_headers(self) -> None:
        """Answers 503 `partial_headers` and ends; holds no bytes when this returns."""


class PartialHeaders:
    """Bytes of partial headers, by client and connection.

    When they are too many, the client that holds most gives way, so that one address cannot keep out others
    whose headers come in two reads. Requests whose headers come at once are not counted.
    """

    __slots__ = ("_held", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0
        self._held: dict[Hashable, dict[Holder, int]] = {}  # by client

    def hold(self, holder: Holder, client: Hashable, num_bytes: int) -> None:
        """Sets how many bytes a connection of a client holds."""
        held = self._held.setdefault(client, {})
        self.num_bytes += num_bytes - held.pop(holder, 0)
        if num_bytes:
            held[holder] = num_bytes
        elif not held:
            del self._held[client]

    def largest(self) -> Holder:
        """The largest connection of the client that holds most; there must be one."""
        held = max(self._held.values(), key=lambda each: sum(each.values()))
        return max(held, key=held.__getitem__)
