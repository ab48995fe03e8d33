"""Mutual authentication of a leader and a rank on another host.

Both hold one secret, and neither sends it: each sends an HMAC over two random numbers, one of them the other
side's, so that a recorded proof is useless. The messages afterwards are not encrypted.
"""

import hmac
import socket
import sys
from typing import Literal

import msgspec

NONCE_BYTES = 32
MIN_TOKEN_LENGTH = 16
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 11_000}


class Challenge(msgspec.Struct, frozen=True):
    """Leader: the first message, its random number."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Rank: its random number, its proof, and the release that it runs."""

    nonce: bytes
    proof: bytes
    version: str


class Welcome(msgspec.Struct, frozen=True):
    """Leader: its proof; the rank's config follows when all ranks have joined."""

    proof: bytes


def prove(token: str, side: Literal["leader", "rank"], challenge: bytes, hello: bytes) -> bytes:
    """Return the proof of one side: the HMAC of both random numbers with the token."""
    return hmac.digest(token.encode(), side.encode() + b"\0" + challenge + hello, "sha256")


def proven(token: str, side: Literal["leader", "rank"], challenge: bytes, hello: bytes, proof: bytes) -> bool:
    """Return True if a proof shows that the other side holds the token."""
    return hmac.compare_digest(prove(token, side, challenge, hello), proof)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`.

    Raises:
        ValueError: It is no address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; it looks like 10.0.0.1:7000")
    return host.removeprefix("[").removesuffix("]"), int(port)


def keep_alive(sock: socket.socket) -> None:
    """Makes a connection send small frames at once, and fail within seconds of the other host."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for name, value in _KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
