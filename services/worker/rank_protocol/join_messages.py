"""How a rank on another host and its leader make sure of each other before the first plan.

Both hold one secret, and neither sends it: each proves it with a hash over two random numbers, one of them
the other's, so that a recorded proof is worth nothing. What follows is not encrypted.
"""

import hmac
from typing import Literal

import msgspec

NONCE_BYTES = 32
MIN_TOKEN_LENGTH = 16


class Challenge(msgspec.Struct, frozen=True):
    """Leader, first."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Rank: its own number, its proof, and the release it runs."""

    nonce: bytes
    proof: bytes
    version: str


class Welcome(msgspec.Struct, frozen=True):
    """Leader: its proof; the rank's config follows when all ranks have come."""

    proof: bytes


def prove(token: str, side: Literal["leader", "rank"], challenge: bytes, hello: bytes) -> bytes:
    """What only a holder of the token can know about these two nonces."""
    return hmac.digest(token.encode(), side.encode() + b"\0" + challenge + hello, "sha256")


def proven(token: str, side: Literal["leader", "rank"], challenge: bytes, hello: bytes, proof: bytes) -> bool:
    """Whether the other side holds the token."""
    return hmac.compare_digest(prove(token, side, challenge, hello), proof)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises `ValueError` with a sentence."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; it looks like 10.0.0.1:7000")
    return host.removeprefix("[").removesuffix("]"), int(port)
