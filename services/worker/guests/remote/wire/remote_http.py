"""HTTP to one remote server: its key, its certificates, bounds of answers, and one sentence for each failure.

Redirects are never followed, so that the key and prompts reach no other host. Proxies and keys of the
environment (`HTTPS_PROXY`, `.netrc`) are not used.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.wire.server_error import ServerError

_MAX_BODY = 8 * 1024 * 1024  # of an answer that is no stream; `/metrics` of a large server has some 100 KiB
_MAX_QUOTED = 200  # characters of a server's own message
_SEND_S = 30.0  # for a request's body
_REFUSAL_S = 5.0  # for the text of an error
_EVENTS = "text/event-stream"
_LATE = "did not answer in time"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that was read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's value; None if it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, ValueError):
            return None


class RemoteHttp:
    """The server of these options; use it within one event loop, and close it.

    Raises:
        OSError: The file of certificates cannot be read.
    """

    def __init__(self, options: RemoteOptions) -> None:
        self._base = options.base_url
        self._key = options.api_key
        headers = {"Accept-Encoding": "identity", "User-Agent": "ryzanstein"}
        if options.api_key:
            headers["Authorization"] = f"Bearer {options.api_key}"
        tls = ssl.create_default_context(cafile=options.ca_file or None)
        timeout = httpx.Timeout(connect=options.connect_timeout_s, read=None, write=_SEND_S, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(
            headers=headers, verify=tls, timeout=timeout, limits=limits, trust_env=False
        )

    async def get(self, path: str, timeout_s: float) -> Reply:
        """Read a resource.

        Raises:
            ServerError: There is no answer, or it is too large.
        """
        return await self._whole("GET", path, None, timeout_s)

    async def post(self, path: str, body: object, timeout_s: float) -> Reply:
        """Post JSON, and read the answer whole.

        Raises:
            ServerError: There is no answer, or it is too large.
        """
        return await self._whole("POST", path, body, timeout_s)

    @asynccontextmanager
    async def events(self, path: str, body: object) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Post JSON, and give the bytes of the answer's stream of events as they come.

        Raises:
            ServerError: There is no such stream, or it breaks off.
        """
        request = self._request("POST", path, body, {"Accept": _EVENTS})
        try:
            answer = await self._client.send(request, stream=True)
            try:
                await self._check_stream(answer)
                yield answer.aiter_raw()
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            raise self._failure(error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def refusal(self, reply: Reply) -> ServerError:
        """Return what a status that is no success says, with the server's own words where they are short."""
        status = reply.status
        if 300 <= status < 400:
            target = urlsplit(reply.headers.get("location", "")).netloc or "another path"
            return ServerError(
                f"redirects to {self._quoted(target)}, which is not followed; name that address instead",
                status=status,
            )
        if status in (401, 403):
            what = "refuses the API key" if self._key else "wants an API key"
            return ServerError(f"{what} (status {status}); give the right one by its file", status=status)
        said = self._quoted(_message(reply.json()))
        wait = self._quoted(reply.headers.get("retry-after", ""))
        return ServerError(
            f"answered with status {status}"
            + (f", to be asked again in {wait} s" if wait.isdigit() else "")
            + (f": {said}" if said else ""),
            status=status,
        )

    def quoted_error(self, error: object) -> ServerError:
        """Return the failure that an error object within an answer reports."""
        said = self._quoted(_message(error))
        return ServerError(f"reports an error: {said or 'without a text'}")

    async def _whole(self, method: str, path: str, body: object, timeout_s: float) -> Reply:
        request = self._request(method, path, body, {})
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._client.send(request, stream=True)
                try:
                    return await self._read(answer)
                finally:
                    await answer.aclose()
        except TimeoutError as error:
            raise ServerError(_LATE, lost=True) from error
        except httpx.HTTPError as error:
            raise self._failure(error) from error

    def _request(self, method: str, path: str, body: object, headers: dict[str, str]) -> httpx.Request:
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers = {**headers, "Content-Type": "application/json"}
        return self._client.build_request(method, self._base + path, content=content, headers=headers)

    async def _read(self, answer: httpx.Response) -> Reply:
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > _MAX_BODY:
                raise ServerError(f"sent an answer of more than {_MAX_BODY} bytes")
        return Reply(answer.status_code, answer.headers, bytes(body))

    async def _read_refusal(self, answer: httpx.Response) -> Reply:
        try:
            async with asyncio.timeout(_REFUSAL_S):
                return await self._read(answer)
        except TimeoutError:  # the status says enough
            return Reply(answer.status_code, answer.headers, b"")

    async def _check_stream(self, answer: httpx.Response) -> None:
        if not 200 <= answer.status_code < 300:
            raise self.refusal(await self._read_refusal(answer))
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ServerError("compressed its stream, which was not asked for")
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _EVENTS:
            value = (await self._read_refusal(answer)).json()
            if isinstance(value, dict) and value.get("error"):
                raise self.quoted_error(value["error"])
            raise ServerError(f"answered with {self._quoted(kind) or 'no content type'} instead of {_EVENTS}")

    def _failure(self, error: httpx.HTTPError) -> ServerError:
        if isinstance(error, httpx.ConnectTimeout):
            return ServerError("could not be reached in time", gone=True)
        if isinstance(error, httpx.ConnectError):
            why = self._quoted(str(error))
            remedy = "; name the file with its authority's certificate" if "CERTIFICATE" in why else ""
            return ServerError(f"cannot be reached ({why}){remedy}", gone=True)
        if isinstance(error, httpx.TimeoutException):
            return ServerError(_LATE, lost=True)
        return ServerError("broke the connection off", lost=True)

    def _quoted(self, text: str) -> str:
        """Return a text of the server for messages: one short line, without the key."""
        if self._key:
            text = text.replace(self._key, "[key]")
        line = "".join(character if character.isprintable() else " " for character in text)
        line = " ".join(line.split())
        return line if len(line) <= _MAX_QUOTED else line[:_MAX_QUOTED] + "..."


def _message(value: object) -> str:
    """Return the text of an error in the forms that servers use."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _message(value[0]) if value else ""
    if isinstance(value, dict):
        for name in ("error", "message", "detail", "msg"):
            if found := _message(value.get(name)):
                return found
    return ""
