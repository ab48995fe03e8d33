"""One request of HTTP as a call, from its first byte to the last of its answer.

A handler answers it; `CallFrame` handles every way in which a call can end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from services.gateway.admission.bodies.reader import LINGER_S, discard_body
from services.gateway.admission.caller import Caller, new_caller
from services.gateway.admission.errors.refusals import ErrorAnswer, error_event
from services.gateway.admission.errors.shapes import error_body
from services.gateway.answering.answer import DEADLINE_MARGIN_S
from services.gateway.answering.call_frame import CallFrame
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.running_call import RunningCall
from services.gateway.transports.http.reply import Reply
from shared.errors import RequestTooLarge, RyzError
from shared.web.admitted_connection import CONNECTION


@dataclass(slots=True)
class HttpExchange:
    """One request that a handler answers; implements `Responder`.

    Attributes:
        context: What all calls share.
        handle: Answers it, or raises the error that becomes the answer.
        caller: Whose request it is.
        body_read: Its body has been read to the end.
        write_failure: Makes the event of a failure in the middle of a stream.
    """

    context: GatewayContext
    handle: "Handle"
    scope: Scope
    receive: Receive
    reply: Reply
    caller: Caller
    body_read: bool = False
    write_failure: Callable[[ErrorAnswer], bytes] = error_event

    @property
    def status(self) -> int:
        """See `Responder`."""
        return self.reply.status

    @property
    def bytes_sent(self) -> int:
        """See `Responder`."""
        return self.reply.bytes_sent

    async def respond(self) -> None:
        """See `Responder`."""
        await self.handle(self)

    def admit(self) -> None:
        """Admits a request without a body; see `Admission.admit` and `CallLimits.count_request`."""
        self.context.admission.admit(self.caller)
        self.context.admission.limits.count_request(self.caller)

    def take_slots(self, count: int) -> None:
        """See `Admission.take_slots`."""
        self.context.admission.take_slots(self.caller, count)

    def running_call(self, timeout_s: float) -> RunningCall:
        """The part of the request in which it may be ended early; it has `timeout_s`."""
        self.caller.begun = True
        return RunningCall(self.caller, self.context.running, timeout_s + DEADLINE_MARGIN_S)

    def note_left(self) -> None:
        """See `Responder`."""
        self.reply.status = 499

    async def stop(self) -> None:
        """See `Responder`: neither an error nor `[DONE]`, so that the client resumes the stream elsewhere."""
        with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
            async with asyncio.timeout(LINGER_S):
                await self.reply.finish()

    async def fail(self, answer: ErrorAnswer, error: Exception) -> None:
        """See `Responder`: as a status if none was sent yet, else as an event of the stream."""
        with suppress(TimeoutError):  # a caller that does not read holds no place for long
            async with asyncio.timeout(2 * LINGER_S):
                await self._fail(answer, error)

    async def _fail(self, answer: ErrorAnswer, error: Exception) -> None:
        reply, caller = self.reply, self.caller
        if reply.started:
            if reply.torn or not reply.streamed:
                return  # in the middle of an event or of a whole answer: the server closes the connection
            with suppress(TimeoutError):  # a caller that does not read: the connection is closed on it
                async with asyncio.timeout(LINGER_S):
                    await reply.send_part(self.write_failure(answer), more=False)
            return
        unread = isinstance(error, RequestTooLarge) and not self.body_read
        if isinstance(error, RyzError) and error.data.get("reason") == "body_timeout":
            answer.headers.append((b"connection", b"close"))  # the rest of the body is not waited for
        body = error_body(answer, caller.route, caller.shown_id)
        if not unread or b"expect" in caller.headers:
            await reply.send_whole(answer.status, body, answer.headers)
            return
        # closing while the caller still sends would reset the connection, and the answer might be lost
        closing = [*answer.headers, (b"connection", b"close")]
        await reply.send_whole(answer.status, body, closing, more=True)
        with suppress(TimeoutError):
            await discard_body(self.receive)
        await reply.finish()


Handle = Callable[[HttpExchange], Awaitable[None]]


class HttpRoute:
    """The ASGI application of one route, or of several that are counted as one.

    Args:
        path: Its name in metrics and logs.
        context: What all calls share.
        handle: Answers the requests.
        traced_as: Parameter of the path that is the id of the request whose trace a request belongs to;
            empty: none is.
    """

    def __init__(self, path: str, context: GatewayContext, handle: Handle, traced_as: str = "") -> None:
        self.path = path
        self._context = context
        self._handle = handle
        self._traced_as = traced_as
        self._frame = CallFrame(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never raises: every error becomes an answer."""
        connection = scope[CONNECTION]
        reply = Reply(send, connection.plain)
        caller = new_caller(
            self.path,
            dict(scope["headers"]),
            connection,
            reply,
            client=scope.get("client"),
            method=scope["method"],
        )
        reply.headers = caller.response_headers
        exchange = HttpExchange(self._context, self._handle, scope, receive, reply, caller)
        traced_id = str(scope["path_params"].get(self._traced_as, "")) if self._traced_as else ""
        await self._frame.serve(caller, exchange, traced_id)
