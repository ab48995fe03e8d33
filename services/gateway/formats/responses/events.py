"""Numbers and encodes the events of one response, and holds the whole object, which is what they add up to.

It keeps no connection: HTTP streams, WebSockets and stored responses use the same events.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from services.gateway.answering.events.ports import StreamEvent
from services.gateway.formats.fields.answer_blocks import Event
from services.gateway.formats.responses.answer_items import AnswerItems
from services.gateway.formats.responses.object_fields import error_object, usage_object
from shared.errors import Cancelled, RyzError
from shared.messages import Delta, FinishReason, SamplingDefaults, Usage
from shared.messages.answer_parts import Resumed

_LOGPROBS = "message.output_text.logprobs"


class ResponseEvent(NamedTuple):
    """One event: its type, its number, and its JSON."""

    kind: str
    number: int
    data: bytes

    @property
    def for_stream(self) -> StreamEvent:
        """The event as transports send it."""
        return self.kind.encode(), self.data


class ResponseEvents:
    """The events of one response.

    Args:
        fields: The response object at its beginning; see `fields_of`. It is changed here.
        with_logprobs: Texts carry log probabilities.
        custom: Names of the request's custom tools.

    Attributes:
        ended: The last event is there.
    """

    def __init__(
        self, fields: dict[str, Any], *, with_logprobs: bool = False, custom: Collection[str] = ()
    ) -> None:
        self._fields = fields
        name = str(fields["id"]).partition("_")[2]
        self._items = AnswerItems(name, with_logprobs=with_logprobs, custom=custom)
        self._number = 0
        self._finish: FinishReason | None = None
        self.ended = False

    @property
    def status(self) -> str:
        """The status of the response."""
        return str(self._fields["status"])

    def opening(self) -> list[ResponseEvent]:
        """The events before the first output."""
        kinds = ["response.created"]
        if self.status == "queued":
            kinds.append("response.queued")
        events = [self._event((kind, {"response": self.whole()})) for kind in kinds]
        self._fields["status"] = "in_progress"
        return [*events, self._event(("response.in_progress", {"response": self.whole()}))]

    def deltas(self, deltas: Sequence[Delta]) -> list[ResponseEvent]:
        """The events of new output."""
        events = []
        for delta in deltas:
            events += self._encoded(self._items.take(delta))
            self._finish = delta.finish_reason or self._finish
        return events

    def note_sampling(self, sampling: SamplingDefaults | None) -> None:
        """Notes the model's defaults for what the request left out."""
        for name in ("temperature", "top_p"):
            if self._fields[name] is None and sampling is not None:
                self._fields[name] = getattr(sampling, name)

    def finish(self, usage: Usage, now_s: int, resumed: Resumed = "") -> list[ResponseEvent]:
        """Ends the response well, or as incomplete; returns all events but the last."""
        cut = self._finish == "length"
        events = self._encoded(self._items.finish(cut=cut))
        self._fields["usage"] = usage_object(usage)
        if resumed:
            self._fields["resumed"] = resumed
        if cut:
            self._fields |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        else:
            self._fields |= {"status": "completed", "completed_at": now_s}
        return events

    def fail(self, error: RyzError) -> None:
        """Ends the response as failed, or as cancelled."""
        self._items.abandon()
        if isinstance(error, Cancelled):
            self._fields["status"] = "cancelled"
        else:
            self._fields |= {"status": "failed", "error": error_object(error)}

    def last(self) -> ResponseEvent:
        """The last event, with the whole response. A cancelled one ends like a failed one."""
        self.ended = True
        kind = self.status if self.status in {"completed", "incomplete"} else "failed"
        return self._event((f"response.{kind}", {"response": self.whole()}))

    def not_stored(self) -> None:
        """Notes that the response could not be stored."""
        self._fields["store"] = False

    def whole(self) -> dict[str, Any]:
        """The response object as of now."""
        return self._fields | {"output": self._items.blocks if self.status != "queued" else []}

    def _encoded(self, events: Iterable[Event]) -> list[ResponseEvent]:
        return [self._event(event) for event in events]

    def _event(self, event: Event) -> ResponseEvent:
        kind, fields = event
        number, self._number = self._number, self._number + 1
        data = msgspec.json.encode({"type": kind, "sequence_number": number} | fields)
        return ResponseEvent(kind, number, data)


def wants_logprobs(include: Sequence[str] | None) -> bool:
    """Returns whether `include` asks for log probabilities."""
    return _LOGPROBS in (include or ())
