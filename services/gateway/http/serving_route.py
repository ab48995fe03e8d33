"""The base of the serving routes: a request of HTTP as a call, from its first byte to the last of its answer.

A route does its work in `serve_request`; `CallFrame` handles every way in which a call can end.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from services.gateway.admission.body_reader import LINGER_S, discard_body
from services.gateway.admission.caller import Caller, new_caller
from services.gateway.admission.error_shapes import error_body
from services.gateway.admission.refusals import ErrorAnswer, error_event
from services.gateway.answering.answer import DEADLINE_MARGIN_S
from services.gateway.answering.call_frame import CallFrame
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.running_call import RunningCall
from services.gateway.http.reply import Reply
from shared.errors import RequestTooLarge, RyzError
from shared.web.admitted_connection import CONNECTION
from shared.web.limited_protocol import INNER_TENANT

BACKGROUND = "ryz.background"  # in scopes that the process makes itself: see `BackgroundCall`


@dataclass(slots=True)
class HttpExchange:
    """One request on its way through a route; answers it as a `Responder`.

    Attributes:
        route: Makes the answer.
        caller: Whose request it is.
        body_read: Its body has been read to the end.
        write_failure: Makes the event of a failure in the middle of a stream.
    """

    route: "ServingRoute"
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
        await self.route.serve_request(self)

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


class ServingRoute(ABC):
    """Answers the requests of one route, which is called `path` in metrics and logs."""

    def __init__(self, path: str, context: GatewayContext) -> None:
        self.path = path
        self.context = context
        self._frame = CallFrame(context)

    @abstractmethod
    async def serve_request(self, exchange: HttpExchange) -> None:
        """Answers the request, or raises the error that becomes the answer."""

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
            tenant=scope.get(INNER_TENANT, ""),
            background=scope.get(BACKGROUND),
            method=scope["method"],
        )
        reply.headers = caller.told
        exchange = HttpExchange(self, scope, receive, reply, caller)
        await self._frame.serve(caller, exchange, self.traced_id(exchange))

    def traced_id(self, exchange: HttpExchange) -> str:
        """The id of the request whose trace this exchange belongs to; empty: its own."""
        return ""

    def admit(self, exchange: HttpExchange) -> None:
        """See `Admission.admit`."""
        self.context.admission.admit(exchange.caller)

    def take_places(self, exchange: HttpExchange, count: int) -> None:
        """See `Admission.take_places`."""
        self.context.admission.take_places(exchange.caller, count)

    def running_request(self, exchange: HttpExchange, timeout_s: float) -> RunningCall:
        """The part of a request in which it may be ended early; its generations have `timeout_s`."""
        exchange.caller.begun = True
        return RunningCall(exchange.caller, self.context.running, timeout_s + DEADLINE_MARGIN_S)
