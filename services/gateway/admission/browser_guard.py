"""Refuses requests of web pages that may not use the gateway, and answers CORS for those that may.

The rules of names and origins are in `shared/web/host_rules.py`.
"""

from collections.abc import Awaitable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.admission.answer_headers import READABLE_HEADERS
from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.errors.shapes import error_body
from services.gateway.admission.identity.identities import Identities
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from shared.web.host_rules import OriginRule, host_rule, names


class BrowserGuard:
    """An ASGI application in front of the gateway's."""

    def __init__(
        self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics, identities: Identities
    ) -> None:
        origins = names(settings.http_allowed_origins)
        # by whether requests need a key, which may change while the gateway runs
        self._hosts = {
            has_keys: host_rule(settings.http_allowed_hosts, settings.http_host, has_keys=has_keys)
            for has_keys in (False, True)
        }
        self._origins = {has_keys: OriginRule(origins, has_keys) for has_keys in (False, True)}
        self._identities = identities
        self._metrics = metrics
        self._app = app
        if origins:
            self._app = CORSMiddleware(
                app,
                allow_origins=sorted(origins),
                allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["*"],
                expose_headers=READABLE_HEADERS,
            )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """See ASGI."""
        refusal = self._refusal(scope)
        return self._app(scope, receive, send) if refusal is None else self._refuse(refusal, scope, send)

    def _refusal(self, scope: Scope) -> HttpRefusal | None:
        if scope["type"] not in {"http", "websocket"}:
            return None
        headers = dict(scope["headers"])  # the server lets each of these come once only
        host = headers.get(b"host", b"")
        has_keys = self._identities.is_known and not self._identities.is_open
        origin, site = headers.get(b"origin", b""), headers.get(b"sec-fetch-site", b"")
        if host and not self._hosts[has_keys].allows(host):
            return HttpRefusal(
                421,
                "host_not_allowed",
                f"this gateway is not called {host.decode('latin-1')[:100]!r}; "
                "name it in RYZ_HTTP_ALLOWED_HOSTS if it is",
            )
        if (origin or site) and not self._origins[has_keys].allows(
            origin, site, host, brings_key=b"authorization" in headers or b"x-api-key" in headers
        ):
            return HttpRefusal(
                403,
                "origin_not_allowed",
                f"pages of {origin.decode('latin-1')[:100] or 'other sites'!r} may not use this gateway; "
                "name their origin in RYZ_HTTP_ALLOWED_ORIGINS if they may",
            )
        return None

    async def _refuse(self, refusal: HttpRefusal, scope: Scope, send: Send) -> None:
        answer = answer_for(refusal)
        self._metrics.count_answer("other", answer.status, 0.0)
        body = error_body(answer, scope["path"])
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", b"application/json"), length, (b"connection", b"close"), *answer.headers]
        kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
        await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})
