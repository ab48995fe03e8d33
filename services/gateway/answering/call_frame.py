"""The frame around every call of every transport: trace, errors, what is given back, metrics, log.

A transport implements `Responder` and calls `CallFrame.serve`, which never raises an error of the call.
"""

import time
from typing import Protocol

import structlog

from services.gateway.admission.caller import Caller
from services.gateway.admission.disconnects import ClientDisconnected, StreamLeft
from services.gateway.admission.errors.refusals import ErrorAnswer, HttpRefusal, answer_for
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.request_tracing import OPERATIONS, AnsweredRequest
from shared.errors import Cancelled, Internal, InvalidRequest, RyzError
from shared.telemetry.request_ids import bind_request
from shared.telemetry.service_levels import ServiceLevels
from shared.telemetry.spans.request_trace import CURRENT_TRACE

log = structlog.get_logger(__name__)


class Responder(Protocol):
    """How a transport answers one call.

    Attributes:
        bytes_sent: Bytes of the answer's body that were sent.
    """

    @property
    def status(self) -> int:
        """The status of HTTP that the caller was told, or would have been; 0 before that."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of the answer that were sent."""

    async def respond(self) -> None:
        """Answers the call, or raises the error that becomes the answer."""
        ...

    async def fail(self, answer: ErrorAnswer, error: Exception) -> None:
        """Tells the caller an error, in the middle of the answer if that has begun."""
        ...

    async def stop(self) -> None:
        """Ends an answer whose stream goes on elsewhere: no error, and no regular end."""
        ...

    def note_left(self) -> None:
        """Notes that the caller left before the end; nothing is sent."""
        ...


class CallFrame:
    """Serves calls.

    Args:
        context: What all calls share.
    """

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def serve(self, caller: Caller, responder: Responder, traced_id: str = "") -> None:
        """Serves one call from its beginning to its end; every error becomes an answer.

        Args:
            caller: The caller, not admitted yet.
            responder: Answers.
            traced_id: The id of the request whose trace the call belongs to, if it is another one's.
        """
        started_s = time.monotonic()  # uvloop's clock stands still during a turn of the loop
        tracing, headers = self._context.tracing, caller.headers
        trace = tracing.begin(headers, traced_id or caller.request_id) if tracing is not None else None
        caller.trace = trace
        caller.timeline = self._context.timelines.begin(caller.request_id, traced=trace is not None)
        caller.timeline.mark("received", {"route": caller.route})
        outer = CURRENT_TRACE.set(trace)
        parent = trace.header if trace is not None else headers.get(b"traceparent", b"").decode("latin-1")
        with bind_request(caller.request_id, parent):
            try:
                await self._answer(caller, responder)
            finally:
                self._context.admission.release(caller)
            seconds = time.monotonic() - started_s
            caller.timeline.mark("answered", {"status": responder.status, "tenant": caller.tenant})
            self._record(caller, responder, started_s, seconds)
        CURRENT_TRACE.reset(outer)
        if tracing is not None and trace is not None:
            tracing.end(trace, _answered(caller, responder.status))

    async def _answer(self, caller: Caller, responder: Responder) -> None:
        error = await _error_of(responder)
        if error is None:
            return
        metrics, levels = self._context.metrics, self._context.levels
        if isinstance(error, ClientDisconnected):
            responder.note_left()
            metrics.cancelled.inc()
            return
        if isinstance(error, StreamLeft):
            await responder.stop()
            return
        if levels is not None and not caller.begun:
            count_refusal(levels, caller.route, caller.model, caller.tenant, error)
        if isinstance(error, Cancelled) and error.data.get("reason") == "attached_elsewhere":
            error = HttpRefusal(409, "attached_elsewhere", "another connection has attached to this stream")
        answer = answer_for(error)
        if answer.code == "internal":
            log.error("request failed", request_id=caller.request_id, route=caller.route, exc_info=error)
        if caller.delivery.started:
            caller.failure = answer.code
            metrics.count_failed_stream(answer.code)
        await responder.fail(answer, error)

    def _record(self, caller: Caller, responder: Responder, started_s: float, seconds: float) -> None:
        metrics, outcome = self._context.metrics, caller.outcome
        metrics.count_answer(caller.route, responder.status, seconds)
        metrics.response_bytes.inc(responder.bytes_sent)
        if outcome.first_text_s:
            metrics.observe_first_token(caller.route, max(0.0, outcome.first_text_s - started_s))
        if self._context.settings.request_log:
            log.info(
                "request",
                request_id=caller.request_id,
                shown_id=caller.shown_id,
                tenant=caller.tenant,
                route=caller.route,
                status=responder.status,
                seconds=round(seconds, 6),
                model=caller.model,
                group=outcome.group,
                reason=outcome.accepted.reason if outcome.accepted else "",
                kv=outcome.accepted.kv if outcome.accepted else "",
                prompt_tokens=sum(usage.prompt_tokens for usage in outcome.usages),
                completion_tokens=sum(usage.completion_tokens for usage in outcome.usages),
            )


async def _error_of(responder: Responder) -> Exception | None:
    """Lets the transport respond; returns the error that ended it, None if none did.

    A function of its own: a frame that kept the error in a variable would be part of a cycle with it.
    """
    try:
        await responder.respond()
    except Exception as error:
        return error
    return None


def _answered(caller: Caller, status: int) -> AnsweredRequest:
    return AnsweredRequest(
        route=caller.route,
        method=caller.method,
        status=status,
        failure=caller.failure,
        shown_id=caller.shown_id,
        request_id=caller.request_id,
        tenant=caller.tenant,
        model=caller.model,
        outcome=caller.outcome,
        marks=caller.timeline.marked(),
    )


def count_refusal(levels: ServiceLevels, route: str, model: str, tenant: str, error: Exception) -> None:
    """Counts a request that ended with an error.

    Args:
        levels: Count it.
        route: Its route; only those that generate count.
        model: What it asked for; empty: that was not read.
        tenant: Whose it was; empty: not known.
        error: Why.
    """
    if route not in OPERATIONS:
        return
    if not isinstance(error, RyzError):
        error = InvalidRequest("refused") if isinstance(error, HttpRefusal) else Internal("a bug")
    levels.count_refusal(model, tenant, error)
