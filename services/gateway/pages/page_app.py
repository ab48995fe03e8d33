"""The application in front of the framework's that answers browsers: pages, their files, and their events.

`/` is the chat for callers that accept HTML; for others it stays the index in JSON.
"""

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.admission.errors.refusals import Headers
from services.gateway.pages.static_files import StaticFile, read_static_files
from shared.web.admitted_connection import CONNECTION

EVENTS = "/cluster/events"
_FILES = "/pages/"
_PAGES = {"/": "chat.html", "/cluster": "cluster.html", "/admin": "admin.html"}
_LENGTH = b"content-length"


class PageApp:
    """Serves the pages; every other request goes on to `app`.

    Args:
        app: Answers everything else.
        events: Answers `GET /cluster/events`.
        static: The files by their paths below `static/`; left out: those of the package.
    """

    def __init__(self, app: ASGIApp, events: ASGIApp, static: Mapping[str, StaticFile] | None = None) -> None:
        self._app = app
        self._events = events
        self._static = read_static_files() if static is None else static

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], dict(scope["headers"])
        if path == EVENTS and scope["method"] == "GET":
            await self._events(scope, receive, send)
            return
        name = _PAGES.get(path, path.removeprefix(_FILES) if path.startswith(_FILES) else "")
        file = self._static.get(name)
        if file is None:
            await self._app(scope, receive, send)
        elif path != "/":
            await _send_file(file, scope, send, [])
        elif accepts_html(headers.get(b"accept", b"")):
            await _send_file(file, scope, send, [(b"vary", b"accept")])
        else:
            await self._app(scope, receive, _varied(send))


def accepts_html(accept: bytes) -> bool:
    """Returns whether a request asks for HTML by name, as browsers do; `*/*` alone asks for anything."""
    kinds = [part.split(b";") for part in accept.lower().split(b",")]
    return any(
        kind[0].strip() == b"text/html" and not any(_is_refused(parameter) for parameter in kind[1:])
        for kind in kinds
    )


def _is_refused(parameter: bytes) -> bool:
    name, _, value = parameter.strip().partition(b"=")
    return name.strip() == b"q" and not value.strip().strip(b"0.")


async def _send_file(file: StaticFile, scope: Scope, send: Send, headers: Headers) -> None:
    known = file.matches(dict(scope["headers"]).get(b"if-none-match", b""))
    length: Headers = [] if known else [(_LENGTH, b"%d" % len(file.body))]
    start = {"status": 304 if known else 200, "headers": [*file.headers, *headers, *length]}
    if scope[CONNECTION].plain is not None:
        scope[CONNECTION].plain.drop_default(b"cache-control")  # the file has its own
    body = b"" if known or scope["method"] == "HEAD" else file.body
    await send({"type": "http.response.start", **start})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _varied(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"vary", b"accept")]}
        await send(message)

    return sent
