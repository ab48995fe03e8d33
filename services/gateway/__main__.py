"""Starts a gateway: settings, broker, client, HTTP server; drains it at the end."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import structlog

from services.gateway.admission.admission import Admission
from services.gateway.admission.bodies.reader import BodyReader
from services.gateway.admission.identity.assembly import open_identities
from services.gateway.admission.limits.call_limits import call_limits
from services.gateway.admission.operators import Operators
from services.gateway.admission.parties import Parties
from services.gateway.admission.rate_limits import RateLimiter, tokens_per_minute
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.answering.events.slow_readers import ReaderLimits, watch_readers
from services.gateway.answering.intake.model_names import AdapterNames, ModelAliases
from services.gateway.answering.request_tracing import RequestTracing
from services.gateway.answering.resumption.detached_streams import DetachedStreams
from services.gateway.answering.revoked_keys import RevokedKeys
from services.gateway.app import create_app
from services.gateway.checked_settings import (
    checked_admin_keys,
    checked_aliases,
    checked_claims,
    checked_keys,
    made_root_key,
)
from services.gateway.formats.responses.format import PATH as RESPONSES
from services.gateway.metrics import GatewayMetrics
from services.gateway.pages.assembly import page_parts
from services.gateway.readiness import ROUTER_WAIT_S, ReadinessCheck
from services.gateway.resources.batches.assembly import batch_service, run_batches
from services.gateway.resources.batches.runner import LineCall
from services.gateway.resources.sessions.file_thread import FileThread
from services.gateway.resources.sessions.tenants import TenantSessions
from services.gateway.resources.stored_responses.background_runs import BackgroundRuns
from services.gateway.served_models import ServedModels
from services.gateway.settings import GatewaySettings
from services.gateway.transports.bus.complete_calls import CompleteCalls, serve_complete_calls
from services.gateway.transports.grpc.assembly import open_grpc
from services.gateway.transports.grpc.needs import GrpcNeeds
from services.gateway.transports.http.gateway_gate import QuotaCollector, gateway_gate
from services.gateway.transports.http.routes.info import ServiceInfo
from services.gateway.transports.http.routes.responses import response_parts
from services.gateway.transports.websocket.sockets import PATH as REALTIME
from shared.adapters.register import AdapterRegister
from shared.bus import Bus
from shared.bus.jetstream.jetstream import JetStream
from shared.client import ClientSettings, InferenceClient
from shared.client.calls.model_list import known_models, usable_names
from shared.client.calls.register_sync import RegisterSync
from shared.client.calls.session_admin import SessionAdmin
from shared.errors import Unavailable
from shared.lifecycle import Service, run_service
from shared.messages import ModelList
from shared.settings import load
from shared.telemetry.metrics import ClientCollector
from shared.telemetry.service_levels import ServiceLevels
from shared.tls import check_server_files
from shared.usage.assembly import open_ledger
from shared.web.http_server import http_server, passed_socket
from shared.web.web_socket import web_socket_options

log = structlog.get_logger(__name__)

_DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class OpenServers:
    """Where a started gateway is reached.

    Attributes:
        http_port: The port of HTTP.
        direct: Runs calls from inside the process.
        grpc_port: The port of gRPC; 0: it is not served.
    """

    http_port: int
    direct: DirectCalls
    grpc_port: int = 0


async def start(
    service: Service,
    stack: AsyncExitStack,
    settings: GatewaySettings,
    keys: dict[str, str],
    bus: Bus,
    *,
    client_settings: ClientSettings,
    passed: socket.socket | None = None,
) -> OpenServers:
    """Builds and connects the parts, and serves until the stack closes.

    Args:
        service: Its life.
        stack: Closes what is opened here.
        settings: Of the gateway.
        keys: Tenants by API key.
        bus: The broker.
        client_settings: Time limits towards the fleet.
        passed: A socket that listens for HTTP already.
    """
    measured = ClientCollector(service.registry)
    client = InferenceClient(bus, client_settings, stats=measured.stats, timelines=service.timelines)
    tokens = tokens_per_minute(settings.rate_limit_tpm)
    client.record_usage((await open_ledger(bus, service.registry, "ryz_gateway_", stack)).put)
    await client.start()
    stack.push_async_callback(client.close)
    metrics = GatewayMetrics(service.registry)
    identities, news = await open_identities(settings, keys, bus, stack, metrics)
    parties = Parties(identities, settings)
    slots = parties.quota(settings.max_concurrent, what="requests under way", reason="gateway_concurrency")
    held = parties.quota(settings.max_held_bytes, what="bytes of bodies", reason="gateway_memory")
    units = {"places": (slots, "Requests under way"), "held_bytes": (held, "Bytes of bodies under way")}
    service.registry.register(QuotaCollector(units))
    spaces = parties.quota(settings.stream_max_parked, what="detached streams", reason="parked_streams")
    limits = await call_limits(bus, identities.register, settings.instance_id, metrics, stack)
    detached = DetachedStreams(slots, metrics, spaces, limits)
    stack.push_async_callback(detached.close)

    async def quick_models() -> ModelList:
        return await known_models(bus, timeout_s=min(settings.constants.models_timeout_s, ROUTER_WAIT_S))

    async def model_names() -> list[str]:
        known = await quick_models()
        return [*usable_names(known), *known.away]

    context = GatewayContext(
        settings=settings,
        client=client,
        admission=Admission(
            identities=identities,
            parties=parties,
            rates=RateLimiter(rate=settings.rate_limit_rps, burst=settings.rate_limit_burst),
            slots=slots,
            held=held,
            # also before it is ready, for connections that waited for it, and while the broker is away
            accepting=lambda: service.state in {"starting", "ready"},
            tokens=tokens,
            limits=limits,
        ),
        bodies=BodyReader(settings, held, parties.body_quota()),
        metrics=metrics,
        levels=measured.levels,
        timelines=service.timelines,
        tracing=RequestTracing(service.spans, settings.trace_ratio) if service.spans is not None else None,
        aliases=await _model_aliases(settings, bus, stack, measured.levels, model_names),
        accounts=identities.register,
    )
    client.report_usage(context.admission.charge)
    secret = made_root_key(settings)
    files = FileThread()
    stack.callback(files.close)
    admin = SessionAdmin(
        bus,
        timeout_s=settings.constants.sessions_timeout_s,
        gather_s=settings.constants.holders_wait_s,
        wait_s=client_settings.wait_s,
    )
    sessions = TenantSessions(context, admin, context.known_models, files, secret)
    responses = response_parts(context, bus)
    stack.push_async_callback(responses.background.hand_over)
    claiming = asyncio.create_task(responses.background.watch())
    stack.callback(claiming.cancel)
    jetstream = JetStream(bus)
    stack.push_async_callback(jetstream.stop)
    batches = batch_service(settings, jetstream, identities.register)
    news.follow(RevokedKeys(context, (detached.end_streams, responses.background.end_runs)).on_change)
    served = ServedModels(context.known_models, context.aliases, context.usable_models)
    ready = ReadinessCheck(service, quick_models, knows_keys=lambda: identities.is_known)
    info = ServiceInfo(ready.check, service.registry, version("ryzanstein"))
    app = create_app(
        context,
        detached,
        root_key=secret,
        sessions=sessions,
        responses=responses,
        batches=batches,
        pages=page_parts(context, bus, measured.stats, stack),
        models=served,
        operators=Operators(checked_admin_keys(settings), identities, settings),
        info=info,
    )

    _watch_readers(stack, context)
    line_call = LineCall(app.direct, identities, batches.parts.streams.max_line, settings.max_timeout_s)
    await run_batches(batches, bus, line_call, service, stack, register=identities.register)
    await serve_complete_calls(
        CompleteCalls(bus, app.direct, settings, measured.levels, identities.register), service, stack
    )
    check_server_files("HTTP", settings.http_cert, settings.http_key)
    grpc_port = await open_grpc(
        stack, service, GrpcNeeds(context, app.direct, served, info.readiness, sessions)
    )
    _watch_service(service, context, detached, responses.background)
    port = await stack.enter_async_context(
        http_server(
            app.http,
            settings.http_host,
            settings.http_port,
            gateway_gate(settings, service.registry),
            held=settings.ports_held,
            passed=passed,
            ssl_certfile=settings.http_cert or None,
            ssl_keyfile=settings.http_key or None,
            timeout_keep_alive=settings.keep_alive_s,
            **web_socket_options(frozenset({RESPONSES.encode(), REALTIME.encode()}), settings.max_body_bytes),
        )
    )
    stack.callback(_abort_running, context)
    log.info("serving", host=settings.http_host, port=port, keys=len(keys), tls=bool(settings.http_cert))
    return OpenServers(port, app.direct, grpc_port)


def _watch_readers(stack: AsyncExitStack, context: GatewayContext) -> None:
    """Cuts off answers that are not read, until the stack closes."""
    settings, total = context.settings, context.settings.max_unread_bytes

    def limits() -> ReaderLimits:
        of_party = round(total * context.admission.parties.share)
        return ReaderLimits(settings.write_timeout_s, total, of_party)

    watching = asyncio.create_task(watch_readers(context.running, limits, context.metrics.slow_readers.inc))
    stack.callback(watching.cancel)


async def _model_aliases(
    settings: GatewaySettings,
    bus: Bus,
    stack: AsyncExitStack,
    levels: ServiceLevels,
    list_names: Callable[[], Awaitable[list[str]]],
) -> ModelAliases:
    """Other names of models and adapters; the adapters are kept in step with the register."""
    aliases = checked_aliases(settings)
    adapters = AdapterNames(AdapterRegister(), aliases)
    await RegisterSync(bus, adapters.register).open(stack)
    levels.label_of = adapters.label_of
    return ModelAliases(aliases, list_names, adapters=adapters)


def _watch_service(
    service: Service, context: GatewayContext, detached: DetachedStreams, background: BackgroundRuns
) -> None:
    """Registers what the service calls when it drains and when it is asked for its status."""

    async def drain() -> None:
        detached.stop_parking()
        await background.hand_over()
        while context.admission.slots.taken or context.bodies.in_flight:  # noqa: ASYNC110 (bounded by the lifecycle; requests need no event for it)
            await asyncio.sleep(_DRAIN_POLL_S)

    def detail() -> dict[str, Any]:
        return {
            "running": context.admission.slots.taken,
            "max_concurrent": context.admission.slots.limit,
            "bodies": context.bodies.in_flight,
            "held_bytes": context.admission.held.taken,
        }

    service.on_drain(drain)
    service.set_detail(detail)


def _abort_running(context: GatewayContext) -> None:
    for running in tuple(context.running):
        running.abort(
            Unavailable("the gateway stops; send the request again", reason="draining", retry_after_s=1.0)
        )


def main() -> None:
    """The entry point of the process."""
    settings, client_settings = load(GatewaySettings), load(ClientSettings)
    keys, passed = checked_keys(settings), passed_socket()
    # before anything is connected
    _ = checked_aliases(settings), checked_admin_keys(settings), checked_claims(settings)

    async def setup(service: Service, stack: AsyncExitStack) -> None:
        bus = await service.connect_bus(stack)
        await service.answer_operators(bus)
        await start(service, stack, settings, keys, bus, client_settings=client_settings, passed=passed)
        service.ready()

    run_service(settings, "gateway", setup)


if __name__ == "__main__":
    main()
