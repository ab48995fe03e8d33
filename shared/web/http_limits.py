"""Limits of an HTTP server before the body of a request is read: connections, headers, deadlines.

They are settings of the gateway. Admin endpoints have the same limits with smaller numbers.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated

from annotated_types import Interval
from pydantic import BaseModel, field_validator

from shared.setting_types import UpToHour, UpToMillion


class HttpLimits(BaseModel, use_attribute_docstrings=True):
    """Limits that hold before a request is complete."""

    max_connections: UpToMillion = 16_384
    """Open HTTP connections, idle ones included; the limit of open files lowers it. A new one replaces one
    without a request, or gets 503."""
    http_max_connections_per_address: UpToMillion = 1024
    """Open HTTP connections of one IPv4 address or one IPv6 /64 network. A new one replaces one of these
    without a request, or gets 429."""
    http_trusted_proxies: str = ""
    """Addresses and networks of your proxies, separated by commas; they have no limit per address."""
    http_max_header_bytes: Annotated[int, Interval(ge=1024, le=2**20)] = 64 * 1024
    """Request line and headers together."""
    http_max_headers: Annotated[int, Interval(ge=8, le=10_000)] = 100
    """Headers of a request."""
    http_max_target_bytes: Annotated[int, Interval(ge=256, le=2**20)] = 8192
    """Path and query of a request."""
    http_max_partial_bytes: Annotated[int, Interval(ge=2**20, le=2**36)] = 64 * 2**20
    """Incomplete headers of all connections together."""
    http_max_pipelined: Annotated[int, Interval(ge=0, le=1000)] = 8
    """Requests that a connection may send ahead of their answers."""
    http_first_byte_s: UpToHour = 10.0
    """How long a new connection may send nothing."""
    http_headers_s: UpToHour = 10.0
    """How long the request line and headers may take to arrive."""
    http_tls_handshake_s: UpToHour = 10.0
    """How long a TLS handshake may take."""
    http_unread_s: UpToHour = 10.0
    """How long the rest of a body may take to arrive after the request was answered."""
    http_dead_peer_s: Annotated[int, Interval(ge=1, le=3600)] = 60
    """Time without an acknowledgement after which a connection is closed."""

    @field_validator("http_trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks(text)
        return text


def networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses and networks, separated by commas; raises `ValueError` for what is neither."""
    return tuple(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())


def is_within(address: str, trusted: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Returns whether an address is in one of the networks, as IPv4 if it is one mapped to IPv6."""
    try:
        given = ip_address(address)
    except ValueError:  # no address, such as that of a Unix socket
        return False
    given = getattr(given, "ipv4_mapped", None) or given
    return any(given in network for network in trusted)
