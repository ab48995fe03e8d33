"""The base of the serving routes: a request from its first byte to the last of its answer.

A route does its work in `serve_request`; `__call__` handles every way in which a request can end.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from starlette.types import Receive, Scope, Send

from services.gateway.admission.auth import Keyring
from services.gateway.admission.body_reader import LINGER_S, BodyReader, discard_body
from services.gateway.admission.disconnects import ClientDisconnected, StreamLeft
from services.gateway.admission.error_shapes import error_body, is_anthropic
from services.gateway.admission.large_bodies import LargeBodies
from services.gateway.admission.parties import Parties
from services.gateway.admission.quota import Quota
from services.gateway.admission.rate_limits import RateLimiter, tokens_per_minute
from services.gateway.admission.refusals import ErrorAnswer, HttpRefusal, answer_for, error_event
from services.gateway.admission.request_headers import RawHeaders, request_ids
from services.gateway.answering.background_calls import BACKGROUND
from services.gateway.answering.model_aliases import ModelAliases, no_aliases
from services.gateway.answering.refusal_counts import count_refusal
from services.gateway.answering.request_tracing import AnsweredRequest, RequestTracing
from services.gateway.answering.running_call import RunningRequest
from services.gateway.answering.slow_readers import OpenAnswer
from services.gateway.http.reply import CallOutcome, Reply
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from shared.client import InferenceClient
from shared.errors import Cancelled, RequestTooLarge, RyzError, Unavailable
from shared.identity import new_request_id
from shared.telemetry.request_ids import bind_request
from shared.telemetry.service_levels import ServiceLevels
from shared.telemetry.spans.request_trace import CURRENT_TRACE, RequestTrace
from shared.telemetry.timelines import UNRECORDED, RequestTimeline, Timelines
from shared.web.admitted_connection import CONNECTION
from shared.web.limited_protocol import INNER_TENANT

DEADLINE_MARGIN_S = 2.0  # past the deadline of the generations, which is to come first

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class GatewayContext:
    """The parts that all requests of a gateway share.

    Attributes:
        places: Places of requests under way.
        held: Bytes of bodies.
        accepting: Whether requests are welcome.
        parties: Find for whom a request counts.
        large: Turns of large bodies.
        running: Answers that may be ended early.
        tokens: Limits the tokens of tenants.
        timelines: Keeps when requests passed the parts of this gateway.
        tracing: Records requests in traces; None: none are recorded.
        aliases: Find the models that requests mean by other names.
        levels: Count requests that are refused before the fleet is asked; None: they are not counted.
    """

    settings: GatewaySettings
    client: InferenceClient
    keyring: Keyring
    rates: RateLimiter
    places: Quota
    held: Quota
    bodies: BodyReader
    metrics: GatewayMetrics
    accepting: Callable[[], bool]
    parties: Parties
    large: LargeBodies = field(default_factory=LargeBodies)
    running: set[OpenAnswer] = field(default_factory=set)
    tokens: RateLimiter = field(default_factory=lambda: tokens_per_minute(0))
    timelines: Timelines = field(default_factory=lambda: Timelines(0))
    tracing: RequestTracing | None = None
    levels: ServiceLevels | None = None
    aliases: ModelAliases = field(default_factory=no_aliases)

    def check_accepting(self) -> None:
        """Raises `Unavailable` while no requests are welcome."""
        if not self.accepting():
            raise Unavailable(
                "this gateway takes no requests any more: it stops",
                reason="not_ready",
                retry_after_s=1.0,
            )


@dataclass(slots=True)
class HttpExchange:
    """One request on its way through a route.

    Attributes:
        shown_id: The id of the request as its caller sees it.
        request_id: The id of the request as it travels.
        places: Places that the request holds.
        held: Bytes that the request holds.
        estimate: Tokens that it is charged for until it ends.
        body_read: Its body has been read to the end.
        begun: The gateway has taken it: it asks the fleet.
        party: For whom it counts; see `parties.py`.
        created_s: When it came, in seconds since 1970.
        write_failure: Makes the event of a failure in the middle of a stream.
        timeline: When the request passed the parts of this gateway.
        trace: Of a request that is recorded.
        failure: The code of the error that ended a stream which had begun; empty: none did.
    """

    scope: Scope
    headers: RawHeaders
    receive: Receive
    reply: Reply
    shown_id: str
    request_id: str
    places: int = 0
    held: int = 0
    estimate: int = 0
    body_read: bool = False
    begun: bool = False
    tenant: str = ""
    party: str = ""
    model: str = ""
    outcome: CallOutcome = field(default_factory=CallOutcome)
    created_s: int = field(default_factory=lambda: int(time.time()))
    write_failure: Callable[[ErrorAnswer], bytes] = error_event
    timeline: RequestTimeline = UNRECORDED
    trace: RequestTrace | None = None
    failure: str = ""

    def take_ids(self, request_id: str, shown_id: str) -> None:
        """Takes the ids of an earlier request, whose answer is sent here."""
        self.request_id, self.shown_id = request_id, shown_id
        self.reply.set_request_id(shown_id)


class ServingRoute(ABC):
    """Answers the requests of one route, which is called `path` in metrics and logs."""

    def __init__(self, path: str, context: GatewayContext) -> None:
        self.path = path
        self.context = context

    @abstractmethod
    async def serve_request(self, exchange: HttpExchange) -> None:
        """Answers the request, or raises the error that becomes the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never raises: every error becomes an answer."""
        started_s = time.monotonic()  # uvloop's clock stands still during a turn of the loop
        headers: RawHeaders = dict(scope["headers"])
        shown_id, request_id = request_ids(headers, new_request_id())
        reply = Reply(send, scope[CONNECTION].plain)
        reply.set_request_id(shown_id, anthropic=is_anthropic(self.path))
        exchange = HttpExchange(scope, headers, receive, reply, shown_id, request_id)
        tracing = self.context.tracing
        trace = exchange.trace = tracing.begin(headers, self.traced_id(exchange)) if tracing else None
        exchange.timeline = self.context.timelines.begin(request_id, traced=trace is not None)
        exchange.timeline.mark("received", {"route": self.path})
        outer = CURRENT_TRACE.set(trace)
        parent = trace.header if trace is not None else headers.get(b"traceparent", b"").decode("latin-1")
        with bind_request(request_id, parent):
            await self._serve_whole(exchange)
            seconds = time.monotonic() - started_s
            exchange.timeline.mark("answered", {"status": reply.status, "tenant": exchange.tenant})
            self._record(exchange, started_s, seconds)
        CURRENT_TRACE.reset(outer)
        if tracing is not None and trace is not None:
            tracing.end(trace, self._answered(exchange))

    def traced_id(self, exchange: HttpExchange) -> str:
        """The id of the request whose trace this exchange belongs to."""
        return exchange.request_id

    def _answered(self, exchange: HttpExchange) -> AnsweredRequest:
        return AnsweredRequest(
            route=self.path,
            method=exchange.scope["method"],
            status=exchange.reply.status,
            failure=exchange.failure,
            shown_id=exchange.shown_id,
            request_id=exchange.request_id,
            tenant=exchange.tenant,
            model=exchange.model,
            outcome=exchange.outcome,
            marks=exchange.timeline.marked(),
        )

    async def _serve_whole(self, exchange: HttpExchange) -> None:
        """Serves the request, answers its errors, and gives back what it holds."""
        reply = exchange.reply
        try:
            await self.serve_request(exchange)
        except ClientDisconnected:
            reply.status = 499
            self.context.metrics.cancelled.inc()
        except StreamLeft:
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.finish()  # no error and no `[DONE]`: the client resumes the stream elsewhere
        except Exception as error:
            if self.context.levels is not None and not exchange.begun:
                count_refusal(self.context.levels, self.path, exchange.model, exchange.tenant, error)
            with suppress(TimeoutError):  # a caller that does not read holds no place for long
                async with asyncio.timeout(2 * LINGER_S):
                    await self._fail(exchange, error)
        finally:
            self.context.places.free_units(exchange.party, exchange.places)
            self.context.held.free_units(exchange.party, exchange.held)
            # what its generations used is charged when their last frames come
            self.context.tokens.charge(exchange.tenant, -exchange.estimate)

    def admit(self, exchange: HttpExchange) -> None:
        """Finds the tenant of a request, and checks whether it may make one now.

        Every answer tells what is left of the tenant's rate, if it has a limit.

        Raises:
            Unavailable: No requests are welcome.
            RateLimited: The tenant is over its rate.
            HttpRefusal: The key is not known.
        """
        context, now_s = self.context, time.monotonic()
        context.check_accepting()
        named = exchange.scope.get(INNER_TENANT, "")
        exchange.tenant = named or context.keyring.tenant_of(exchange.headers, self.path)
        exchange.party = context.parties.party_of(exchange.tenant, exchange.scope.get("client"))
        if BACKGROUND in exchange.scope:
            return
        try:
            context.rates.take_units(exchange.tenant, now_s)
        finally:
            exchange.reply.headers += context.rates.headers(exchange.tenant, now_s)

    def take_places(self, exchange: HttpExchange, count: int) -> None:
        """Takes places that the request holds until its end; raises like `Quota.take_units`."""
        self.context.places.take_units(exchange.party, count)
        exchange.places += count

    def running_request(self, exchange: HttpExchange, timeout_s: float) -> RunningRequest:
        """The part of a request in which it may be ended early; its generations have `timeout_s`."""
        exchange.begun = True
        scope, running, limit_s = exchange.scope, self.context.running, timeout_s + DEADLINE_MARGIN_S
        return RunningRequest(scope[CONNECTION], running, limit_s, exchange.party, exchange.reply)

    async def _fail(self, exchange: HttpExchange, error: Exception) -> None:
        """Sends the error: as a status if none was sent yet, else as an event of the stream."""
        if isinstance(error, Cancelled) and error.data.get("reason") == "attached_elsewhere":
            error = HttpRefusal(409, "attached_elsewhere", "another connection has attached to this stream")
        answer, reply = answer_for(error), exchange.reply
        if answer.code == "internal":
            log.error("request failed", request_id=exchange.request_id, route=self.path, exc_info=error)
        if reply.started:
            exchange.failure = answer.code
            self.context.metrics.count_failed_stream(answer.code)
            if reply.torn or not reply.streamed:
                return  # in the middle of an event or of a whole answer: the server closes the connection
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.send_part(exchange.write_failure(answer), more=False)
            return
        unread = isinstance(error, RequestTooLarge) and not exchange.body_read
        if isinstance(error, RyzError) and error.data.get("reason") == "body_timeout":
            answer.headers.append((b"connection", b"close"))  # the rest of the body is not waited for
        body = error_body(answer, self.path, exchange.shown_id)
        if not unread or b"expect" in exchange.headers:
            await reply.send_whole(answer.status, body, answer.headers)
            return
        # closing while the caller still sends would reset the connection, and the answer might be lost
        closing = [*answer.headers, (b"connection", b"close")]
        await reply.send_whole(answer.status, body, closing, more=True)
        with suppress(TimeoutError):
            await discard_body(exchange.receive)
        await reply.finish()

    def _record(self, exchange: HttpExchange, started_s: float, seconds: float) -> None:
        metrics, outcome, reply = self.context.metrics, exchange.outcome, exchange.reply
        metrics.count_answer(self.path, reply.status, seconds)
        metrics.response_bytes.inc(reply.bytes_sent)
        if outcome.first_text_s:
            metrics.observe_first_token(self.path, max(0.0, outcome.first_text_s - started_s))
        if self.context.settings.request_log:
            log.info(
                "request",
                request_id=exchange.request_id,
                shown_id=exchange.shown_id,
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
