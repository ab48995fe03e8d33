"""Which connections a server has, whose they are, and what each of them waits for until when.

Decides which new connection is admitted, and names those whose time is over. It knows no sockets: what
becomes of a connection is the protocol's.
"""

from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from shared.web.faults import ADDRESS_FULL, ALL_FULL, SINGLE_HEADERS, Fault
from shared.web.limits import HttpLimits, networks
from shared.web.partial import Holder, PartialHeaders

PAUSED_LOOK_S = 0.25  # between two looks at whether one that is not read from has gone
_LINGER_S = 2.0  # for a client that still sends, and would lose the answer if the connection were reset


class Connection(Protocol):
    """What the gate needs of a connection."""

    def expire(self, waited_for: str) -> None:
        """The time for that is over."""

    def drop(self) -> None:
        """Ends at once, to make room or because the server ends."""


@dataclass(slots=True)
class HttpStats:
    """What was turned away, by reason."""

    refused_connections: "Counter[str]" = field(default_factory=Counter)
    refused_requests: "Counter[str]" = field(default_factory=Counter)
    closed_connections: "Counter[str]" = field(default_factory=Counter)


class Waiting:
    """Connections that wait for the same thing, the one that has waited longest first."""

    __slots__ = ("_since_s", "limit_s", "name")

    def __init__(self, name: str, limit_s: float | None) -> None:
        self.name = name
        self.limit_s = limit_s
        self._since_s: dict[Connection, float] = {}

    def add(self, connection: Connection, now_s: float) -> None:
        """Its time begins now."""
        self._since_s[connection] = now_s

    def discard(self, connection: Connection) -> None:
        """It waits no longer."""
        self._since_s.pop(connection, None)

    def oldest(self) -> Connection | None:
        """The one that has waited longest."""
        return next(iter(self._since_s), None)

    def expired(self, now_s: float) -> list[Connection]:
        """Those whose time is over."""
        if self.limit_s is None:
            return []
        over = []
        for connection, since_s in self._since_s.items():
            if now_s - since_s < self.limit_s:
                break
            over.append(connection)
        return over


class _Reading(Connection, Holder, Protocol):
    """A connection whose headers have come in part."""


class Gate:
    """The connections of one server.

    When all places are taken, a new connection takes the place of the one that has waited longest without a
    request, so idle connections do not keep clients out.

    Args:
        limits: what is allowed.
        single_headers: names that a request may have once.
    """

    def __init__(self, limits: HttpLimits, single_headers: frozenset[bytes] = SINGLE_HEADERS) -> None:
        self.limits = limits
        self.single_headers = single_headers
        self.stats = HttpStats()
        self._partial = PartialHeaders()
        self.first_byte = Waiting("first_byte", limits.http_first_byte_s)
        self.headers = Waiting("headers", limits.http_headers_s)
        self.unread = Waiting("unread", limits.http_unread_s)
        self.lingering = Waiting("lingering", _LINGER_S)
        self.paused = Waiting("paused", PAUSED_LOOK_S)
        self.idle = Waiting("idle", None)  # uvicorn closes them after its keep-alive time
        self._waiting = (self.lingering, self.first_byte, self.headers, self.unread, self.idle)
        self._clients: dict[Connection, str] = {}
        self._by_client: Counter[str] = Counter()
        self._trusted = networks(limits.http_trusted_proxies)

    @property
    def open(self) -> int:
        """Connections that have a place."""
        return len(self._clients)

    def admit(self, connection: Connection, address: str) -> Fault | None:
        """Gives a new connection a place, or says why there is none. Give it back with `release`."""
        client = client_of(address)
        crowded = self._by_client[client] >= self.limits.http_max_connections_per_address
        if crowded and not self._is_trusted(address):
            return self._refused(ADDRESS_FULL)
        if self.open >= self.limits.max_connections and not self._make_room():
            return self._refused(ALL_FULL)
        self._clients[connection] = client
        self._by_client[client] += 1
        return None

    def release(self, connection: Connection) -> None:
        """The connection is gone; any number of times."""
        client = self._clients.pop(connection, None)
        if client is None:
            return
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    @property
    def partial_bytes(self) -> int:
        """Headers that have come in part, of all connections."""
        return self._partial.num_bytes

    def hold(self, connection: _Reading, num_bytes: int) -> None:
        """An admitted connection has so many bytes of headers, and waits for the rest; 0: no longer.

        While all together are over the limit, the client that holds most loses its largest.
        """
        self._partial.hold(connection, self._clients[connection], num_bytes)
        while self._partial.num_bytes > self.limits.http_max_partial_bytes:
            self._partial.largest().give_up_headers()

    def expire(self, now_s: float) -> None:
        """Tells the connections whose time is over."""
        for waiting in (*self._waiting, self.paused):
            for connection in waiting.expired(now_s):
                connection.expire(waiting.name)

    def close(self) -> None:
        """Ends all connections."""
        for connection in tuple(self._clients):
            connection.drop()

    def _make_room(self) -> bool:
        for waiting in self._waiting:
            connection = waiting.oldest()
            if connection is not None:
                self.stats.closed_connections["gave_way"] += 1
                connection.drop()
                return True
        return False

    def _refused(self, fault: Fault) -> Fault:
        self.stats.refused_connections[fault.code] += 1
        return fault

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted or not address:
            return not address  # a Unix socket's peer has none
        given = ip_address(address)
        given = getattr(given, "ipv4_mapped", None) or given
        return any(given in network for network in self._trusted)


def client_of(address: str) -> str:
    """Whose connection it is: the IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    given = ip_address(address.partition("%")[0])
    mapped = getattr(given, "ipv4_mapped", None)
    return str(mapped) if mapped else given.packed[:8].hex()
