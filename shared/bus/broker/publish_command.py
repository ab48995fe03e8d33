"""Makes the protocol command that publishes a message."""

import re
from collections.abc import Mapping
from functools import lru_cache

from shared.errors import InvalidRequest

_NAME = re.compile(r"[!-9;-~]+")  # visible ASCII without a colon
_VERSION = "NATS/1.0\r\n"


def publish_command(subject: str, reply: str, data: bytes, headers: Mapping[str, str] | None) -> bytes:
    """Returns the command.

    Args:
        subject: Where the message goes; a checked subject.
        reply: Where answers go; empty: nowhere.
        headers: Of the message; line breaks in values become spaces.

    Raises:
        InvalidRequest: A header has a name that the protocol does not allow.
    """
    if not headers:
        return b"%b %d\r\n%b\r\n" % (f"PUB {subject} {reply}".encode(), len(data), data)
    head = _head(headers)
    size = len(head) if head.isascii() else len(head.encode())
    return b"%b%b\r\n" % (f"HPUB {subject} {reply} {size} {size + len(data)}\r\n{head}".encode(), data)


def payload_size(data: bytes, headers: Mapping[str, str] | None) -> int:
    """Returns the bytes that the broker counts: payload and headers."""
    return len(data) + (len(_head(headers).encode()) if headers else 0)


def _head(headers: Mapping[str, str]) -> str:
    head = _VERSION
    for name, value in headers.items():
        line = _joined(value) if "\r" in value or "\n" in value else value
        head += f"{_name(name)}: {line.strip()}\r\n"
    return head + "\r\n"


def _joined(value: str) -> str:
    return value.replace("\r\n", " ").replace("\r", " ").replace("\n", " ")


@lru_cache(maxsize=256)
def _name(name: str) -> str:
    plain = name.strip()
    if not _NAME.fullmatch(plain):
        raise InvalidRequest(f"{name[:100]!r} is no name of a header", param="headers")
    return plain
