"""A fleet in virtual time whose groups `decide` starts and stops; each step is checked."""

from collections import Counter
from collections.abc import Sequence

from services.router.domain.models.control_state import (
    Action,
    Demand,
    Load,
    ModelFleet,
    Refused,
    Resize,
    Stop,
)
from services.router.domain.models.decision import decide
from shared.messages.models import Wish
from tests.kits.router.models.checks import check_load, check_resizes, check_stops
from tests.kits.router.models.simulated_host import (
    EXIT_S,
    SimulatedGroup,
    SimulatedHost,
    SimulatedModel,
)

STEP_S = 0.5
LONGEST_REQUEST_S = 4.0


class Simulation:
    """Requests, loads, deaths and wishes; `step` moves the time on, decides, checks, and acts.

    Attributes:
        actions: All actions so far, with their times.
        refused: Models whose requests were refused, by the number of decisions.
        disturbances: Deaths, failed loads and wishes since a model began to wait.
        longest_wait: Of any model that always fits, as a part of its bound; `longest_wait_s` in seconds.
    """

    def __init__(self, hosts: Sequence[SimulatedHost], models: Sequence[SimulatedModel]) -> None:
        self.now = 0.0
        self.hosts = {host.name: host for host in hosts}
        self.models = {model.name: model for model in models}
        self.waiting: dict[str, list[float]] = {model.name: [] for model in models}
        self.waits_since: dict[str, float] = {}
        self.steady: set[str] = set()
        self.failures: dict[str, list[float]] = {model.name: [] for model in models}
        self.actions: list[tuple[float, Action]] = []
        self.refused: Counter[str] = Counter()
        self.disturbances: Counter[str] = Counter()
        self.longest_wait = 0.0
        self.longest_wait_s = 0.0
        self.changed_at = 0.0
        self._names = 0

    # what happens to the fleet

    def request(self, model: str, duration_s: float) -> None:
        self.waiting[model].append(duration_s)

    def kill(self, number: int) -> None:
        """A group dies, with its requests; callers send them again."""
        groups = [(host, group) for host in self.hosts.values() for group in host.groups]
        if groups:
            host, group = groups[number % len(groups)]
            host.remove(group)
            self.waiting[group.model.name] += [1.0] * group.busy
            self._disturb()

    def kill_leader(self, number: int) -> None:
        """The leader of a group that was ready dies, and starts again."""
        groups = [group for host in self.hosts.values() for group in host.groups if group.takes]
        if groups:
            group = groups[number % len(groups)]
            self.waiting[group.model.name] += [1.0] * group.busy
            group.running.clear()
            group.queue.clear()
            group.used_at, group.away_until = self.now, self.now + 3.0
            self._disturb()

    def change_budget(self, number: int, more_bytes: int) -> None:
        host = list(self.hosts.values())[number % len(self.hosts)]
        host.budget_bytes = max(host.budget_bytes + more_bytes, 1)
        self.changed_at = self.now

    def fail_next(self, model: str, retry_s: float) -> None:
        """The next load of a model fails, and is tried again after a time."""
        self.failures[model].append(retry_s)

    def wish(self, model: str, wish: Wish) -> None:
        for host in self.hosts.values():
            if host.offers_model(model):
                host.wishes[model] = wish
        self._disturb()

    def scale(self, model: str, most: int) -> None:
        self.models[model].most = max(most, self.models[model].least, 1)
        self._disturb()

    def _disturb(self) -> None:
        for model in self.models:
            self.disturbances[model] += 1

    # time

    def step(self) -> list[Action]:
        self.now += STEP_S
        for host in self.hosts.values():
            self._run(host)
            host.note_wishes()
        for name in self.steady:
            if not self.waiting[name]:
                self.request(name, LONGEST_REQUEST_S)
        for name in self.models:
            self._give_out(name)
        actions = decide(self.fleet())
        for host in self.hosts.values():
            stops = [one for one in actions if isinstance(one, Stop) and one.host == host.name]
            resizes = [one for one in actions if isinstance(one, Resize) and one.host == host.name]
            check_stops(host, stops, resizes, self)
            check_resizes(host, resizes, self)
        for action in actions:
            self._act(action)
        self._check()
        self.actions += [(self.now, action) for action in actions]
        return actions

    def fleet(self) -> ModelFleet:
        demand = {
            model: Demand(len(self.waiting[model]), self.now - since)
            for model, since in self.waits_since.items()
        }
        return ModelFleet(tuple(host.state(self.now) for host in self.hosts.values()), demand)

    def groups_of(self, model: str) -> list[SimulatedGroup]:
        """Groups of a model that do not stop."""
        return [group for host in self.hosts.values() for group in host.running(model)]

    def requests(self) -> int:
        """Requests that wait or run."""
        waiting = sum(len(waiting) for waiting in self.waiting.values())
        return waiting + sum(group.busy for host in self.hosts.values() for group in host.groups)

    def waited_s(self, model: str) -> float:
        return self.now - self.waits_since.get(model, self.now)

    def _run(self, host: SimulatedHost) -> None:
        for group in list(host.groups):
            group.run(self.now)
            if group.ended_at is not None and group.ended_at <= self.now:
                host.remove(group)
            elif group.starting and self.now >= group.started_at + group.model.load_s:
                self._end_load(host, group)

    def _end_load(self, host: SimulatedHost, group: SimulatedGroup) -> None:
        name = group.model.name
        if group.retry_s is None:
            group.ready_at = group.used_at = self.now
            return
        host.remove(group)
        host.retry_at[name] = self.now + group.retry_s
        self._refuse(name)
        self._disturb()

    def _refuse(self, model: str) -> None:
        self.waiting[model].clear()
        self.waits_since.pop(model, None)

    def _give_out(self, model: str) -> None:
        """Requests go to groups that take some, or wait, or are refused if no host may load the model."""
        takers = [group for group in self.groups_of(model) if group.takes]
        waiting = self.waiting[model]
        while waiting and takers:
            group = min(takers, key=lambda one: (one.busy, one.name))
            if group.busy >= 2 * group.model.slots:
                break
            group.queue.append(waiting.pop(0))
            group.served = True
            group.run(self.now)
        able = any(
            host.offers_model(model) and host.wishes.get(model) != "unload" for host in self.hosts.values()
        )
        if not able or (not takers and model not in self.steady and self._retries_everywhere(model)):
            self._refuse(model)
        if takers or not waiting:
            self.waits_since.pop(model, None)
        elif model not in self.waits_since:
            self.waits_since[model] = self.now
            self.disturbances[model] = 0

    def _retries_everywhere(self, model: str) -> bool:
        hosts = [host for host in self.hosts.values() if host.offers_model(model)]
        return all(host.retry_at.get(model, 0.0) > self.now for host in hosts)

    def _act(self, action: Action) -> None:
        if isinstance(action, Refused):
            assert not self.groups_of(action.model)
            assert not self.fitting(action.model, smallest=True), action
            self.refused[action.model] += 1
            self._refuse(action.model)
            return
        host = self.hosts[action.host]
        if isinstance(action, Load):
            check_load(host, action, self)
            self._names += 1
            model = self.models[action.model]
            failures = self.failures[action.model]
            retry_s = failures.pop(0) if failures else None
            first = not host.running(action.model)
            host.groups.append(SimulatedGroup(f"g{self._names}", model, self.now, first, retry_s))
            assert host.charged_bytes <= host.budget_bytes, f"{action} takes more than the budget"
        elif isinstance(action, Resize):
            group = next(one for one in host.groups if one.name == action.group)
            group.kv_limit, group.kv_changed_at = action.kv_bytes, self.now
            group.kv_measured = max(group.kv_measured, action.kv_bytes)
        else:
            group = next(one for one in host.groups if one.name == action.group)
            group.stopping = True
            group.run(self.now)

    # what must hold

    def fitting(self, model: str, *, smallest: bool = False) -> list[SimulatedHost]:
        """Hosts that have room for a model beside all groups of others that stay.

        Args:
            smallest: With caches as small as they can be.
        """
        return [
            host
            for host in self.hosts.values()
            if host.offers_model(model)
            and self.models[model].first_bytes
            <= host.budget_bytes
            - sum(
                one.bytes_of(one.kept) - (one.kept * (one.kv - one.kv_least) if smallest else 0)
                for one in host.models
                if one.name != model
            )
        ]

    def bound_s(self, model: str) -> float:
        """The longest that a model waits: its patience, and one turn of each other model and disturbance."""
        patience_s = max(5.0, 3 * self.models[model].load_s)
        return patience_s + (len(self.models) + self.disturbances[model]) * self.turn_s()

    def rest_s(self) -> float:
        """Time in which all that waits is done."""
        return len(self.models) * self.turn_s() + self.requests() * LONGEST_REQUEST_S

    def turn_s(self) -> float:
        """The longest turn of a model.

        In a turn, what was loaded last runs for its quantum, is drained, and ends; a load that was under way
        ends, and the one whose turn it is is loaded.
        """
        load_s = max(one.load_s for one in self.models.values())
        drain_s = 2 * LONGEST_REQUEST_S + EXIT_S
        return max(10.0, 3 * load_s) + drain_s + 2 * load_s + 4 * STEP_S

    def _check(self) -> None:
        for host in self.hosts.values():
            assert sum(group.starting for group in host.groups) <= 1, f"{host.name} starts two at a time"
        for model, since in self.waits_since.items():
            if hosts := self.fitting(model):
                able_at = min(host.retry_at.get(model, 0.0) for host in hosts)
                waited_s = self.now - max(since, able_at, self.changed_at)
                self.longest_wait_s = max(self.longest_wait_s, waited_s)
                self.longest_wait = max(self.longest_wait, waited_s / self.bound_s(model))
                assert waited_s <= self.bound_s(model), f"{model} waits for {waited_s} s"
