"""Request and reply with typed messages.

`Endpoint` is the side that answers: it decodes requests, sends replies, and turns errors into `ErrorReply`.
`call` is the side that asks. Subjects, queue groups and limits are given to `Bus.subscribe` as ever.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import structlog

from shared.bus.api import Bus, Message, NoResponders
from shared.codec import decode, decode_reply, encode
from shared.errors import InvalidRequest, RyzError
from shared.flow.backoff import Backoff
from shared.messages import ErrorReply, Wire
from shared.subjects import HEADER_REQUEST
from shared.telemetry.request_ids import TRACE_PARENT, BoundRequest, bind_request, current_request

M = TypeVar("M", bound=Wire)
Answer = Callable[[M, Message], Awaitable[Wire | None]]
Take = Callable[[M, Message], Awaitable[object] | None]
Check = Callable[[M, Message], object]
MAX_REQUEST_ID = 64
FIRST_PAUSE_S, MAX_PAUSE_S = 0.025, 0.25  # of a call that waits for its service
log = structlog.get_logger(__name__)


class Endpoint:
    """Makes message handlers out of functions that take a request and return its reply.

    A message that cannot be decoded is reported to `on_bad` and answered with an `ErrorReply`. A `RyzError`
    that the function raises is answered in the same way, without a report. Other exceptions pass to the bus,
    which logs and counts them. Nothing is sent for a message without a reply subject.

    Args:
        on_bad: Counts and logs messages that cannot be decoded or that fail their check.
    """

    def __init__(self, bus: Bus, on_bad: Callable[[Message, InvalidRequest], None] | None = None) -> None:
        self._bus = bus
        self._on_bad = on_bad

    def handler(
        self,
        kind: type[M],
        answer: Answer[M],
        *,
        check: Check[M] | None = None,
        answers_bad: bool = True,
    ) -> Callable[[Message], Awaitable[RyzError | None]]:
        """Returns a handler for `Bus.subscribe`; awaited, it returns the error that was answered, if any.

        Args:
            kind: The type of the requests.
            answer: Returns the reply to a request, or None for no reply.
            check: Raises `InvalidRequest` for requests that are as bad as one that cannot be decoded.
            answers_bad: False on subjects that many services read: bad messages are only reported.
        """
        return partial(self._respond, kind, answer, check, answers_bad)

    def listener(
        self, kind: type[M], take: Take[M], *, check: Check[M] | None = None
    ) -> Callable[[Message], Awaitable[object] | None]:
        """Returns a plain handler for `Bus.subscribe` on a subject without replies, without a task for each.

        Bad messages are reported and answered as by `handler`.

        Args:
            kind: The type of the news.
            take: Takes the news; it raises no `RyzError`. What it returns is awaited before the next message.
            check: As for `handler`.
        """

        def listen(message: Message) -> Awaitable[object] | None:
            try:
                news = decode(message.data, kind)
                if check is not None:
                    check(news, message)
            except InvalidRequest as error:
                if self._on_bad is not None:
                    self._on_bad(message, error)
                return self.send_error(message, error) if message.reply else None
            return take(news, message)

        return listen

    async def refuse(self, message: Message, error: InvalidRequest) -> None:
        """Reports and answers a message that its handler could not decode."""
        if self._on_bad is not None:
            self._on_bad(message, error)
        await self.send_error(message, error)

    async def send_error(self, message: Message, error: RyzError) -> None:
        """Answers with an `ErrorReply`; a reply that cannot be sent is logged."""
        if not message.reply:
            return
        failure = ErrorReply(error=error.code, message=error.message, data=error.data)
        try:
            await self._bus.publish(message.reply, encode(failure))
        except RyzError as problem:  # no broker, or no subject to which anything can be sent
            log.warning("error not delivered", subject=message.subject, error=error.message,
                        problem=problem.message)  # fmt: skip

    async def _respond(
        self, kind: type[M], answer: Answer[M], check: Check[M] | None, answers_bad: bool, message: Message
    ) -> RyzError | None:
        try:
            request = decode(message.data, kind)
            if check is not None:
                check(request, message)
        except InvalidRequest as error:
            fault = error
        else:
            return await self._answer(answer, request, message)
        if answers_bad:
            await self.refuse(message, fault)
        elif self._on_bad is not None:
            self._on_bad(message, fault)
        return fault

    async def _answer(self, answer: Answer[M], request: M, message: Message) -> RyzError | None:
        try:
            reply = await answer(request, message)
            if reply is not None and message.reply:
                await self._bus.publish(message.reply, encode(reply))
        except RyzError as error:
            failure = error
        else:
            return None
        await self.send_error(message, failure)
        return failure


async def call(
    bus: Bus,
    subject: str,
    request: Wire,
    kind: type[M],
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    wait_s: float = 0.0,
) -> M:
    """Sends a request and returns its reply of type `kind`.

    The headers name the request that the running task works for (`request_ids.py`).

    Args:
        subject: Where the service listens.
        kind: The type of its reply.
        timeout_s: How long the service may take.
        headers: Headers that travel with the request.
        wait_s: How long to wait for a service while nothing listens on the subject, as in a restart. A
            request that nothing has received is sent again; one that may have been received is not.

    Raises:
        RyzError: The error of the `ErrorReply` that came instead.
        Internal: The reply cannot be decoded.
        NoResponders: Nothing listens on the subject, or did within `wait_s`.
        RequestTimedOut: No reply came within `timeout_s`.
        Unavailable: There is no connection to the broker.
    """
    data, named = encode(request), _with_request(headers)
    loop, pauses = asyncio.get_running_loop(), Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
    until = loop.time() + wait_s
    while True:
        try:
            answer = await bus.request(subject, data, timeout_s=timeout_s, headers=named)
        except NoResponders:
            pause_s = pauses.next_s()
            if loop.time() + pause_s > until:
                raise
        else:
            return decode_reply(answer.data, kind)
        await asyncio.sleep(pause_s)


def _with_request(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    ids = current_request()
    if ids is None or not ids.request_id:
        return headers
    named = {HEADER_REQUEST: ids.request_id}
    if ids.traceparent:
        named[TRACE_PARENT] = ids.traceparent
    return {**named, **headers} if headers else named


def bound_to(message: Message) -> BoundRequest:
    """Returns a block in which log lines name the request that a `call` was made for, if it named one."""
    headers = message.headers
    return bind_request(headers.get(HEADER_REQUEST, "")[:MAX_REQUEST_ID], headers.get(TRACE_PARENT, ""))
