"""Routing compared: the router's own policies, fleet and memory of sessions against modelled groups.

Time is virtual, so a run is the same each time and takes seconds; what it models stands in
`routing_model.py`. Requests come at random (Poisson), each of a session drawn by Zipf's law, so one session
has a quarter of them; those of one session may overlap.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from statistics import fmean, quantiles
from typing import Any

from benchmarks.routing.routing_model import BEAT_MS, MODEL, ModelGroup, Shape, Turn
from services.router.domain.decision import Assignment, RequestFacts
from services.router.domain.fleet import Fleet, FleetLimits
from services.router.domain.policies import HybridLimits, PolicyName, make_policy
from services.router.domain.policies.balance import imbalance
from services.router.domain.policies.costs import Costs
from services.router.domain.session_memory import Asker, Session, Sessions

WARMUP_SHARE = 0.2  # of the time, before anything is counted


@dataclass(frozen=True, slots=True)
class Traffic:
    """load: of all groups' time, as far as it can be told before; a session starts anew at `most_tokens`."""

    sessions: int = 64
    zipf: float = 1.1
    groups: int = 4
    load: float = 0.8
    duration_s: float = 300.0
    prompt_tokens: int = 60
    answer_tokens: int = 40
    most_tokens: int = 2000
    seed: int = 1


class World:
    """One run: the groups, what the router knows, and what is to happen when.

    limits, costs: of `hybrid`.
    """

    def __init__(
        self,
        traffic: Traffic,
        policy: PolicyName,
        shape: Shape,
        limits: HybridLimits | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.traffic = traffic
        self.costs = costs or Costs()
        self._random = random.Random(traffic.seed)
        self._groups = {f"g{index}": ModelGroup(f"g{index}", shape) for index in range(traffic.groups)}
        self._fleet = Fleet(FleetLimits())
        self._policy = make_policy(policy, limits, self.costs)
        self._known = Sessions(ttl_s=3600.0, max_entries=65_536)
        self._order = count()
        self._conversations = [next(self._order) for _ in range(traffic.sessions)]
        self._tokens = [self._random.randrange(traffic.most_tokens) for _ in range(traffic.sessions)]
        self._events: list[tuple[float, int, str, Any]] = []
        self._done: list[Turn] = []
        self._refused = 0
        for turn in _arrivals(traffic, shape, self._random):
            self._at(turn.arrived_s, "arrive", turn)
        for beat in range(int(traffic.duration_s * 1000 / BEAT_MS)):
            self._at(beat * BEAT_MS / 1000, "beat", None)

    def run(self) -> dict[str, Any]:
        """Figures of the time after the warm-up; see `run` below."""
        warm_s, ends_s = WARMUP_SHARE * self.traffic.duration_s, self.traffic.duration_s
        before: dict[str, tuple[float, int]] = {}
        while self._events and self._events[0][0] < ends_s:
            now, _, kind, what = heapq.heappop(self._events)
            if not before and now >= warm_s:
                before = {group.name: (group.busy_s, group.computed) for group in self._groups.values()}
            getattr(self, f"_on_{kind}")(what, now)
        turns = [turn for turn in self._done if turn.arrived_s >= warm_s]
        return self._figures(before, turns, ends_s - warm_s)

    def _at(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _on_beat(self, _: None, now: float) -> None:
        for group in self._groups.values():
            self._fleet.observe(group.heartbeat(), now)

    def _on_arrive(self, turn: Turn, now: float) -> None:
        session_id = f"session-{turn.session}"
        if self._tokens[turn.session] >= self.traffic.most_tokens:
            self._tokens[turn.session] = 0
            self._conversations[turn.session] = next(self._order)
            self._known.forget("t", session_id, session_id, now)
        turn.conversation, turn.history = self._conversations[turn.session], self._tokens[turn.session]
        asker = Asker("t", session_id, whole=False)
        facts = RequestFacts(MODEL, session_id, turn.prompt)
        facts, turn_tokens = self._known.complete(facts, asker, now)
        view = self._fleet.view(MODEL, now)
        decision = self._policy.choose(facts, view, now)
        if not isinstance(decision, Assignment):
            self._refused += 1
            return
        turn.group, turn.reason = decision.group, decision.reason
        place, group = view.find(facts.last_group), view.find(decision.group)
        move = self.costs.move(facts, group, place) if group and place else None
        again = move.computed_tokens if move else 0
        self._known.sent(facts, asker, decision.group, now)
        self._fleet.sent(decision.group, turn.prompt + again, now, turn_tokens - turn.prompt)
        taker = self._groups[decision.group]
        taker.take(turn, now)
        if turn.ready_s > now:
            self._at(turn.ready_s, "step", taker)
        self._on_step(taker, now)

    def _on_step(self, group: ModelGroup, now: float) -> None:
        if group.stepping:
            return
        ran = group.step(now)
        if ran is not None:
            group.stepping = True
            self._at(now + ran[0], "stepped", (group, ran[1]))

    def _on_stepped(self, what: tuple[ModelGroup, list[Turn]], now: float) -> None:
        group, done = what
        group.stepping = False
        for turn in done:
            session_id = f"session-{turn.session}"
            if self._conversations[turn.session] == turn.conversation:
                self._tokens[turn.session] = max(self._tokens[turn.session], turn.tokens)
                told = Session(group.name, turn.tokens)
                self._known.turned("t", session_id, session_id, told, now)
            self._done.append(turn)
        self._on_step(group, now)

    def _figures(
        self, before: dict[str, tuple[float, int]], turns: list[Turn], elapsed_s: float
    ) -> dict[str, Any]:
        groups = self._groups.values()
        even = dict.fromkeys(self._groups, 1.0)
        busy_s = {group.name: group.busy_s - before[group.name][0] for group in groups}
        computed = {group.name: float(group.computed - before[group.name][1]) for group in groups}
        requests = Counter(turn.group for turn in turns)
        history = sum(turn.history for turn in turns) or 1
        ttft = quantiles([(turn.first_s - turn.arrived_s) * 1000 for turn in turns], n=100)
        return {
            "policy": self._policy.name,
            "imbalance_tokens": round(imbalance(computed, even), 4),
            "imbalance_busy": round(imbalance(busy_s, even), 4),
            "imbalance_requests": round(imbalance(requests, even), 4),
            "hit_rate": round(sum(turn.cached for turn in turns) / history, 4),
            "fetched_rate": round(sum(turn.fetched for turn in turns) / history, 4),
            "ttft_p50_ms": round(ttft[49], 1),
            "ttft_p99_ms": round(ttft[98], 1),
            "use": round(fmean(busy_s.values()) / elapsed_s, 3),
            "turns": len(turns),
            "refused": self._refused,
            "reasons": {
                reason: round(number / len(turns), 4)
                for reason, number in Counter(turn.reason for turn in turns).most_common()
            },
        }


def _arrivals(traffic: Traffic, shape: Shape, random_: random.Random) -> Iterator[Turn]:
    weights = [1 / rank**traffic.zipf for rank in range(1, traffic.sessions + 1)]
    sessions = range(traffic.sessions)
    per_s = traffic.load * traffic.groups / shape.turn_s(traffic.prompt_tokens, traffic.answer_tokens)
    now = 0.0
    while True:
        now += random_.expovariate(per_s)
        if now >= traffic.duration_s:
            return
        session = random_.choices(sessions, weights)[0]
        # lengths of texts are spread widely: half to one and a half times the mean
        prompt = max(1, round(traffic.prompt_tokens * random_.uniform(0.5, 1.5)))
        answer = max(1, round(traffic.answer_tokens * random_.uniform(0.5, 1.5)))
        yield Turn(session, 0, 0, prompt, answer, now)


def run(traffic: Traffic, policy: PolicyName, shape: Shape | None = None) -> dict[str, Any]:
    """One policy's figures; the same traffic gives every policy the same requests.

    imbalance_*: excess of the busiest group over its share, of tokens computed, of seconds busy, of requests.
    hit_rate, fetched_rate: share of the sessions' tokens that were in the group's memory, that were fetched.
    use: share of the time that groups were busy.
    """
    return World(traffic, policy, shape or Shape()).run()
