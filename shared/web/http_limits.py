"""Limits of an HTTP server before the body of a request is read: connections, headers, deadlines.

Those of connections are settings of the gateway; the others are constants. Admin endpoints have smaller ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from pydantic import BaseModel, field_validator

from shared.setting_types import UpToMillion


class HttpConnections(BaseModel, use_attribute_docstrings=True):
    """How many connections a server has; the gateway's settings inherit the fields."""

    max_connections: UpToMillion = 16_384
    """Open HTTP connections, idle ones included; the limit of open files lowers it. A new one replaces one
    without a request, or gets 503."""
    http_max_connections_per_address: UpToMillion = 1024
    """Open HTTP connections of one IPv4 address or one IPv6 /64 network. A new one replaces one of these
    without a request, or gets 429."""
    http_trusted_proxies: str = ""
    """Addresses and networks of your proxies, separated by commas; they have no limit per address."""

    @field_validator("http_trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks(text)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What holds for each connection before a request is complete; times in seconds.

    No client that means well comes near these. They bound what one that does not can cost.

    Attributes:
        http_max_header_bytes: Request line and headers together.
        http_max_headers: Headers of a request.
        http_max_target_bytes: Path and query of a request.
        http_max_partial_bytes: Incomplete headers of all connections together.
        http_max_pipelined: Requests that a connection may send ahead of their answers.
        http_first_byte_s: How long a new connection may send nothing.
        http_headers_s: How long the request line and headers may take to arrive.
        http_tls_handshake_s: How long a TLS handshake may take.
        http_unread_s: How long the rest of a body may take to arrive after the request was answered.
        http_dead_peer_s: Time without an acknowledgement after which a connection is closed.
    """

    http_max_header_bytes: int = 64 * 1024
    http_max_headers: int = 100
    http_max_target_bytes: int = 8192
    http_max_partial_bytes: int = 64 * 2**20
    http_max_pipelined: int = 8
    http_first_byte_s: float = 10.0
    http_headers_s: float = 10.0
    http_tls_handshake_s: float = 10.0
    http_unread_s: float = 10.0
    http_dead_peer_s: int = 60


Networks = Sequence[IPv4Network | IPv6Network]


def networks(text: str) -> Networks:
    """Addresses and networks, separated by commas; raises `ValueError` for what is neither."""
    return tuple(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())


def is_within(address: str, trusted: Networks) -> bool:
    """Returns whether an address is in one of the networks, as IPv4 if it is one mapped to IPv6."""
    try:
        given = ip_address(address)
    except ValueError:  # no address, such as that of a Unix socket
        return False
    given = getattr(given, "ipv4_mapped", None) or given
    return any(given in network for network in trusted)
