"""The routes of `/v1/files`: upload, list, tell, read, delete."""

from typing import Any
from urllib.parse import parse_qs, quote

import msgspec

from services.gateway.answering.context import GatewayContext
from services.gateway.resources.files.store import StoredFile
from services.gateway.resources.files.tenants import NewFile, TenantFiles
from services.gateway.transports.http.exchange import HttpExchange
from services.gateway.transports.http.list_pages import page_of
from services.gateway.transports.http.upload import FileForm
from shared.errors import RyzError

PATH = "/v1/files"
_MAX_PAGE, _PAGE = 10_000, 10_000  # as OpenAI has it for files


class FileRoutes:
    """Answers all of these routes.

    Args:
        context: What all requests share.
        files: Stores and reads them.
    """

    def __init__(self, context: GatewayContext, files: TenantFiles) -> None:
        self._context = context
        self._files = files

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `HttpExchange.handle`."""
        exchange.admit()
        exchange.take_slots(1)
        method, path = exchange.scope["method"], exchange.scope["path"]
        if path == PATH:
            shown = await (self._upload(exchange) if method == "POST" else self._list(exchange))
        else:
            name = path.removeprefix(f"{PATH}/").partition("/")[0]
            try:
                if path.endswith("/content"):
                    await self._send_content(exchange, await self._files.get(exchange.caller.tenant, name))
                    return
                shown = await self._one(exchange.caller.tenant, method, name)
            except RyzError as error:
                if error.code == "file_not_found":
                    error.data["param"] = "file_id"
                raise
        await exchange.reply.send_whole(200, msgspec.json.encode(shown), [])

    async def _upload(self, exchange: HttpExchange) -> dict[str, Any]:
        settings = self._context.settings
        new = NewFile()
        form = FileForm(
            exchange.caller.headers.get(b"content-type", b""),
            exchange.receive,
            new,
            min_rate=settings.constants.body_min_rate,
            idle_s=settings.body_timeout_s,
        )
        file = await self._files.add(exchange.caller.tenant, new, form.parts())
        exchange.body_read = True
        return file.as_openai()

    async def _list(self, exchange: HttpExchange) -> dict[str, Any]:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        purpose = query.get("purpose", [""])[-1]
        files = [file.as_openai() for file in await self._files.files_of(exchange.caller.tenant, purpose)]
        return page_of(files, query, newest_first=True, default=_PAGE, most=_MAX_PAGE)

    async def _one(self, tenant: str, method: str, name: str) -> dict[str, Any]:
        if method == "DELETE":
            await self._files.delete(tenant, name)
            return {"id": name, "object": "file", "deleted": True}
        return (await self._files.get(tenant, name)).as_openai()

    async def _send_content(self, exchange: HttpExchange, file: StoredFile) -> None:
        name = quote(file.filename, safe="")
        await exchange.reply.start_stream(
            [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", b"%d" % file.num_bytes),
                (b"content-disposition", f"attachment; filename*=UTF-8''{name}".encode()),
            ]
        )
        exchange.write_failure = lambda _: b""  # an error has no place in a file: its length shows the cut
        async for part in self._files.read(file):
            await exchange.reply.send_part(part)
        await exchange.reply.finish()
