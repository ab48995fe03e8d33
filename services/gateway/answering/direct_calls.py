"""Calls of transports without an HTTP connection: the body is there, and a coroutine takes the answer.

They pass the same admission, core and frame as those of HTTP. Each runs in a task of its own, so that a caller
who leaves (the task that waits is cancelled) ends the call in the same way as a closed connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from services.gateway.admission.caller import BackgroundCall, Caller, new_caller
from services.gateway.admission.error_shapes import error_body
from services.gateway.admission.refusals import ErrorAnswer, Headers
from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.answer import Answer
from services.gateway.answering.call import Call
from services.gateway.answering.call_frame import CallFrame
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.format import Format
from services.gateway.answering.run_call import Answering

END_S = 10.0  # for which a call whose caller left may take to end


class DirectCarrier:
    """What a call sees of its transport; see `Connection` and `Delivery`.

    Attributes:
        started: The caller has the beginning of the answer.
        bytes_sent: Bytes of the answer that were sent.
        failure: Why the transport could not send; None: it could.
    """

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.started = False
        self.unsent = 0
        self.waits_since = 0.0
        self.bytes_sent = 0
        self.failure: Exception | None = None

    def leave(self) -> None:
        """Tells the call that its caller has left."""
        if self.gone:
            return
        self.gone = True
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()

    async def send(self, sending: Awaitable[None], size: int) -> None:
        """Sends a part of the answer. If the transport cannot, the call ends as if its caller had left.

        Args:
            sending: The transport's own coroutine.
            size: Bytes of the part.
        """
        self.started, self.unsent = True, size
        self.waits_since = asyncio.get_running_loop().time()
        try:
            await sending
        except Exception as error:
            self.failure = error
        finally:
            self.unsent, self.waits_since = 0, 0.0
        if self.failure is not None:
            self.leave()
            await asyncio.sleep(0)  # the call ends here
        self.bytes_sent += size


Take = Callable[[Call, Answer, Caller, DirectCarrier], Awaitable[None]]


class DirectCall:
    """One call and, after it, how it ended; a `Responder`.

    Attributes:
        status: The status that HTTP would have.
        error: Why it failed; None: it did not.
        begun: It failed in the middle of its answer.
        headers: Headers of the answer, also of an error.
    """

    def __init__(
        self, context: GatewayContext, answering: Answering, form: Format, raw: bytes, take: Take
    ) -> None:
        self.status = 0
        self.error: ErrorAnswer | None = None
        self.begun = False
        self.carrier = DirectCarrier()
        self.caller: Caller
        self._context = context
        self._answering = answering
        self._form = form
        self._body = [raw]
        self._take = take

    @property
    def bytes_sent(self) -> int:
        """See `Responder`."""
        return self.carrier.bytes_sent

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the answer; of several with one name, the last."""
        caller = self.caller
        own: Headers = self.error.headers if self.error is not None else caller.outcome.headers()
        return dict([*caller.told, *own])

    async def respond(self) -> None:
        """See `Responder`."""
        context, caller, raw = self._context, self.caller, self._body.pop()
        context.admission.admit(caller)
        context.admission.places.check_units(caller.party)
        context.bodies.hold_arrived(raw, caller.party)
        caller.held += len(raw)
        context.metrics.request_bytes.inc(len(raw))
        context.admission.take_body(caller, len(raw))
        call = await self._answering.read_call(raw, caller, self._form)
        del raw
        async with await self._answering.run_call(call, caller) as answer:
            await self._take(call, answer, caller, self.carrier)
        self.status = 200

    async def fail(self, answer: ErrorAnswer, error: Exception) -> None:
        """See `Responder`; the transport tells the caller afterwards."""
        self.error, self.begun = answer, self.carrier.started
        self.status = 200 if self.begun else answer.status

    async def stop(self) -> None:
        """See `Responder`."""
        self.status = 200 if self.carrier.started else 499

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
    """

    def __init__(self, context: GatewayContext, answering: Answering) -> None:
        self.formats = answering.formats
        self._context = context
        self._answering = answering
        self._frame = CallFrame(context)

    async def run(
        self,
        form: Format,
        raw: bytes,
        headers: RawHeaders,
        take: Take,
        *,
        tenant: str = "",
        client: Sequence[object] | None = None,
        background: BackgroundCall | None = None,
    ) -> DirectCall:
        """Runs one call to its end. Cancelling this is a caller that leaves.

        Args:
            form: Of the body and the answer.
            raw: The body.
            headers: With names of HTTP in lower case, the caller's key among them.
            take: Reads the answer and sends it by the carrier; is not called if the call is refused.
            tenant: Whose call it is, in place of a key; empty: the key decides.
            client: Address and port of the caller.
            background: Lets all other calls go first; needs a tenant.

        Raises:
            Exception: What the transport raised when it sent a part.
        """
        call = DirectCall(self._context, self._answering, form, raw, take)
        del raw  # this frame lives as long as the call
        carrier = call.carrier
        call.caller = new_caller(
            form.path, headers, carrier, carrier, client=client, tenant=tenant, background=background
        )
        task = asyncio.create_task(self._frame.serve(call.caller, call))
        left = False
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            left = True
        if left:
            carrier.leave()
            await _end(task)
            raise asyncio.CancelledError
        if carrier.failure is not None:
            raise carrier.failure
        return call

    async def run_whole(
        self,
        form: Format,
        raw: bytes,
        headers: RawHeaders,
        *,
        tenant: str = "",
        client: Sequence[object] | None = None,
        background: BackgroundCall | None = None,
    ) -> WholeAnswer:
        """Runs one call and returns the body of its whole answer; see `run` for the arguments."""
        found: list[bytes] = []

        async def take(call: Call, answer: Answer, caller: Caller, carrier: DirectCarrier) -> None:
            parts = await answer.completions()
            envelope = answer.envelope(whole=True)
            body = await form.encode_whole(envelope, answer.token, answer.requests, parts)
            await answer.confirm()
            carrier.bytes_sent = len(body)
            found.append(body)

        call = await self.run(form, raw, headers, take, tenant=tenant, client=client, background=background)
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
