"""The data of a routing decision: the facts of a request, the view of the fleet, and the two outcomes.

`fleet.py` makes the views, `policies/` the outcomes, and `dispatch.py` carries them out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from services.router.domain.rendezvous import preferred
from shared.errors import RyzError, from_code
from shared.guests.needs import Lack


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts of a request that a policy may use.

    Attributes:
        routing_key: The same for all turns of a session.
        prompt_tokens: Tokens to compute on any group, estimated from the size of the request.
        last_group: Where the session was last served; empty: unknown.
        session_tokens: Tokens of the session with KV on that group; 0: none, or unknown.
        priority: As in `GenerateRequest`.
        resumed: A group had the request before, and was lost or gave it back.
        weights: The fingerprint of the weights that began the answer; empty: it has not begun, or unknown.
        slots: One for each sequence (`n`).
        adapter: The fingerprint of the adapter that it runs with; empty: none.
        adapter_bytes: What the adapter takes in a group.
        spent: Groups at which its party has had its part (`policies/parties.py`).
    """

    model: str
    routing_key: str
    prompt_tokens: int = 0
    last_group: str = ""
    session_tokens: int = 0
    priority: int = 0
    resumed: bool = False
    weights: str = ""
    slots: int = 1
    adapter: str = ""
    adapter_bytes: int = 0
    spent: frozenset[str] = frozenset()


class GroupView(msgspec.Struct, frozen=True, gc=False):
    """A ready group as of now: its last heartbeat plus what this router sent since.

    Attributes:
        weight: Its share of the sessions.
        running: Requests in its batch.
        waiting: Requests in its queue.
        max_running: Slots in its batch.
        capacity: Requests that it may hold, running and waiting.
        wait_s: Seconds until it begins with a new prompt.
        tokens_per_s: Its rate lately; as the rates below, 0: not known.
        recompute_tokens_per_s: See `KVRates`.
        fetch_tokens_per_s: See `KVRates`.
        fetch_s: See `KVRates`.
        store: See `KVRates`.
        lead_s: Seconds of work that it had lately beyond its fair share; below 0: it is behind.
        has_adapter: Its memory has the adapter of the request.
    """

    name: str
    weight: float = 1.0
    running: int = 0
    waiting: int = 0
    max_running: int = 1
    capacity: int = 1
    wait_s: float = 0.0
    tokens_per_s: float = 0.0
    recompute_tokens_per_s: float = 0.0
    fetch_tokens_per_s: float = 0.0
    fetch_s: float = 0.0
    store: bool = False
    lead_s: float = 0.0
    has_adapter: bool = False

    @property
    def full(self) -> bool:
        """No queue slot is left."""
        return self.running + self.waiting >= self.capacity

    @property
    def utilization(self) -> float:
        """Requests per slot in its batch, over its weight; above 1 requests wait."""
        return (self.running + self.waiting) / (max(1, self.max_running) * self.weight)


UNABLE = "unable"  # how a view calls a guest's group that lacks something for the request


class Unable(NamedTuple):
    """A guest that lacks something for a request, which may have come to go on with an answer."""

    lack: Lack
    guest: str
    resumed: bool


class FleetView:
    """The groups of one model as they were at one moment.

    Attributes:
        away: The state of each of its groups that takes no requests (starting, draining, lost, tripped, ...).
        models: The models of ready groups, for the answer to an unknown model.
        adapter: The fingerprint of the adapter of the request; empty: none.
        unable: One of the guests that lack something for the request; None: there is none.
    """

    def __init__(
        self,
        model: str,
        ready: Iterable[GroupView] = (),
        away: Mapping[str, str] | None = None,
        models: Sequence[str] = (),
        adapter: str = "",
        *,
        unable: Unable | None = None,
    ) -> None:
        self.model = model
        self.adapter = adapter
        self.unable = unable
        self.away = away or {}
        self.models = models
        self._ready = tuple(ready)

    @property
    def ready(self) -> tuple[GroupView, ...]:
        """All groups that may take requests, in the order of their names."""
        return self._ready

    @property
    def names(self) -> Collection[str]:
        """The names of these groups."""
        return [group.name for group in self._ready]

    def find(self, name: str) -> GroupView | None:
        """The ready group of that name."""
        for group in self._ready:
            if group.name == name:
                return group
        return None

    def home(self, key: str) -> GroupView | None:
        """The ready group that the key prefers; None if no group is ready.

        With an adapter it is one of the groups that have it. While none has, all its requests have one home,
        so that one group loads it.
        """
        if not self._ready:
            return None
        if not self.adapter:
            return preferred(key, self._ready)
        having = [group for group in self._ready if group.has_adapter]
        return preferred(key, having) if having else preferred(self.adapter, self._ready)


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The request goes to `group`; `reason` is a word for metrics and for the `Route`."""

    group: str
    reason: str
    preferred_group: str = ""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The request is refused with this error.

    Attributes:
        code: As in `shared.errors`.
        reason: A word for metrics.
        message: Text for the caller.
        retry_after_s: When to come back, on average.
        param: The field at fault.
    """

    code: str
    reason: str
    message: str
    retry_after_s: float | None = None
    param: str | None = None

    def error(self, jitter: float = 1.0) -> RyzError:
        """The error for the caller.

        Args:
            jitter: A factor of `retry_after_s`, random around 1, so that callers do not come back in step.
        """
        message, data = self.message, dict[str, Any](reason=self.reason)
        if self.retry_after_s is not None:
            wait_s = round(self.retry_after_s * jitter, 3)
            message, data["retry_after_s"] = f"{message}; retry in {wait_s:g} s", wait_s
        if self.param is not None:
            data["param"] = self.param
        return from_code(self.code, message, data)


Decision = Assignment | Refusal
