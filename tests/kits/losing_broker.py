"""A broker that loses messages: a proxy before a real one, which drops what a test chooses."""

import re
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.kits.tcp_proxy import TcpProxy

_END = b"\r\n"


class LosingBroker:
    """Drops chosen messages on their way from a client to the broker; all else passes unchanged.

    Args:
        port: Of the real broker.

    Attributes:
        seen: Subjects of all messages that came, in their order.
        lost: Subjects of those that were dropped.
    """

    def __init__(self, port: int) -> None:
        self.seen: list[str] = []
        self.lost: list[str] = []
        self._proxy = TcpProxy(port, new_filter=lambda: _Commands(self._passes).take)
        self._subject: re.Pattern[str] | None = None
        self._places = frozenset[int]()
        self._count = 0

    async def __aenter__(self) -> Self:
        await self._proxy.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._proxy.__aexit__(kind, error, trace)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self._proxy.port}"

    def lose(self, subject: str, *places: int) -> None:
        """Drops messages with this subject, a regular expression, by their place among all that have it."""
        self._subject, self._places, self._count = re.compile(subject), frozenset(places), 0
        self.lost.clear()

    def _passes(self, subject: str) -> bool:
        self.seen.append(subject)
        if self._subject is None or not self._subject.fullmatch(subject):
            return True
        place, self._count = self._count, self._count + 1
        if place not in self._places:
            return True
        self.lost.append(subject)
        return False


class _Commands:
    """Splits the bytes of one client into commands.

    Args:
        passes: Whether a message with this subject goes on.
    """

    def __init__(self, passes: Callable[[str], bool]) -> None:
        self._passes = passes
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Returns the whole commands in what came so far, without the lost ones."""
        self._rest += data
        out = bytearray()
        while (end := self._rest.find(_END)) >= 0:
            words = self._rest[:end].split()
            size = end + len(_END)
            published = bool(words) and words[0].upper() in (b"PUB", b"HPUB")
            if published:
                size += int(words[-1]) + len(_END)
                if len(self._rest) < size:
                    break
            if not published or self._passes(words[1].decode()):
                out += self._rest[:size]
            self._rest = self._rest[size:]
        return bytes(out)
