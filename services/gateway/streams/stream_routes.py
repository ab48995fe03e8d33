"""The route of streams that exist already: `GET /v1/streams/{request id}` resumes one, `DELETE` ends it.

Any gateway answers: the leader that has the request sends it with its frames, and events that the client has
already are left out. The events are those of the stream as it began.
"""

import re
from urllib.parse import parse_qs

from services.gateway.admission.refusals import HttpRefusal
from services.gateway.admission.request_headers import STREAM_GRACE, stream_grace_s, time_limit_s
from services.gateway.answering.detached_streams import DetachedStreams
from services.gateway.answering.event_ids import NOTHING_YET, EventId, parse_event_id
from services.gateway.answering.resume_token import ResumeToken, read_token, request_id_of
from services.gateway.http.serving_route import GatewayContext, HttpExchange, ServingRoute
from services.gateway.streams.event_stream import STREAM_HEADER, StreamWithGrace, send_events
from services.gateway.streams.event_writer import ResumedWriter, StreamFormats
from shared.client.attach import Attachment, AttachTarget, attach
from shared.messages.base import ID_PATTERN

PREFIX = "/v1/streams"
_REQUEST_ID = re.compile(ID_PATTERN)


class StreamRoute(ServingRoute):
    """Answers both methods.

    Args:
        context: What all requests share.
        detached: Parks streams whose client goes away again.
        formats: Of the streams.
    """

    def __init__(
        self,
        context: GatewayContext,
        detached: DetachedStreams,
        formats: StreamFormats,
    ) -> None:
        super().__init__(PREFIX, context)
        self._detached = detached
        self._formats = formats

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        context, settings = self.context, self.context.settings
        self.admit(exchange)
        if exchange.scope["method"] == "DELETE":
            self.take_places(exchange, 1)
            found = await self._attach(exchange, NOTHING_YET, settings.stream_attach_timeout_s)
            await found.stream.cancel("its client ended it")
            await exchange.reply.send_empty()
            return
        last = last_event_id(exchange)
        grace_given = STREAM_GRACE in exchange.headers
        grace_s = stream_grace_s(exchange.headers, default_s=0.0, max_s=settings.stream_max_grace_s)
        timeout_s = time_limit_s(
            exchange.headers, None, default_s=settings.default_timeout_s, max_s=settings.max_timeout_s
        )
        self.take_places(exchange, 1)
        async with self.running_request(exchange, timeout_s) as running:
            # a leader hands the stream over at once: if the attach were cancelled, it would run unread
            found = await running.finish_work(self._attach(exchange, last, timeout_s))
            context.metrics.attached.inc()
            token = read_token(found.request.note)
            if token is None:
                grace_s = 0.0
            elif not grace_given:
                grace_s = min(token.grace_s, settings.stream_max_grace_s)
            async with StreamWithGrace(found.stream, self._detached, running, grace_s, known=True):
                await self._send(exchange, found, token, last)

    def traced_id(self, exchange: HttpExchange) -> str:
        """See `ServingRoute`: the trace is that of the request which is resumed."""
        return str(exchange.scope["path_params"].get("request_id", exchange.request_id))

    async def _attach(self, exchange: HttpExchange, last: EventId, timeout_s: float) -> Attachment:
        request_id = request_id_of(exchange.scope["path_params"]["request_id"])
        settings = self.context.settings
        found = None
        if _REQUEST_ID.match(request_id):
            found = await attach(
                self.context.client,
                AttachTarget(request_id, exchange.tenant),
                must_reach=last.seq + 1,
                find_s=settings.stream_attach_timeout_s,
                timeout_s=timeout_s,
            )
        if found is None:
            raise HttpRefusal(
                404,
                "stream_not_found",
                f"no group has a stream {request_id[:64]!r}: it ended a while ago, was cancelled, "
                "or never was; send the request again",
            )
        exchange.request_id, exchange.model = request_id, found.request.model
        return found

    async def _send(
        self, exchange: HttpExchange, found: Attachment, token: ResumeToken | None, last: EventId
    ) -> None:
        request = found.request
        writer = self._formats.writer(token, request) if token is not None else None
        if token is None or writer is None:
            raise _gone("it was begun by a gateway of another version")
        _check_reach(found, last, needs_start=self._formats.needs_start(token, request))
        exchange.take_ids(request.request_id, token.shown_id)
        exchange.reply.headers.append((STREAM_HEADER, request.request_id.encode()))
        if request.session is not None:
            exchange.reply.headers.append((b"x-session-id", request.session.session_id.encode()))
        with self.context.metrics.open_stream:
            await send_events(
                [found.stream],
                ResumedWriter(writer, last),
                exchange,
                header_wait_s=self.context.settings.constants.header_wait_s,
                from_the_start=found.first_seq == 0,
            )


def last_event_id(exchange: HttpExchange) -> EventId:
    """The last event that the client has, by header or in the query; the header wins.

    Raises:
        InvalidRequest: It is no id of an event.
    """
    given = exchange.headers.get(b"last-event-id", b"").decode("latin-1").strip()
    if not given:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        given = query.get("from", [""])[-1].strip()
    return parse_event_id(given)


def _check_reach(found: Attachment, last: EventId, *, needs_start: bool) -> None:
    """Raises a 410 if the events that follow the last one cannot be made."""
    if last.seq >= found.next_seq:  # a part that ran elsewhere is lost, or the id is of another stream
        raise _gone(f"it has {found.next_seq} frames here, and none with number {last.seq}")
    if last.needs_from(found.first_seq):
        raise _gone(
            f"it is kept from frame {found.first_seq} on, which is after event {last.seq}.{last.left}"
        )
    if found.first_seq and needs_start:
        raise _gone("its beginning, which its next events depend on, is kept no longer")


def _gone(why: str) -> HttpRefusal:
    return HttpRefusal(
        410, "stream_gone", f"the stream cannot go on where it stopped: {why}; send the request again"
    )
