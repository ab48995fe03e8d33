"""Routes that tell about the gateway: models, probes, metrics, and the index."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.identity.identity import Identity, check_scopes
from services.gateway.readiness import Readiness
from services.gateway.served_models import ServedModels
from services.gateway.settings import GatewaySettings
from services.gateway.transports.http.model_objects import served_object
from shared.errors import RyzError
from shared.web.admin_endpoints import readiness_shown
from shared.web.bearer_key import BearerKey
from shared.web.metrics_page import MetricsPage

_LINKS = {
    "models": "/v1/models",
    "sessions": "/v1/sessions",
    "openapi": "/openapi.json",
    "ready": "/ready",
    "metrics": "/metrics",
}


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The state of this process.

    Attributes:
        readiness: Tells whether the gateway can serve now.
        registry: The metrics that /metrics shows.
        version: The version of the distribution.
    """

    readiness: Callable[[], Awaitable[Readiness]]
    registry: CollectorRegistry
    version: str


def info_router(
    settings: GatewaySettings,
    identities: Identities,
    models: ServedModels,
    info: ServiceInfo,
) -> APIRouter:
    """The routes.

    Args:
        settings: Has the keys of probes and metrics.
        identities: Find who makes a call.
        models: The models on offer.
        info: The state of this process.
    """
    probe_key, metrics_key = BearerKey(settings.probe_key), BearerKey(settings.metrics_key)
    page = MetricsPage(info.registry, metrics_key)
    router = APIRouter()

    def authorize(request: Request) -> Identity:
        route = request.url.path
        found = identities.of_headers(dict(request.headers.raw), route, request.scope.get("client"))
        check_scopes(found, route, request.method)
        return found

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """The models that a group serves now, with their other names (`aliases`), and those that hosts offer.

        Of models that are for some tenants only, it lists those for the caller's.

        What a host offers has a `status`; a request for one that is not `ready` waits until it is loaded.
        Adapters follow, with their base as `parent`.
        """
        is_probe = probe_key.matches(request.headers.get("authorization", ""))
        served = await (models.list_all() if is_probe else models.list_for(authorize(request)))
        pages = {
            "has_more": False,
            "first_id": served[0].card.name if served else None,
            "last_id": served[-1].card.name if served else None,
        }
        data = [served_object(one) for one in served]
        return JSONResponse({"object": "list", "data": data, **pages})

    @router.get("/v1/models/{model:path}")
    async def show_model(request: Request, model: str) -> Response:
        """One model, also by another name that it has (`RYZ_MODEL_ALIASES`)."""
        one = await models.find(model, authorize(request))
        return JSONResponse(served_object(one))

    @router.get("/live")
    async def live() -> Response:
        """The process answers."""
        return JSONResponse({"status": "live"})

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """The process answers, under the name that other servers use; see `/ready` for more."""
        return JSONResponse({"status": "live"})

    @router.get("/ready")
    async def ready(request: Request) -> Response:
        """200 when a group can serve requests, else 503 with `X-Ryz-Reason`; details with the metrics key."""
        found = await info.readiness()
        return JSONResponse(
            readiness_shown(found.body, metrics_key, request),
            status_code=503 if found.reason else 200,
            headers={"retry-after": "1", "x-ryz-reason": found.reason} if found.reason else None,
        )

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """For Prometheus; asks for the metrics key if there is one."""
        return page.answer_scrape(request)

    @router.get("/")
    async def index(request: Request) -> Response:
        """The name of the service and its links; with its version for callers who may use it."""
        body: dict[str, Any] = {"name": "ryzanstein", "links": _LINKS}
        with suppress(HttpRefusal, RyzError):
            authorize(request)
            body["version"] = info.version
        return JSONResponse(body)

    return router
