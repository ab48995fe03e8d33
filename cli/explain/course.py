"""Puts the moments that services noted of one request into one row, and names what lies between them. Pure.

Every instant from the first moment to the last belongs to one span, so the spans sum to the whole. A moment
ends the span that is named for it: what took until then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shared.client.generation.retry_schedule import WAKING
from shared.messages import Explanation, Moment
from shared.telemetry.spans.names import AGAIN, OFFERED_AGAIN, SPANS, computed_between

IN_FLIGHT = "not over yet: since the last thing that was noted"
REFUSAL = "refusal to the gateway"
UNKNOWN = "in a group whose record is gone"  # its leader died, or has forgotten the request
AGAIN_SENT = "no group had answered, so it was sent again"
WAITED_FOR_MODEL = "waited for its model"
BEFORE_LOSS = "in a group that was lost later"
RESUMED = "no more tokens from a lost group, until it was sent to another"
# others may come before or after the moments beside them, or when the request is over
_BESIDE = frozenset({("gateway", "accepted"), ("gateway", "first frame"), ("worker", "superseded")})


@dataclass(frozen=True, slots=True)
class HeardExplanation:
    """The answer of one service.

    Attributes:
        sent_us: When it was asked, by our clock.
        heard_us: When the answer came.
    """

    explanation: Explanation
    sent_us: int
    heard_us: int

    @property
    def ahead_us(self) -> int:
        """By how much its clock is ahead of ours; 0 if the message's transfer may be all of it."""
        ahead, round_trip_us = (
            self.explanation.now_us - (self.sent_us + self.heard_us) // 2,
            self.heard_us - self.sent_us,
        )
        return ahead if abs(ahead) > round_trip_us / 2 else 0


@dataclass(frozen=True, slots=True)
class Span:
    """What a request did until a moment.

    Attributes:
        begins_ms: From the first moment of the request.
        data: Of the moment that ends it.
    """

    what: str
    service: str
    instance_id: str
    attempt: int
    begins_ms: float
    took_ms: float
    data: dict[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A loss of the request's group, after which it went on elsewhere.

    Attributes:
        lost: The group.
        reason: Why it counted as lost.
        begins_ms: Its last tokens, or when it took the request, from the first moment of the request.
        group: The group that went on; empty if no record says so.
        pause_ms: Until that group had the next token; None if no record says so.
    """

    lost: str
    reason: str
    begins_ms: float
    group: str = ""
    pause_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """One request, from its first moment to its last.

    Attributes:
        began_us: Microseconds since 1970.
        first_frame_ms: When the gateway had the first text, from the beginning; None: it had none.
        interruptions: Losses of its groups, in order.
    """

    request_id: str
    began_us: int
    spans: list[Span]
    first_frame_ms: float | None = None
    interruptions: list[GroupChange] = field(default_factory=list)

    @property
    def total_ms(self) -> float:
        """The whole, which is the sum of the spans."""
        return sum(span.took_ms for span in self.spans)


@dataclass(frozen=True, slots=True)
class _Noted:
    at_us: int
    service: str
    instance_id: str
    attempt: int
    moment: Moment


def courses(heard: Iterable[HeardExplanation]) -> list[Course]:
    """The courses of all requests that services reported, the oldest first."""
    by_request: dict[str, list[_Noted]] = {}
    now_us = 0
    for one in heard:
        explanation = one.explanation
        now_us = max(now_us, one.heard_us)
        for timeline in explanation.timelines:
            noted = by_request.setdefault(timeline.request_id, [])
            for moment in timeline.moments:
                attempt = int(moment.data.get("attempt", timeline.attempt))
                at_us = moment.at_us - one.ahead_us
                noted.append(_Noted(at_us, explanation.service, explanation.instance_id, attempt, moment))
    found = [_course(request_id, noted, now_us) for request_id, noted in by_request.items() if noted]
    return sorted(found, key=lambda course: course.began_us)


def _course(request_id: str, noted: list[_Noted], now_us: int) -> Course:
    noted = _without_outdated(sorted(noted, key=lambda one: one.at_us))
    ends_us = max((one.at_us for one in noted if one.moment.name == "answered"), default=noted[-1].at_us)
    row = [
        one
        for one in _without_repeats(noted)
        if one.at_us <= ends_us and (one.service, one.moment.name) not in _BESIDE
    ] or noted[:1]
    spans: list[Span] = []
    computing: dict[tuple[str, int], Moment] = {}  # the first admission, by leader and attempt
    led = {one.attempt for one in noted if one.service == "worker"}
    published = set[int]()
    refused = {one.attempt for one in noted if (one.service, one.moment.name) == ("router", "refused")}
    for before, one in pairwise(row):
        name, data = one.moment.name, dict(one.moment.data)
        key = one.instance_id, one.attempt
        what = SPANS.get((one.service, name), name)
        if name == "computing":
            what = AGAIN if key in computing and not data.get("choice") else what
            computing.setdefault(key, one.moment)
            data = {}
        elif name == "last token":
            data = _computed(computing.get(key), one.moment)
        elif name == OFFERED_AGAIN and data.get("reason") == WAKING:
            what = WAITED_FOR_MODEL
        elif name == "published" and one.attempt in published:
            what = AGAIN_SENT
        elif name == "published" and one.attempt:
            what = RESUMED if one.attempt - 1 in led else f"{UNKNOWN}, {RESUMED}"
        elif name == "last frame" and one.attempt not in led:
            what = REFUSAL if one.attempt in refused else UNKNOWN
        published |= {one.attempt} if name == "published" else set()
        begins_us, silent_us = before.at_us, _silent_us(one)
        if name == "published" and 0 < silent_us < one.at_us - begins_us:  # the group answered meanwhile
            went = BEFORE_LOSS if one.attempt - 1 in led else UNKNOWN
            what, lasts_us = RESUMED, one.at_us - silent_us - begins_us
            spans.append(_span(went, one, begins_us - row[0].at_us, lasts_us, {}))
            begins_us += lasts_us
        data.pop("attempt", None)
        spans.append(_span(what, one, begins_us - row[0].at_us, one.at_us - begins_us, data))
    moments = {(one.service, one.moment.name) for one in noted}
    if ("gateway", "received") in moments and ("gateway", "answered") not in moments:
        last = row[-1]
        since_ms, took_ms = (last.at_us - row[0].at_us) / 1000, max(0, now_us - last.at_us) / 1000
        spans.append(Span(IN_FLIGHT, last.service, last.instance_id, last.attempt, since_ms, took_ms))
    first = next((one.at_us for one in noted if one.moment.name == "first frame"), None)
    first_ms = None if first is None else (first - row[0].at_us) / 1000
    return Course(request_id, row[0].at_us, spans, first_ms, _interruptions(noted, row[0].at_us))


def _span(what: str, ends: _Noted, begins_us: int, took_us: int, data: dict[str, str | int | float]) -> Span:
    return Span(what, ends.service, ends.instance_id, ends.attempt, begins_us / 1000, took_us / 1000, data)


def _without_outdated(noted: list[_Noted]) -> list[_Noted]:
    """Leaves out what was noted of an attempt after the gateway had given it up.

    A group that was frozen goes on with it when it runs again, while another group has the request. Moments
    of the gateway name the attempt if they belong to one.
    """
    kept, newest = list[_Noted](), 0
    for one in noted:
        if (one.service, one.moment.name) == ("gateway", "published"):
            newest = max(newest, one.attempt)
        of_attempt = one.service != "gateway" or "attempt" in one.moment.data
        if one.attempt >= newest or not of_attempt:
            kept.append(one)
    return kept


def _without_repeats(noted: list[_Noted]) -> list[_Noted]:
    """Leaves one moment of a wait in which an attempt was offered again and again: that of the last offer."""
    offers = {
        one.attempt: one for one in noted if (one.service, one.moment.name) == ("gateway", OFFERED_AGAIN)
    }
    kept, published = list[_Noted](), set[int]()
    for one in noted:
        last = offers.get(one.attempt)
        if last is not None and one is not last and one.at_us <= last.at_us:
            is_offer = one.service == "gateway" and one.moment.name in {"published", OFFERED_AGAIN}
            if one.service == "router" or (is_offer and one.attempt in published):
                continue
            published |= {one.attempt} if is_offer else set()
        kept.append(one)
    return kept


def _silent_us(one: _Noted) -> int:
    """For how long a lost group had sent nothing when the request was sent to another one."""
    silent_ms = one.moment.data.get("silent_ms", 0)
    return round(silent_ms * 1000) if isinstance(silent_ms, int | float) else 0


def _interruptions(noted: list[_Noted], began_us: int) -> list[GroupChange]:
    found: dict[int, GroupChange] = {}  # by the attempt that went on
    for one in noted:
        data = one.moment.data
        if one.moment.name != "published" or "lost" not in data or one.attempt in found:
            continue
        since_us = one.at_us - _silent_us(one)
        mine = [other for other in noted if other.service == "worker" and other.attempt == one.attempt]
        group = next((str(other.moment.data["group"]) for other in mine if "group" in other.moment.data), "")
        token_us = next((other.at_us for other in mine if other.moment.name == "first token"), None)
        found[one.attempt] = GroupChange(
            str(data["lost"]),
            str(data.get("reason", "")),
            (since_us - began_us) / 1000,
            group,
            None if token_us is None else (token_us - since_us) / 1000,
        )
    return list(found.values())


def _computed(first: Moment | None, last: Moment) -> dict[str, str | int | float]:
    """What the group computed from a sequence's admission to its last token."""
    return {} if first is None else computed_between(first.data, last.data)


def longest(spans: Sequence[Span], share: float = 0.1) -> set[int]:
    """The places of the spans that take at least this share of the whole."""
    total = sum(span.took_ms for span in spans)
    return {index for index, span in enumerate(spans) if total and span.took_ms >= share * total}
