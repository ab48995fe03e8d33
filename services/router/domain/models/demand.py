"""Requests that wait for a model of which no group takes requests. Pure; `now` is monotonic seconds.

A request waits at its client, which offers it again and again, to any router. So each router counts those
that it has refused in the last seconds, and sends the others its counts (`RouterAlive.wanted`). A request
that was offered to several routers counts several times: what matters is that there is one, and since when.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from services.router.domain.models.control_state import Demand

WAITS_S = 3.0  # after its last refusal: a client that still waits has come back long before
_MAX_REQUESTS = 4096  # that are counted, of one model
MAX_WANTED = 64  # models with requests that wait; others are counted when one of these is no longer wanted
_MAX_ROUTERS = 256
_MAX_NAME_BYTES = 12_288  # of the models in one message, which may have 16 KiB

RequestKey = tuple[str, str]  # tenant, request id


class _Waiting:
    """The requests that wait for one model at this router, which was always wanted `since` then."""

    __slots__ = ("last", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.last: OrderedDict[RequestKey, float] = OrderedDict()  # in the order of last refusals

    def note(self, key: RequestKey, now: float) -> None:
        if key in self.last or len(self.last) < _MAX_REQUESTS:
            self.last[key] = now
            self.last.move_to_end(key)

    def expire(self, now: float) -> None:
        while self.last and now - next(iter(self.last.values())) > WAITS_S:
            self.last.popitem(last=False)


@dataclass(slots=True)
class _Elsewhere:
    """Another router's count for one model, received at `at`; it has named the model since `since`."""

    requests: int
    since: float
    at: float


class DemandBook:
    """The requests that wait, by model: those of this router, and the counts of others."""

    def __init__(self) -> None:
        self._own: dict[str, _Waiting] = {}
        self._others: dict[str, dict[str, _Elsewhere]] = {}  # router -> model -> count

    def note(self, model: str, key: RequestKey, now: float) -> bool:
        """A request was refused and waits; returns whether it is the first one for this model here."""
        waiting = self._own.get(model)
        if waiting is not None:
            waiting.expire(now)
            if waiting.last:
                waiting.note(key, now)
                return False
        elif len(self._own) >= MAX_WANTED:
            return False
        self._own[model] = waiting = _Waiting(now)
        waiting.note(key, now)
        return True

    def waits(self, model: str, key: RequestKey) -> bool:
        """Whether this router has refused the request lately."""
        waiting = self._own.get(model)
        return waiting is not None and key in waiting.last

    def served(self, model: str, key: RequestKey) -> None:
        """A request was given to a group: it no longer waits."""
        waiting = self._own.get(model)
        if waiting is None:
            return
        waiting.last.pop(key, None)
        if not waiting.last:
            del self._own[model]

    def begin_anew(self, model: str, now: float) -> None:
        """A load of the model failed: from now on it has waited no longer than others."""
        waiting = self._own.get(model)
        if waiting is not None:
            waiting.since = now
        for counts in self._others.values():
            if model in counts:
                counts[model].since = now

    def own(self, now: float) -> dict[str, int]:
        """How many requests wait at this router, by model, as far as `RouterAlive.wanted` has room for it."""
        self.expire(now)
        counts, room = dict[str, int](), _MAX_NAME_BYTES
        for model, waiting in self._own.items():
            room -= len(model.encode())
            if room >= 0:
                counts[model] = len(waiting.last)
        return counts

    def hear(self, router_id: str, wanted: Mapping[str, int], now: float) -> bool:
        """Another router sent its counts; returns whether they name a model that its last ones did not."""
        self.expire(now)
        if router_id not in self._others and (not wanted or len(self._others) >= _MAX_ROUTERS):
            return False
        before = self._others.pop(router_id, {})
        counts = [(model, count) for model, count in wanted.items() if count > 0][:MAX_WANTED]
        if not counts:
            return False
        self._others[router_id] = {
            model: _Elsewhere(count, before[model].since if model in before else now, now)
            for model, count in counts
        }
        return any(model not in before for model, _ in counts)

    def leave(self, router_id: str) -> None:
        """Another router has ended: its clients come to the remaining ones."""
        self._others.pop(router_id, None)

    def waiting(self, model: str) -> int:
        """Requests that wait for a model, at all routers."""
        own = self._own.get(model)
        others = (counts[model].requests for counts in self._others.values() if model in counts)
        return (len(own.last) if own is not None else 0) + sum(others)

    def demand(self, now: float) -> dict[str, Demand]:
        """The demand at all routers, by model; see `Demand`."""
        self.expire(now)
        since = {model: waiting.since for model, waiting in self._own.items()}
        for counts in self._others.values():
            for model, one in counts.items():
                since[model] = min(since.get(model, one.since), one.since)
        return {model: Demand(self.waiting(model), now - at) for model, at in since.items()}

    def expire(self, now: float) -> None:
        """Drops requests that did not come back, and the counts of routers that are silent."""
        for model, waiting in list(self._own.items()):
            waiting.expire(now)
            if not waiting.last:
                del self._own[model]
        for router_id, counts in list(self._others.items()):
            if all(now - one.at > WAITS_S for one in counts.values()):
                del self._others[router_id]
