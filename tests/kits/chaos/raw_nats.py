"""A broker connection without checks: subjects, reply subjects and headers are sent as given."""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import unquote, urlsplit

import msgpack

ANSWER_S = 10.0


class RawNats:
    """The connection of one broker user.

    Attributes:
        user: Name of the user.
        answers: Number of answers by the last token of their subject.
        refusals: Permission errors from the broker.
        lost: Whether the broker has closed the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: str) -> None:
        self.user = user
        self.answers: dict[str, int] = {}
        self.refusals: list[str] = []
        self.lost = False
        self._reader = reader
        self._writer = writer
        self._pongs: asyncio.Queue[None] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Connects as the URL's user and subscribes to `inbox`."""
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        assert parts.username
        assert parts.password
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        await reader.readline()  # INFO
        writer.write(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"none",'
            b'"version":"0","protocol":1,"name":"fuzz","user":"%b","pass":"%b"}\r\n'
            % (parts.username.encode(), unquote(parts.password).encode())
        )
        raw = cls(reader, writer, parts.username)
        writer.write(f"SUB {raw.inbox}.* 1\r\n".encode())
        await raw.flush()
        return raw

    @property
    def inbox(self) -> str:
        """Prefix of its reply subjects; one more token follows."""
        return f"_INBOX.{self.user}.fuzz"

    def publish(self, subject: str, data: bytes, reply: bytes = b"", headers: bytes = b"") -> None:
        """Publishes a message; `headers` are the bytes between the version line and the empty line."""
        names = subject.encode() + (b" " + reply if reply else b"")
        if headers:
            head = b"NATS/1.0\r\n" + headers + b"\r\n\r\n"
            self._writer.write(b"HPUB %b %d %d\r\n" % (names, len(head), len(head) + len(data)) + head + data)
        else:
            self._writer.write(b"PUB %b %d\r\n" % (names, len(data)) + data)
        self._writer.write(b"\r\n")

    async def flush(self) -> None:
        """Returns when the broker has read everything sent before."""
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        async with asyncio.timeout(ANSWER_S):
            await self._pongs.get()

    async def close(self) -> None:
        """Closes the connection."""
        self._writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            await self._read_all()
        except OSError as error:
            self.refusals.append(repr(error))
        finally:
            self.lost = True

    async def _read_all(self) -> None:
        while line := await self._reader.readline():
            verb, _, rest = line.rstrip().partition(b" ")
            if verb == b"PING":
                self._writer.write(b"PONG\r\n")
            elif verb == b"PONG":
                self._pongs.put_nowait(None)
            elif verb in {b"MSG", b"HMSG"}:
                words = rest.split()
                data = await self._reader.readexactly(int(words[-1]) + 2)
                inbox = words[0].decode().rpartition(".")[2]
                self.answers[inbox] = self.answers.get(inbox, 0) + 1
                if verb == b"MSG":
                    msgpack.unpackb(data[:-2], strict_map_key=False)  # every answer must be decodable
            elif verb == b"-ERR":
                self.refusals.append(rest.decode())
