"""Reads `multipart/form-data` with one file as it arrives; the file is never whole in memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive

from services.gateway.admission.bodies.reader import PATIENCE_S
from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.resources.files.tenants import NewFile
from shared.errors import InvalidRequest

MAX_FIELD = 1024  # bytes of a field that is no file
MAX_FIELDS = 16
_HOUR_S, _MONTH_S = 3600, 2_592_000


class FileForm:
    """The parts of a form: bytes of the field `file`, and the others in `new`.

    Args:
        content_type: The header of the request.
        receive: See ASGI.
        new: Receives the upload metadata.
        min_rate: Bytes a second that must come after the first seconds; 0: any.
        idle_s: How long the next bytes may take.
    """

    def __init__(
        self, content_type: bytes, receive: Receive, new: NewFile, *, min_rate: int, idle_s: float
    ) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequest("send the file as multipart/form-data with a boundary", param="file")
        self._receive = receive
        self._new = new
        self._min_rate = min_rate
        self._idle_s = idle_s
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._field = ""
        self._value = bytearray()
        self._fields = 0
        self._seen_file = False
        self._ready: deque[bytes] = deque()
        self._whole = False
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._part_begins,
                "on_header_field": lambda data, start, end: _extend(self._header[0], data[start:end]),
                "on_header_value": lambda data, start, end: _extend(self._header[1], data[start:end]),
                "on_header_end": self._header_ends,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._ends,
            },
        )

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the file; at the end `new` is complete.

        Raises:
            InvalidRequest: The body is no such form, has no file, or comes too slowly.
            ClientDisconnected: The caller left.
        """
        loop = asyncio.get_running_loop()
        began_s, size, more = loop.time(), 0, True
        while more:
            late_s = PATIENCE_S + size / self._min_rate if self._min_rate else float("inf")
            try:
                async with asyncio.timeout_at(min(loop.time() + self._idle_s, began_s + late_s)):
                    message = await self._receive()
            except TimeoutError:
                raise InvalidRequest(
                    f"the file did not arrive in time: {size} bytes in {loop.time() - began_s:.1f} s",
                    reason="body_timeout",
                ) from None
            if message["type"] != "http.request":
                raise ClientDisconnected
            more = message.get("more_body", False)
            data = message.get("body", b"")
            size += len(data)
            try:
                self._parser.write(data)
            except MultipartParseError as error:
                raise InvalidRequest(f"the form cannot be read: {error}", param="file") from error
            while self._ready:
                yield self._ready.popleft()
        if not self._whole or not self._seen_file:
            raise InvalidRequest("the form ends early, or has no field `file`", param="file")

    def _part_begins(self) -> None:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise InvalidRequest(f"the form has more than {MAX_FIELDS} fields", param="file")
        self._field = ""
        self._value.clear()

    def _header_ends(self) -> None:
        name, value = bytes(self._header[0]).lower(), bytes(self._header[1])
        self._header[0].clear()
        self._header[1].clear()
        if name != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        if self._field == "file":
            if self._seen_file:
                raise InvalidRequest("the form has two fields `file`", param="file")
            self._seen_file = True
            self._new.filename = _shown(options.get(b"filename", b"file"))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field == "file":
            self._ready.append(data[start:end])
        elif len(self._value) + end - start <= MAX_FIELD:
            self._value += data[start:end]
        else:
            raise InvalidRequest(f"`{self._field[:64]}` is too long", param=self._field[:64])

    def _part_ends(self) -> None:
        text = self._value.decode("utf-8", "replace")
        if self._field == "purpose":
            self._new.purpose = text
        elif self._field == "expires_after[anchor]" and text != "created_at":
            raise InvalidRequest("`expires_after.anchor` is 'created_at'", param="expires_after")
        elif self._field == "expires_after[seconds]":
            if not text.isdigit() or not _HOUR_S <= int(text[:12]) <= _MONTH_S:
                raise InvalidRequest(
                    f"`expires_after.seconds` is a number from {_HOUR_S} to {_MONTH_S}", param="expires_after"
                )
            self._new.expires_after_s = int(text)

    def _ends(self) -> None:
        self._whole = True


def _extend(header: bytearray, more: bytes) -> None:
    if len(header) + len(more) > MAX_FIELD:
        raise InvalidRequest("a header of the form is too long", param="file")
    header += more


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable()) or "file"
