"""The limits of an HTTP server before a request's body is read: connections, headers, deadlines.

They are settings of the gateway. Admin endpoints have the same limits with smaller numbers.
"""

from ipaddress import IPv4Network, IPv6Network, ip_network

from pydantic import BaseModel, Field, field_validator


class HttpLimits(BaseModel):
    """What a client may ask of the server before its request is complete."""

    max_connections: int = Field(
        default=16_384,
        ge=1,
        le=1_000_000,
        description="Open HTTP connections, idle ones included. The limit of open files lowers it. "
        "A new one takes the place of one without a request; with a request under way on each it gets 503.",
    )
    http_max_connections_per_address: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Open HTTP connections of one IPv4 address or one IPv6 /64 network. "
        "A new one takes the place of one of these without a request; "
        "with a request under way on each it gets 429.",
    )
    http_trusted_proxies: str = Field(
        default="",
        description="Addresses and networks, separated by commas, without a limit per address: your proxies.",
    )
    http_max_header_bytes: int = Field(
        default=64 * 1024, ge=1024, le=2**20, description="A request's line and headers together."
    )
    http_max_headers: int = Field(default=100, ge=8, le=10_000, description="Headers of a request.")
    http_max_target_bytes: int = Field(
        default=8192, ge=256, le=2**20, description="Path and query of a request."
    )
    http_max_partial_bytes: int = Field(
        default=64 * 2**20,
        ge=2**20,
        le=2**36,
        description="Headers of all connections that have come in part and wait for their rest.",
    )
    http_max_pipelined: int = Field(
        default=8, ge=0, le=1000, description="Requests that a connection may send ahead of their answers."
    )
    http_first_byte_s: float = Field(
        default=10.0, gt=0, le=3600, description="How long a new connection may say nothing."
    )
    http_headers_s: float = Field(
        default=10.0, gt=0, le=3600, description="How long a request's line and headers may take to arrive."
    )
    http_tls_handshake_s: float = Field(
        default=10.0, gt=0, le=3600, description="How long a TLS handshake may take."
    )
    http_unread_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="How long the rest of a body may take to arrive after the request was answered.",
    )
    http_dead_peer_s: int = Field(
        default=60,
        ge=1,
        le=3600,
        description="After how long a connection is closed whose other side acknowledges nothing.",
    )

    @field_validator("http_trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks(text)
        return text


def networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses and networks, separated by commas; raises `ValueError` for what is neither."""
    return tuple(ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip())
