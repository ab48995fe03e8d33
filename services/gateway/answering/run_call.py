"""Runs calls: the one place that answers a call, for every transport and every format.

`run_call` owns what a call has beside its body's fields: other names of models, priorities, costs, time
limits, repeats, and streams that outlive their connection. Admission is before it, and sending after it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.shapes import renamed
from services.gateway.admission.request_headers import RawHeaders, stream_grace_s, time_limit_s
from services.gateway.answering.answer import Answer
from services.gateway.answering.answer_cost import check_cost
from services.gateway.answering.call import Call, Format, FrameFormat
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.formatted_answer import CallAnswer, FormattedAnswer, MadeAnswer
from services.gateway.answering.intake.new_calls import counted_for, in_background, limit_priority
from services.gateway.answering.left_out import IgnoredFields
from services.gateway.answering.resumption.attached_calls import RepeatedCalls, ResumedStreams, WantedStream
from services.gateway.answering.resumption.detached_streams import DetachedStreams
from services.gateway.answering.resumption.event_ids import EventId
from services.gateway.answering.resumption.resume_token import VERSION, ResumeToken
from shared.errors import RyzError
from shared.telemetry.trace_context import TRACE_HEADERS

STREAM_HEADER = b"x-stream-id"
_TRACE_HEADERS = [(name, name.encode()) for name in TRACE_HEADERS]


class Answering:
    """Answers the calls of a gateway.

    Args:
        context: What all calls share.
        detached: Parks streams whose caller leaves.
        answers: Formats of answers that are made of frames as they come.
        others: All other formats.

    Attributes:
        formats: All formats, by their routes.
    """

    def __init__(
        self,
        context: GatewayContext,
        detached: DetachedStreams,
        answers: Sequence[FrameFormat],
        others: Sequence[Format] = (),
    ) -> None:
        self.formats: dict[str, Format] = {}
        for form in answers:
            self.formats[form.path] = form
        for other in others:
            self.formats[other.path] = other
        self._answers = {form.kind: form for form in answers}
        self._context = context
        self._detached = detached
        self._repeats = RepeatedCalls(context)
        self._resumed = ResumedStreams(context, self._answers)
        self._ignored: dict[str, IgnoredFields] = {}

    async def read_call(self, raw: bytes, caller: Caller, form: Format) -> Call:
        """Makes the call of a body.

        Args:
            raw: The body.
            caller: Was admitted.
            form: Of the body.

        Raises:
            RyzError: The call is refused; names the field.
        """
        async with self._context.admission.body_slot(caller, raw):
            found = form.translate(raw, caller)
        return found if isinstance(found, Call) else await found

    async def run_call(self, call: Call, caller: Caller) -> CallAnswer:
        """Prepares the answer to a call; entering it starts the generations.

        Args:
            call: What is asked.
            caller: Was admitted and has one place.

        Raises:
            RyzError: The call is refused.
        """
        settings = self._context.settings
        caller.asked_model = call.model
        call = await self._prepared(call, caller)
        caller.model = call.model
        try:
            check_cost(call.requests, settings.constants.max_answer_entries)
        except RyzError as error:
            raise renamed(error, call.field_names) from None
        timeout_s = time_limit_s(
            caller.headers, call.timeout_s, default_s=settings.default_timeout_s, max_s=settings.max_timeout_s
        )
        caller.response_headers += self._ignored_of(caller.route).tell(
            call.unknown_fields, call.left_out, caller.request_id
        )
        positions = call.slots or len(call.requests)
        if positions > 1:
            self._context.admission.take_slots(caller, positions - 1)
        if call.session_id:
            caller.response_headers.append((b"x-session-id", call.session_id.encode()))
        caller.begun = True
        if call.whole is not None:
            return MadeAnswer(self._context, caller, call, timeout_s)
        start = partial(self._start, call, caller, timeout_s)
        return FormattedAnswer(
            self._context,
            caller,
            self._detached,
            start,
            self._answers,
            timeout_s=timeout_s,
            field_names=call.field_names,
            streamed=call.stream,
            event_ids=call.event_ids and len(call.requests) == 1,
            kept=call.kept,
        )

    def resume_stream(self, stream_id: str, last: EventId, caller: Caller) -> CallAnswer:
        """Prepares the answer that continues a stream; entering it attaches to the generation.

        Args:
            stream_id: The id of the request, or of its answer.
            last: The last event that the caller has.
            caller: Was admitted, and has no place yet.

        Raises:
            RyzError: The call is refused.
        """
        settings, headers = self._context.settings, caller.headers
        grace_s = stream_grace_s(headers, default_s=-1.0, max_s=settings.stream_max_grace_s)
        timeout_s = time_limit_s(
            headers, None, default_s=settings.default_timeout_s, max_s=settings.max_timeout_s
        )
        self._context.admission.take_slots(caller, 1)
        caller.begun = True
        wanted = WantedStream(stream_id, last, grace_s, timeout_s)
        start = partial(self._resumed.start, wanted, caller)
        return FormattedAnswer(
            self._context, caller, self._detached, start, self._answers, timeout_s=timeout_s, field_names={}
        )

    async def end_stream(self, stream_id: str, caller: Caller) -> None:
        """Ends a stream that need not go on; raises like `resume_stream`."""
        self._context.admission.take_slots(caller, 1)
        await self._resumed.end(stream_id, caller)

    async def _prepared(self, call: Call, caller: Caller) -> Call:
        """The call with the real name of its model, and with the priority and party that it counts for."""
        real = await self._context.aliases.real_name(call.model)
        await self._context.usable_models.check(caller, real, call.model)
        if not call.requests:  # a question about tokens, which are those of the base
            real = await self._context.aliases.base_of(real)
        if real != call.model:
            requests = [msgspec.structs.replace(request, model=real) for request in call.requests]
            call = replace(call, requests=requests, asked_model=real)
        requests, limited = limit_priority(call.requests, self._context.settings.max_priority)
        if limited:
            call = replace(call, requests=requests, left_out=[*call.left_out, *limited])
        if caller.background is not None:
            call = replace(call, requests=in_background(call.requests, caller.background))
        weight = self._context.accounts.weight(caller.tenant)
        if caller.party != caller.tenant or caller.key_id or weight != 1.0:
            call = replace(call, requests=counted_for(call.requests, caller, weight))
        return call

    def _ignored_of(self, route: str) -> IgnoredFields:
        found = self._ignored.get(route)
        if found is None:
            context = self._context
            found = IgnoredFields(route, context.metrics, strict=context.settings.strict_fields)
            self._ignored[route] = found
        return found

    async def _start(self, call: Call, caller: Caller, timeout_s: float, answer: Answer) -> None:
        """Starts the generations of a call, or attaches to those of an earlier call with the same key."""
        client, settings, trace = self._context.client, self._context.settings, trace_headers(caller.headers)
        only = call.requests[0] if len(call.requests) == 1 else None
        if only is not None and only.call_key and await self._repeats.start(call, caller, timeout_s, answer):
            return
        if only is not None and call.stream and call.kept is None:
            grace_s = stream_grace_s(
                caller.headers, default_s=settings.stream_grace_s, max_s=settings.stream_max_grace_s
            )
            token = _token_of(call, caller, grace_s)
            request = msgspec.structs.replace(only, note=token.encode())
            caller.response_headers.append((STREAM_HEADER, request.request_id.encode()))
            answer.set_parts([request], token)
            stream = client.submit(request, timeout_s=timeout_s, headers=trace)
            await answer.enter_with_grace(stream, grace_s)
            return
        token = _token_of(call, caller)
        answer.set_parts(call.requests, token, call.request_id)
        for asked in call.requests:
            # a call that may be repeated carries a token, also if it is not streamed
            request = msgspec.structs.replace(asked, note=token.encode()) if asked.call_key else asked
            stream = client.submit(request, timeout_s=timeout_s, headers=trace, whole=not call.stream)
            await answer.enter(stream)


def trace_headers(headers: RawHeaders) -> dict[str, str]:
    """The caller's trace context as headers of the bus."""
    return {name: headers[raw].decode("latin-1") for name, raw in _TRACE_HEADERS if raw in headers}


def _token_of(call: Call, caller: Caller, grace_s: float = 0.0) -> ResumeToken:
    """The token by which another gateway can give the same answer."""
    return ResumeToken(
        VERSION, call.kind, caller.created_s, call.include_usage, grace_s, caller.shown_id, call.format_data
    )
