"""The route of streams that exist already: `GET /v1/streams/{request id}` goes on with one, `DELETE` ends it.

Any gateway answers: the leader that has the request says what it was, and what the client has already is left
out. The events are those of the stream as it began.
"""

import re
import time
from urllib.parse import parse_qs

from services.gateway.completions.chunks import Resumed
from services.gateway.http.errors import HttpRefusal
from services.gateway.http.route import Context, Exchange, Route
from services.gateway.sessions.session_headers import STREAM_GRACE, stream_grace_s, time_limit_s
from services.gateway.streams.event_ids import NOTHING_YET, EventId, parse_event_id
from services.gateway.streams.event_stream import STREAM_HEADER, leaving, send_events
from services.gateway.streams.resume_token import Note, read_note, request_id_of, writer_of
from shared.client.generation.attach import Attachment, attach
from shared.messages.base import ID_PATTERN

PREFIX = "/v1/streams"
_REQUEST_ID = re.compile(ID_PATTERN)


class StreamRoute(Route):
    """Answers both."""

    def __init__(self, context: Context) -> None:
        super().__init__(PREFIX, context)

    async def serve(self, exchange: Exchange) -> None:
        """See `Route`."""
        context, settings = self.context, self.context.settings
        self.check_accepting()
        exchange.tenant = context.keyring.tenant(exchange.headers.get(b"authorization", b""))
        context.rates.take(exchange.tenant, time.monotonic())
        if exchange.scope["method"] == "DELETE":
            self.take_places(exchange, 1)
            found = await self._attach(exchange, NOTHING_YET, settings.stream_attach_timeout_s)
            await found.stream.cancel("its client ended it")
            await exchange.reply.empty()
            return
        last = last_event_id(exchange)
        grace_given = STREAM_GRACE in exchange.headers
        grace_s = stream_grace_s(exchange.headers, default_s=0.0, max_s=settings.stream_max_grace_s)
        timeout_s = time_limit_s(
            exchange.headers, None, default_s=settings.default_timeout_s, max_s=settings.max_timeout_s
        )
        self.take_places(exchange, 1)
        async with self.running(exchange, timeout_s) as running:
            # a leader gives it away without an answer from here: left in the middle it would run for nobody
            found = await running.finish(self._attach(exchange, last, timeout_s))
            context.metrics.attached.inc()
            note = read_note(found.request.note)
            if note is None:
                grace_s = 0.0
            elif not grace_given:
                grace_s = min(note.grace_s, settings.stream_max_grace_s)
            async with leaving(found.stream, context.parking, running, exchange.reply, grace_s, known=True):
                await self._send(exchange, found, note, last)

    async def _attach(self, exchange: Exchange, last: EventId, timeout_s: float) -> Attachment:
        request_id = request_id_of(exchange.scope["path_params"]["request_id"])
        settings = self.context.settings
        found = None
        if _REQUEST_ID.match(request_id):
            found = await attach(
                self.context.client,
                request_id,
                exchange.tenant,
                reach=last.seq + 1,
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

    async def _send(self, exchange: Exchange, found: Attachment, note: Note | None, last: EventId) -> None:
        request = found.request
        if note is None:
            raise _gone("it was begun by a gateway of another version")
        _check_reach(found, note, last)
        exchange.shown_id = note.shown_id
        exchange.reply.name(note.shown_id)
        exchange.reply.headers.append((STREAM_HEADER, request.request_id.encode()))
        if request.session is not None:
            exchange.reply.headers.append((b"x-session-id", request.session.session_id.encode()))
        with self.context.metrics.open_streams.track_inprogress():
            await send_events(
                [found.stream],
                Resumed(writer_of(note, request, ids=True), last),
                exchange.reply,
                exchange.outcome,
                header_wait_s=self.context.settings.header_wait_s,
                from_the_start=found.first_seq == 0,
            )


def last_event_id(exchange: Exchange) -> EventId:
    """What the client has, by header or in the query; the header wins. Raises `InvalidRequest`."""
    given = exchange.headers.get(b"last-event-id", b"").decode("latin-1").strip()
    if not given:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        given = query.get("from", [""])[-1].strip()
    return parse_event_id(given)


def _check_reach(found: Attachment, note: Note, last: EventId) -> None:
    """Raises a 410 when the events that follow the client's last one cannot be made (any more)."""
    if last.seq >= found.next_seq:  # it went on elsewhere, and that is lost; or the id is of another stream
        raise _gone(f"it has {found.next_seq} frames here, and none with number {last.seq}")
    if last.needs_from(found.first_seq):
        raise _gone(
            f"it is kept from frame {found.first_seq} on, which is after event {last.seq}.{last.left}"
        )
    if found.first_seq and note.kind == "completion" and found.request.sampling.logprobs >= 0:
        raise _gone("its beginning, from which text offsets are counted, is kept no longer")


def _gone(why: str) -> HttpRefusal:
    return HttpRefusal(
        410, "stream_gone", f"the stream cannot go on where it stopped: {why}; send the request again"
    )
