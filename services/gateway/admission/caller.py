"""Who makes a call, what is noted of it until it ends, and what became of it; the same for all transports."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.gateway.admission.errors.refusals import Headers, header_value
from services.gateway.admission.errors.shapes import is_anthropic
from services.gateway.admission.identity.identity import Identity, ModelScope
from services.gateway.admission.request_headers import RawHeaders, request_ids
from shared.identity import new_request_id
from shared.limits.book import NO_LIMITS, Party
from shared.limits.lease import Lease
from shared.messages import Accepted, SessionOutcome, Usage
from shared.telemetry.spans.request_trace import RequestTrace
from shared.telemetry.timelines import UNRECORDED, RequestTimeline

_ID_HEADERS = (b"x-request-id", b"request-id")  # the second is Anthropic's
Claim = list[tuple[Lease, int, int]]  # units of limits: which one, how many, and of which window


@dataclass(slots=True)
class CallOutcome:
    """The course of a call, for headers, metrics and the log.

    Attributes:
        group: The group of the call's first generation.
        accepted: The acceptance of the call's first generation.
        usages: One for each generation, known at the end.
        session: What became of the turn, known at its end.
        first_text_s: When the first text came, on the loop's clock; 0 if none came.
    """

    group: str = ""
    accepted: Accepted | None = None
    usages: list[Usage] = field(default_factory=list)
    session: SessionOutcome | None = None
    first_text_s: float = 0.0

    def headers(self) -> Headers:
        """Headers that name the group, why it was chosen, and where the prompt's KV came from.

        What is not known is left out. A group that fetches for long accepts before it has decided whether to
        fetch; then the usage tells, once it is there.
        """
        headers = [(b"x-ryz-group", self.group.encode())] if self.group else []
        if self.accepted is not None and self.accepted.reason:
            headers.append((b"x-ryz-route", header_value(self.accepted.reason)))
        kv = self.accepted.kv if self.accepted is not None else ""
        if not kv and any(usage.fetched_tokens for usage in self.usages):
            kv = "fetch"
        if kv:
            headers.append((b"x-ryz-kv", kv.encode()))
        if session := self._session():
            headers.append((b"x-ryz-session", session.encode()))
        return headers

    def _session(self) -> str:
        """The value of `X-Ryz-Session`; empty if nothing is known of the session yet.

        It says whether the session is new, and after the end of the turn what became of it.
        """
        ended = self.session
        if ended is not None:
            reason = f"; reason={ended.reason}" if ended.reason else ""
            replaced = "; replaced" if ended.replaced else ""
            text = f"{ended.state}; turns={ended.turns}; version={ended.version}; {ended.stored}"
            return f"{text}{reason}{replaced}"
        accepted = self.accepted
        if accepted is None or accepted.session_version < 0:
            return ""
        state = "continued" if accepted.session_version else "new"
        return f"{state}; turns={accepted.session_turns + 1}"


class Connection(Protocol):
    """Tells whether the caller is still there.

    Attributes:
        gone: It has left.
        on_gone: Called when it leaves, once; set by the call that runs and reset at its end.
    """

    gone: bool
    on_gone: Callable[[], None] | None


class DeliveryProgress(Protocol):
    """How much of an answer its transport has sent.

    Attributes:
        unsent: Bytes that are being sent.
        waits_since: When the reader took the last piece of them, on the loop's clock; 0: none are being sent.
    """

    unsent: int
    waits_since: float

    @property
    def started(self) -> bool:
        """Returns whether the caller has the beginning of the answer, so that its status is fixed."""


@dataclass(frozen=True, slots=True)
class BackgroundCall:
    """How a call runs that waits for room: one of a batch, which interactive calls go before.

    Attributes:
        name: Unique; decides the seed.
        seeded: The body has a seed of its own.
    """

    name: str
    seeded: bool = False


@dataclass(slots=True)
class Caller:
    """A call and who makes it, in any transport; on the bus it comes from a `shared.subjects.OutsideService`.

    Attributes:
        route: Names the API in metrics, log and trace: the path of its HTTP route, for every transport.
        headers: What the call says beside its body, by names of HTTP in lower case.
        connection: Tells when the caller leaves.
        delivery: How much of the answer was sent.
        response_headers: Headers of every answer to the call, also of a refusal; the first ones have its id.
        shown_id: The id of the call as the caller sees it.
        request_id: The id of the call as it travels.
        client: Address and port; None: not known.
        named_tenant: The tenant that a trusted transport vouches for; empty: the key decides.
        identity: Who makes it; before it was admitted: who opened its connection, if that is known.
        background: How the call runs if it waits for room; None: it does not.
        method: Of HTTP.
        tenant: Whose call it is; empty before it was admitted.
        party: For whom it counts; see `parties.py`.
        limits: Those that it counts for.
        claim: What it holds of them, to be given back at its end: a limit, units, and of which window.
        model: The model that it asks for; empty: that was not read yet.
        models: Those that it may use; None: all, or that is not known yet.
        asked_model: The name of it in the call, which may be an alias.
        slots: Places that it holds.
        held: Bytes that it holds.
        estimate: Tokens that it is charged for until it ends.
        begun: The gateway has taken it: it asks the fleet.
        created_s: When it came, in seconds since 1970.
        timeline: When it passed the parts of this gateway.
        trace: Of a call that is recorded.
        failure: The code of the error that ended a stream which had begun; empty: none did.
    """

    route: str
    headers: RawHeaders
    connection: Connection
    delivery: DeliveryProgress
    response_headers: Headers
    shown_id: str
    request_id: str
    client: Sequence[object] | None = None
    named_tenant: str = ""
    identity: Identity | None = None
    background: BackgroundCall | None = None
    method: str = "POST"
    tenant: str = ""
    party: str = ""
    limits: Party = NO_LIMITS
    claim: Claim = field(default_factory=list)
    model: str = ""
    models: ModelScope | None = None
    asked_model: str = ""
    slots: int = 0
    held: int = 0
    estimate: int = 0
    begun: bool = False
    outcome: CallOutcome = field(default_factory=CallOutcome)
    created_s: int = field(default_factory=lambda: int(time.time()))
    timeline: RequestTimeline = UNRECORDED
    trace: RequestTrace | None = None
    failure: str = ""

    @property
    def key_id(self) -> str:
        """The id of its stored key; empty: it has none."""
        return "" if self.identity is None else self.identity.key_id

    def take_ids(self, request_id: str, shown_id: str) -> None:
        """Takes the ids of an earlier call, whose answer is sent here."""
        self.request_id, self.shown_id = request_id, shown_id
        shown = shown_id.encode()
        self.response_headers[:] = [
            (name, shown if name in _ID_HEADERS else value) for name, value in self.response_headers
        ]


def new_caller(
    route: str,
    headers: RawHeaders,
    connection: Connection,
    delivery: DeliveryProgress,
    *,
    client: Sequence[object] | None = None,
    tenant: str = "",
    identity: Identity | None = None,
    background: BackgroundCall | None = None,
    method: str = "POST",
) -> Caller:
    """The caller of a call that has just come, not admitted yet; see `Caller` for the arguments."""
    shown_id, request_id = request_ids(headers, new_request_id())
    shown = shown_id.encode()
    response_headers = [(name, shown) for name in (_ID_HEADERS if is_anthropic(route) else _ID_HEADERS[:1])]
    return Caller(
        route,
        headers,
        connection,
        delivery,
        response_headers,
        shown_id,
        request_id,
        client=client,
        named_tenant=tenant,
        identity=identity,
        background=background,
        method=method,
    )
