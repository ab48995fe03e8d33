"""What all serving routes have in common: the way of a request from its first byte to the last of its answer.

A route says in `serve` what is done; every way in which a request can end comes together in `__call__`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from starlette.types import Receive, Scope, Send

from services.gateway.bodies.body_reader import Bodies
from services.gateway.bodies.large_bodies import LargeBodies
from services.gateway.completions.chunks import error_event
from services.gateway.http.auth import Keyring
from services.gateway.http.errors import HttpRefusal, answer_for
from services.gateway.http.exchange import Outcome, Reply, Running
from services.gateway.http.limits import LINGER_S, ClientDisconnected, RateLimiter, discard_body
from services.gateway.http.quota import Quota
from services.gateway.http.readers import Answer
from services.gateway.metrics import GatewayMetrics
from services.gateway.sessions.session_headers import RawHeaders, request_ids
from services.gateway.settings import GatewaySettings
from services.gateway.streams.detached_streams import Parking, StreamLeft
from shared.client import InferenceClient
from shared.errors import Cancelled, RequestTooLarge, RyzError, Unavailable
from shared.identity import new_request_id
from shared.telemetry.traces import trace_id
from shared.web.protocol import CONNECTION

DEADLINE_MARGIN_S = 2.0  # the generations' own deadline is to come first

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Context:
    """What all requests of a gateway share.

    places: of requests under way. held: bytes of bodies and answers. accepting: whether requests are welcome.
    large: turns of large bodies. root_key: see `root_key.py`. running: answers that may be ended early.
    """

    settings: GatewaySettings
    client: InferenceClient
    keyring: Keyring
    rates: RateLimiter
    places: Quota
    held: Quota
    bodies: Bodies
    metrics: GatewayMetrics
    accepting: Callable[[], bool]
    parking: Parking
    root_key: bytes = b""
    large: LargeBodies = field(default_factory=LargeBodies)
    running: set[Answer] = field(default_factory=set)


@dataclass(slots=True)
class Exchange:
    """One request on its way through a route.

    shown_id: the request's id as its caller sees it; request_id: as it travels.
    """

    scope: Scope
    headers: RawHeaders
    receive: Receive
    reply: Reply
    shown_id: str
    request_id: str
    places: int = 0
    held: int = 0
    body_read: bool = False
    tenant: str = ""
    model: str = ""
    outcome: Outcome = field(default_factory=Outcome)


def body_party(context: Context, tenant: str, scope: Scope) -> str:
    """Whom a body is counted for while it arrives: its tenant, or its address where there are no tenants."""
    client = scope.get("client")
    return client[0] if client and context.keyring.is_open else tenant


class Route(ABC):
    """Answers the requests of one route, which is called `path` in metrics and logs."""

    def __init__(self, path: str, context: Context) -> None:
        self.path = path
        self.context = context

    @abstractmethod
    async def serve(self, exchange: Exchange) -> None:
        """Answers, or raises what becomes the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never raises: every error becomes an answer."""
        started_s = asyncio.get_running_loop().time()
        headers: RawHeaders = dict(scope["headers"])
        shown_id, request_id = request_ids(headers, new_request_id())
        reply = Reply(send)
        reply.name(shown_id)
        exchange = Exchange(scope, headers, receive, reply, shown_id, request_id)
        try:
            await self.serve(exchange)
        except ClientDisconnected:
            reply.status = 499
            self.context.metrics.cancelled.inc()
        except StreamLeft:
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.end()  # no error and no `[DONE]`: its client goes on with it elsewhere
        except Exception as error:
            with suppress(TimeoutError):  # a caller that does not read holds no place for long
                async with asyncio.timeout(2 * LINGER_S):
                    await self._fail(exchange, error)
        finally:
            self.context.places.free(exchange.tenant, exchange.places)
            self.context.held.free(exchange.tenant, exchange.held)
        self._record(exchange, started_s)

    def check_accepting(self) -> None:
        """Raises `Unavailable` while no requests are welcome."""
        if not self.context.accepting():
            raise Unavailable(
                "this gateway takes no requests at the moment: it starts, stops or has no broker",
                reason="not_ready",
                retry_after_s=1.0,
            )

    def take_places(self, exchange: Exchange, count: int) -> None:
        """Places that the request holds until its end; raises like `Quota.take`."""
        self.context.places.take(exchange.tenant, count)
        exchange.places += count

    def running(self, exchange: Exchange, timeout_s: float) -> Running:
        """The part of a request in which it may be ended early; its generations have `timeout_s`."""
        return Running(
            exchange.scope[CONNECTION],
            self.context.running,
            timeout_s + DEADLINE_MARGIN_S,
            exchange.tenant,
            exchange.reply,
        )

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        """Answers with the error: as a status if there is still one to choose, else as an event."""
        if isinstance(error, Cancelled) and error.data.get("reason") == "attached_elsewhere":
            error = HttpRefusal(409, "attached_elsewhere", "another connection has attached to this stream")
        answer, reply = answer_for(error), exchange.reply
        if answer.code == "internal":
            log.error("request failed", request_id=exchange.request_id, route=self.path, exc_info=error)
        if reply.started:
            self.context.metrics.failed_stream(answer.code)
            if not reply.streamed:
                return  # the rest of a whole answer cannot be an error: the connection is closed on it
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.part(error_event(answer), more=False)
            return
        unread = isinstance(error, RequestTooLarge) and not exchange.body_read
        if isinstance(error, RyzError) and error.data.get("reason") == "body_timeout":
            answer.headers.append((b"connection", b"close"))  # what still comes of it is not waited for
        if not unread or b"expect" in exchange.headers:
            await reply.whole(answer.status, answer.body, answer.headers)
            return
        # Closing while the caller still sends would reset the connection, and it might never see the answer
        await reply.whole(answer.status, answer.body, [*answer.headers, (b"connection", b"close")], more=True)
        with suppress(TimeoutError):
            await discard_body(exchange.receive)
        await reply.end()

    def _record(self, exchange: Exchange, started_s: float) -> None:
        metrics, outcome, reply = self.context.metrics, exchange.outcome, exchange.reply
        seconds = asyncio.get_running_loop().time() - started_s
        metrics.ended(self.path, reply.status, seconds)
        metrics.response_bytes.inc(reply.bytes_sent)
        if outcome.first_text_s:
            metrics.first_token(self.path, outcome.first_text_s - started_s)
        if self.context.settings.request_log:
            parent = exchange.headers.get(b"traceparent", b"").decode("latin-1")
            log.info(
                "request",
                request_id=exchange.request_id,
                shown_id=exchange.shown_id,
                trace_id=trace_id({"traceparent": parent})[:32],
                tenant=exchange.tenant,
                route=self.path,
                status=reply.status,
                seconds=round(seconds, 6),
                model=exchange.model,
                group=outcome.group,
                reason=outcome.accepted.reason if outcome.accepted else "",
                kv=outcome.accepted.kv if outcome.accepted else "",
                prompt_tokens=sum(usage.prompt_tokens for usage in outcome.usages),
                completion_tokens=sum(usage.completion_tokens for usage in outcome.usages),
            )
