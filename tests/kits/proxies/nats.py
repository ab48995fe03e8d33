"""A proxy before a broker that reads what its clients publish, and drops or delays single messages."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.kits.proxies.tcp import TcpProxy

# Takes the subject and the payload without headers; True: the message does not reach the broker.
Loss = Callable[[str, bytes], bool]


class NatsProxy(TcpProxy):
    """Forwards everything but the published messages that `loss` chooses.

    Attributes:
        loss: Chooses them.
        lost: Their subjects.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.loss: Loss = keep_all
        self.lost: list[str] = []

    async def _pass_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                words = line.split()
                data = line
                if words[0] in {b"PUB", b"HPUB"}:
                    payload = await reader.readexactly(int(words[-1]) + 2)
                    head = int(words[-2]) if words[0] == b"HPUB" else 0
                    subject = words[1].decode()
                    if self.loss(subject, payload[head:-2]):
                        self.lost.append(subject)
                        continue
                    data += payload
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def keep_all(subject: str, data: bytes) -> bool:
    """Loses nothing."""
    return False
