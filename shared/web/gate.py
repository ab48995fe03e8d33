"""The connections of a server: how many there are of each client, and what each waits for until when.

Decides which new connection is admitted, and finds those whose time is over. It knows no sockets: the
protocol ends connections. Which connection is closed for a new one is decided in `waiting_lines.py`.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from shared.web import waiting_lines
from shared.web.faults import ADDRESS_FULL, ALL_FULL, SINGLE_HEADERS, Fault
from shared.web.http_limits import HttpConnections, HttpLimits, is_within, networks
from shared.web.waiting_lines import Lines, Waiting, WaitingConnection, first_to_go, new_lines

PAUSED_CHECK_S = 0.25  # between two checks whether the other side of a paused connection has closed it
_LINGER_S = 2.0  # for a client that still sends: a reset would lose the answer


class Holder(Protocol):
    """A connection whose headers have come in part."""

    def give_up_headers(self) -> None:
        """Answers 503 `partial_headers` and ends; holds no bytes when this returns."""


class PartialHeaders:
    """Bytes of partial headers, by client and connection.

    When they are too many, the client that holds most loses one, so that one address cannot keep out others
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


@dataclass(slots=True)
class HttpStats:
    """Counts of refused connections and requests, and of connections that lost their slot, by reason."""

    refused_connections: "Counter[str]" = field(default_factory=Counter)
    refused_requests: "Counter[str]" = field(default_factory=Counter)
    closed_connections: "Counter[str]" = field(default_factory=Counter)


class _ClientConnections:
    """The connections of one client: how many, and what they wait for."""

    __slots__ = ("count", "lines", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.lines = new_lines()


class _Reading(WaitingConnection, Holder, Protocol):
    """A connection whose headers have come in part."""


class Gate:
    """The connections of one server.

    When all slots are taken, or all of an address, a new connection takes the slot of one without a
    request. So connections that are only held open do not keep clients out.

    Args:
        connections: How many there may be.
        limits: What holds for each.
        single_headers: Names of headers that a request may have once.
    """

    def __init__(
        self,
        connections: HttpConnections,
        limits: HttpLimits,
        single_headers: frozenset[bytes] = SINGLE_HEADERS,
    ) -> None:
        self.connections = connections
        self.limits = limits
        self.single_headers = single_headers
        self.stats = HttpStats()
        self._partial = PartialHeaders()
        self.lingering = Waiting("lingering", waiting_lines.LINGERING, _LINGER_S)
        self.first_byte = Waiting("first_byte", waiting_lines.FIRST_BYTE, limits.http_first_byte_s)
        self.handshake = Waiting("handshake", waiting_lines.HANDSHAKE, None)  # `start_tls` has a limit
        self.headers = Waiting("headers", waiting_lines.HEADERS, limits.http_headers_s)
        self.idle = Waiting("idle", waiting_lines.IDLE, None)  # uvicorn closes them after its keep-alive time
        self.unread = Waiting("unread", waiting_lines.UNREAD, limits.http_unread_s)
        self.socket = Waiting("socket", waiting_lines.SOCKET, None)  # their applications close them
        self.paused = Waiting("paused", waiting_lines.PAUSED, PAUSED_CHECK_S)
        self._waiting = (
            self.lingering,
            self.first_byte,
            self.handshake,
            self.headers,
            self.idle,
            self.unread,
            self.socket,
            self.paused,
        )
        self._lines = tuple(each.line for each in self._waiting)
        self._clients: dict[WaitingConnection, _ClientConnections] = {}
        self._addresses: dict[str, _ClientConnections] = {}
        self._trusted = networks(connections.http_trusted_proxies)

    @property
    def open(self) -> int:
        """The number of connections that have a slot."""
        return len(self._clients)

    @property
    def addresses(self) -> int:
        """The number of addresses that their connections come from."""
        return len(self._addresses)

    def admit(self, connection: WaitingConnection, address: str, now_s: float) -> Fault | None:
        """Gives a new connection a slot, until `release`, and the lines of its address.

        Returns:
            The reason if there is no slot.
        """
        name = client_of(address)
        client = self._addresses.get(name)
        allowed = self.connections.http_max_connections_per_address
        if client and client.count >= allowed and not self._is_trusted(address):
            if not self._make_room(client.lines, now_s, allowed, "address_gave_way"):
                return self._refused(ADDRESS_FULL)
        elif not self._has_room(now_s):
            return self._refused(ALL_FULL)
        client = self._addresses.get(name)  # its only connection may have been closed for another
        if client is None:
            client = self._addresses[name] = _ClientConnections(name)
        client.count += 1
        self._clients[connection] = client
        connection.lines = client.lines
        return None

    def release(self, connection: WaitingConnection) -> None:
        """Takes the slot of a connection back; may be called again."""
        client = self._clients.pop(connection, None)
        if client is None:
            return
        client.count -= 1
        if not client.count:
            del self._addresses[client.name]

    @property
    def partial_bytes(self) -> int:
        """Bytes of headers that have come in part, of all connections."""
        return self._partial.num_bytes

    def hold(self, connection: _Reading, num_bytes: int) -> None:
        """Notes how many bytes of headers a connection holds while it waits for the rest; 0 at the end.

        While all together are over the limit, the client that holds most loses its largest.
        """
        self._partial.hold(connection, self._clients[connection], num_bytes)
        while self._partial.num_bytes > self.limits.http_max_partial_bytes:
            self._partial.largest().give_up_headers()

    def expire(self, now_s: float) -> None:
        """Calls `expire` of the connections whose time is over."""
        for each in self._waiting:
            for connection in each.expired(now_s):
                connection.expire(each.name)

    def close(self) -> None:
        """Ends all connections."""
        for connection in tuple(self._clients):
            connection.drop()

    def _has_room(self, now_s: float) -> bool:
        allowed = self.connections.max_connections
        return self.open < allowed or self._make_room(self._lines, now_s, allowed, "gave_way")

    def _make_room(self, lines: Lines, now_s: float, slots: int, reason: str) -> bool:
        connection = first_to_go(lines, now_s, slots)
        if connection is None:
            return False
        self.stats.closed_connections[reason] += 1
        connection.drop()
        return True

    def _refused(self, fault: Fault) -> Fault:
        self.stats.refused_connections[fault.code] += 1
        return fault

    def _is_trusted(self, address: str) -> bool:
        # the peer of a Unix socket has none
        return not address or (bool(self._trusted) and is_within(address, self._trusted))


def client_of(address: str) -> str:
    """The client of an address: the IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    given = ip_address(address.partition("%")[0])
    mapped = getattr(given, "ipv4_mapped", None)
    return str(mapped) if mapped else given.packed[:8].hex()
