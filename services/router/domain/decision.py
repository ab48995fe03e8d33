"""What a routing decision is made of: the facts of a request, the view of the fleet, and the two outcomes.

Plain data. `fleet.py` makes the views, `policies/` make the outcomes, the handlers carry them out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from services.router.domain.rendezvous import preferred
from shared.errors import RyzError, from_code


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of a request.

    routing_key: the same for all turns of a session.
    prompt_tokens: to be computed wherever it goes; an estimate, from the size of the request.
    last_group: where the session was last served, as far as anybody told; empty: unknown.
    session_tokens: whose KV the session has so far, where it was last served; 0: none, or unknown.
    resumed: a group had it before and was lost, or gave it back. weights: the fingerprint of those that its
    answer was begun with; empty: it was not, or that is not known. places: one for each sequence (`n`).
    """

    model: str
    routing_key: str
    prompt_tokens: int = 0
    last_group: str = ""
    session_tokens: int = 0
    priority: int = 0
    resumed: bool = False
    weights: str = ""
    places: int = 1


class GroupView(msgspec.Struct, frozen=True, gc=False):
    """A group that is ready, as of now: its last heartbeat plus what this router sent since.

    capacity: requests it may hold, running and waiting; wait_s: seconds until a new prompt is begun with.
    recompute_tokens_per_s, fetch_tokens_per_s, fetch_s, store: see `KVRates`; rates of 0 are not known.
    lead_s: seconds of its work that it had lately beyond its fair share; less than 0: it is behind.
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

    @property
    def full(self) -> bool:
        """No queue place is left."""
        return self.running + self.waiting >= self.capacity

    @property
    def utilization(self) -> float:
        """Requests it holds per place in the batch, over its weight; above 1 requests wait."""
        return (self.running + self.waiting) / (max(1, self.max_running) * self.weight)


class FleetView:
    """The groups of one model as they were at one moment.

    away: the state of each group of the model that cannot take requests (starting, draining, failed, lost,
    tripped). models: what ready groups serve, for the answer to an unknown model.
    """

    def __init__(
        self,
        model: str,
        ready: Iterable[GroupView] = (),
        away: Mapping[str, str] | None = None,
        models: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.away = away or {}
        self.models = models
        self._ready = tuple(ready)

    @property
    def ready(self) -> tuple[GroupView, ...]:
        """All groups that may take requests, in the order of their names."""
        return self._ready

    def find(self, name: str) -> GroupView | None:
        """The ready group of that name."""
        for group in self._ready:
            if group.name == name:
                return group
        return None

    def home(self, key: str) -> GroupView | None:
        """The ready group that the key prefers; None: no group is ready."""
        return preferred(key, self._ready) if self._ready else None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The request goes to `group`. `reason` is one word for metrics and for the `Route`."""

    group: str
    reason: str
    preferred_group: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is turned away with this error.

    reason: one word for metrics. param: the field at fault. retry_after_s: when to come back, on average.
    """

    code: str
    reason: str
    message: str
    retry_after_s: float | None = None
    param: str | None = None

    def error(self, jitter: float = 1.0) -> RyzError:
        """What to tell the caller.

        jitter: times `retry_after_s`; a random number around 1 keeps callers from coming back in step.
        """
        message, data = self.message, dict[str, Any](reason=self.reason)
        if self.retry_after_s is not None:
            wait_s = round(self.retry_after_s * jitter, 3)
            message, data["retry_after_s"] = f"{message}; retry in {wait_s:g} s", wait_s
        if self.param is not None:
            data["param"] = self.param
        return from_code(self.code, message, data)


Decision = Assignment | Refusal
