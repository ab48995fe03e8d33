"""Calls of transports without an HTTP connection: the body is there, and a coroutine takes the answer.

They pass the same admission, core and frame as those of HTTP. Each runs in a task of its own, so that a
caller who leaves (the task that waits is cancelled) ends the call in the same way as a closed connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from services.gateway.admission.caller import BackgroundCall, Caller, new_caller
from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.admission.errors.shapes import error_body
from services.gateway.admission.identity.identity import Identity
from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.call import Format
from services.gateway.answering.call_frame import CallFrame
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_carrier import DirectCarrier
from services.gateway.answering.formatted_answer import CallAnswer
from services.gateway.answering.resumption.event_ids import parse_event_id
from services.gateway.answering.run_call import Answering

STREAMS = "/v1/streams"  # the route of streams that are resumed or ended
END_S = 10.0  # for which a call whose caller left may take to end


Take = Callable[[CallAnswer, "DirectCall"], Awaitable[None]]
Send = Callable[[Any], Awaitable[None]]
Work = Callable[["DirectCall"], Awaitable[None]]


async def _send_nothing(part: Any) -> None:
    """For calls whose answer is taken as a whole."""


class DirectCall:
    """One call and, after it, how it ended; a `Responder`.

    Attributes:
        status: The status that HTTP would have.
        error: Why it failed; None: it did not.
        caller: Whose call it is.
        carrier: What the call sees of its transport.
    """

    def __init__(self, caller: Caller, carrier: DirectCarrier, work: Work) -> None:
        self.status = 0
        self.error: ErrorAnswer | None = None
        self.caller = caller
        self.carrier = carrier
        self._work = work

    @property
    def begun(self) -> bool:
        """Returns whether the caller has the beginning of the answer."""
        return self.carrier.started

    @property
    def bytes_sent(self) -> int:
        """See `Responder`."""
        return self.carrier.bytes_sent

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the answer, also of an error; of several with one name, the last."""
        own = self.caller.outcome.headers() if self.error is None else self.error.headers
        return dict([*self.caller.response_headers, *own])

    async def respond(self) -> None:
        """See `Responder`."""
        await self._work(self)
        self.status = 200

    async def fail(self, answer: ErrorAnswer, error: Exception) -> None:
        """See `Responder`; the transport tells the caller afterwards."""
        self.error = answer
        self.status = 200 if self.begun else answer.status

    async def stop(self) -> None:
        """See `Responder`."""
        self.status = 200 if self.begun else 499

    def note_left(self) -> None:
        """See `Responder`."""
        self.status = 499


class WholeAnswer(NamedTuple):
    """A whole answer, or the error in its place.

    Attributes:
        status: The status that HTTP would have; 499: the answer was ended early and has no body.
        headers: Of several with one name, the last.
    """

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class DirectCalls:
    """Makes calls.

    Args:
        context: What all calls share.
        answering: Runs them.

    Attributes:
        formats: Of bodies, by their routes.
        header_wait_s: Seconds that the beginning of a stream waits for its first text.
        open_stream: Counts streams while they are open.
    """

    def __init__(self, context: GatewayContext, answering: Answering) -> None:
        self.formats = answering.formats
        self.header_wait_s = context.settings.constants.header_wait_s
        self.open_stream = context.metrics.open_stream
        self._context = context
        self._answering = answering
        self._frame = CallFrame(context)

    def run(
        self,
        form: Format,
        raw: bytes,
        headers: RawHeaders,
        take: Take,
        send: Send = _send_nothing,
        *,
        tenant: str = "",
        identity: Identity | None = None,
        client: Sequence[object] | None = None,
        background: BackgroundCall | None = None,
    ) -> Coroutine[Any, Any, DirectCall]:
        """Runs one call to its end. Cancelling this is a caller that leaves.

        Not a coroutine function itself, whose frame would hold the body as long as the call.

        Args:
            form: Of the body and the answer.
            raw: The body.
            headers: With names of HTTP in lower case, the caller's key among them.
            take: Reads the answer and puts its parts on the carrier; is not called if the call is refused.
            send: Sends one part.
            tenant: Whose call it is, in place of a key; empty: the key decides.
            identity: Who opened the connection, or asked for the work, in place of both.
            client: Address and port of the caller.
            background: Lets all other calls go first; needs an identity.

        Raises:
            Exception: What the transport raised when it sent a part.
        """
        bodies = [raw]  # emptied when the body is read

        async def work(call: DirectCall) -> None:
            async with await self._admitted(form, bodies, call.caller) as answer:
                await take(answer, call)

        carrier = DirectCarrier()
        caller = new_caller(
            form.path,
            headers,
            carrier,
            carrier,
            client=client,
            tenant=tenant,
            identity=identity,
            background=background,
        )
        return self._serve(DirectCall(caller, carrier, work), send)

    async def resume(
        self,
        stream_id: str,
        last_event_id: str,
        headers: RawHeaders,
        take: Take,
        send: Send,
        *,
        identity: Identity,
        client: Sequence[object] | None,
    ) -> DirectCall:
        """Continues a stream; see `Answering.resume_stream` and `run`."""

        async def work(call: DirectCall) -> None:
            self._context.admission.admit(call.caller)
            self._context.admission.limits.count_request(call.caller)
            last = parse_event_id(last_event_id)
            async with self._answering.resume_stream(stream_id, last, call.caller) as answer:
                await take(answer, call)

        carrier = DirectCarrier()
        caller = new_caller(
            STREAMS, headers, carrier, carrier, client=client, identity=identity, method="GET"
        )
        return await self._serve(DirectCall(caller, carrier, work), send, stream_id)

    async def end_stream(self, stream_id: str, *, identity: Identity) -> DirectCall:
        """Ends a stream that need not go on."""

        async def work(call: DirectCall) -> None:
            self._context.admission.admit(call.caller)
            self._context.admission.limits.count_request(call.caller)
            await self._answering.end_stream(stream_id, call.caller)

        carrier = DirectCarrier()
        caller = new_caller(STREAMS, {}, carrier, carrier, identity=identity, method="DELETE")
        return await self._serve(DirectCall(caller, carrier, work), _send_nothing, stream_id)

    async def _admitted(self, form: Format, bodies: list[bytes], caller: Caller) -> CallAnswer:
        """Admits a call whose only body is there, and prepares its answer."""
        context, admission, raw = self._context, self._context.admission, bodies.pop()
        admission.admit(caller)
        admission.slots.check_units(caller.party)
        context.bodies.hold_arrived(raw, caller.party)
        caller.held += len(raw)
        context.metrics.request_bytes.inc(len(raw))
        if (pending := admission.take_body(caller, len(raw))) is not None:
            await pending
        call = await self._answering.read_call(raw, caller, form)
        del raw
        return await self._answering.run_call(call, caller)

    async def _serve(self, call: DirectCall, send: Send, traced_id: str = "") -> DirectCall:
        carrier = call.carrier
        task = asyncio.create_task(self._frame.serve(call.caller, call, traced_id))
        task.add_done_callback(lambda _: carrier.end())
        failure: BaseException | None = None
        try:
            await carrier.send_all(send)
        except BaseException as error:
            failure = error
        if failure is not None:  # the caller has left, or the transport cannot send
            carrier.leave()
            await _end(task)
            try:
                raise failure
            finally:
                failure = None  # else this frame and the error's traceback would keep each other alive
        await task
        return call

    async def run_whole(
        self,
        form: Format,
        raw: bytes,
        headers: RawHeaders,
        *,
        tenant: str = "",
        identity: Identity | None = None,
        client: Sequence[object] | None = None,
        background: BackgroundCall | None = None,
    ) -> WholeAnswer:
        """Runs one call and returns the body of its whole answer; see `run` for the arguments."""
        found: list[bytes] = []

        async def take(answer: CallAnswer, call: DirectCall) -> None:
            body = await answer.body()
            call.carrier.bytes_sent = len(body)
            found.append(body)

        call = await self.run(
            form,
            raw,
            headers,
            take,
            tenant=tenant,
            identity=identity,
            client=client,
            background=background,
        )
        if call.error is not None:
            body = error_body(call.error, call.caller.route, call.caller.shown_id)
            return WholeAnswer(call.error.status, call.headers, body)
        return WholeAnswer(call.status, call.headers, found[0] if call.status == 200 else b"")


async def _end(task: asyncio.Task[None]) -> None:
    """Waits until a call has freed what it held."""
    await asyncio.wait([task], timeout=END_S)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
