"""Compares routing policies: the router's own policies, fleet and session memory against modelled groups.

Time is virtual, so a run is the same each time and takes seconds; `routing/model.py` is the model. Requests
come at random (Poisson), each of a session drawn by Zipf's law, so one session has a quarter of them; those
of one session may overlap.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from statistics import fmean
from typing import Any

from benchmarks.lib.measuring import percentiles
from benchmarks.routing.model import BEAT_MS, MODEL, GroupRates, ModelledGroup, ModelledTurn
from benchmarks.stack_plans import RoutingPlan
from services.router.domain.decision import Assignment, RequestFacts
from services.router.domain.groups.balance import imbalance
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies import PolicyName, make_policy
from services.router.domain.policies.costs import Costs
from services.router.domain.session_memory import Asker, KnownSession, SessionMemory

WARMUP_SHARE = 0.2  # share of the time that does not count
PROMPT_TOKENS, ANSWER_TOKENS = 60, 40  # means
MOST_TOKENS = 2000  # a session of so many tokens begins a new conversation


class World:
    """One run in virtual time: the groups, what the router knows, and the events that are due."""

    def __init__(self, plan: RoutingPlan, policy: PolicyName) -> None:
        rates = GroupRates(store=plan.store)
        self._plan = plan
        self._costs = Costs()
        self._random = random.Random(plan.seed)
        self._groups = {f"g{index}": ModelledGroup(f"g{index}", rates) for index in range(plan.groups)}
        self._fleet = Fleet(FleetLimits())
        self._policy = make_policy(policy, costs=self._costs)
        self._known = SessionMemory(ttl_s=3600.0, max_entries=65_536)
        self._order = count()
        self._conversations = [next(self._order) for _ in range(plan.sessions)]
        self._tokens = [self._random.randrange(MOST_TOKENS) for _ in range(plan.sessions)]
        self._events: list[tuple[float, int, str, Any]] = []
        self._done: list[ModelledTurn] = []
        self._refused = 0
        for turn in _arrivals(plan, rates, self._random):
            self._at(turn.arrived_s, "arrive", turn)
        for beat in range(int(plan.duration * 1000 / BEAT_MS)):
            self._at(beat * BEAT_MS / 1000, "beat", None)

    def run(self) -> dict[str, Any]:
        """Run all events and return the figures of the time after the warm-up; see `route`."""
        warm_s, ends_s = WARMUP_SHARE * self._plan.duration, self._plan.duration
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

    def _on_arrive(self, turn: ModelledTurn, now: float) -> None:
        session_id = f"session-{turn.session}"
        if self._tokens[turn.session] >= MOST_TOKENS:
            self._tokens[turn.session] = 0
            self._conversations[turn.session] = next(self._order)
            self._known.forget_session("t", session_id, session_id, now)
        turn.conversation, turn.history = self._conversations[turn.session], self._tokens[turn.session]
        asker = Asker("t", session_id, whole=False)
        facts = RequestFacts(MODEL, session_id, turn.prompt)
        facts, turn_tokens = self._known.complete_facts(facts, asker, now)
        view = self._fleet.view(MODEL, now)
        decision = self._policy.choose(facts, view, now)
        if not isinstance(decision, Assignment):
            self._refused += 1
            return
        turn.group, turn.reason = decision.group, decision.reason
        last, group = view.find(facts.last_group), view.find(decision.group)
        move = self._costs.move(facts, group, last) if group and last else None
        again = move.computed_tokens if move else 0
        self._known.note_sent(facts, asker, decision.group, now)
        self._fleet.count_sent(decision.group, turn.prompt + again, now, turn_tokens - turn.prompt)
        taker = self._groups[decision.group]
        taker.take_turn(turn, now)
        if turn.ready_s > now:
            self._at(turn.ready_s, "step", taker)
        self._on_step(taker, now)

    def _on_step(self, group: ModelledGroup, now: float) -> None:
        if group.stepping:
            return
        ran = group.run_step(now)
        if ran is not None:
            group.stepping = True
            self._at(now + ran[0], "stepped", (group, ran[1]))

    def _on_stepped(self, what: tuple[ModelledGroup, list[ModelledTurn]], now: float) -> None:
        group, done = what
        group.stepping = False
        for turn in done:
            session_id = f"session-{turn.session}"
            if self._conversations[turn.session] == turn.conversation:
                self._tokens[turn.session] = max(self._tokens[turn.session], turn.tokens)
                served = KnownSession(group.name, turn.tokens)
                self._known.note_turn("t", session_id, session_id, served, now)
            self._done.append(turn)
        self._on_step(group, now)

    def _figures(
        self, before: dict[str, tuple[float, int]], turns: list[ModelledTurn], elapsed_s: float
    ) -> dict[str, Any]:
        groups = self._groups.values()
        even = dict.fromkeys(self._groups, 1.0)
        busy_s = {group.name: group.busy_s - before[group.name][0] for group in groups}
        computed = {group.name: float(group.computed - before[group.name][1]) for group in groups}
        requests = Counter(turn.group for turn in turns)
        history = sum(turn.history for turn in turns) or 1
        return {
            "policy": self._policy.name,
            "imbalance_tokens": round(imbalance(computed, even), 4),
            "imbalance_busy": round(imbalance(busy_s, even), 4),
            "imbalance_requests": round(imbalance(requests, even), 4),
            "hit_rate": round(sum(turn.cached for turn in turns) / history, 4),
            "fetched_rate": round(sum(turn.fetched for turn in turns) / history, 4),
            **percentiles([turn.first_s - turn.arrived_s for turn in turns], "ttft", digits=1),
            "use": round(fmean(busy_s.values()) / elapsed_s, 3),
            "turns": len(turns),
            "refused": self._refused,
            "reasons": {
                reason: round(number / len(turns), 4)
                for reason, number in Counter(turn.reason for turn in turns).most_common()
            },
        }


def _arrivals(plan: RoutingPlan, rates: GroupRates, random_: random.Random) -> Iterator[ModelledTurn]:
    weights = [1 / rank**plan.zipf for rank in range(1, plan.sessions + 1)]
    sessions = range(plan.sessions)
    per_s = plan.load * plan.groups / rates.turn_s(PROMPT_TOKENS, ANSWER_TOKENS)
    now = 0.0
    while True:
        now += random_.expovariate(per_s)
        if now >= plan.duration:
            return
        session = random_.choices(sessions, weights)[0]
        # lengths of texts are spread widely: half to one and a half times the mean
        prompt = max(1, round(PROMPT_TOKENS * random_.uniform(0.5, 1.5)))
        answer = max(1, round(ANSWER_TOKENS * random_.uniform(0.5, 1.5)))
        yield ModelledTurn(session, 0, 0, prompt, answer, now)


def route(plan: RoutingPlan, policy: PolicyName) -> dict[str, Any]:
    """Return one policy's figures; the same plan gives every policy the same requests.

    `imbalance_*` is the excess of the busiest group over its share: of tokens computed, of seconds busy, of
    requests. `hit_rate` and `fetched_rate` are the shares of the sessions' tokens that were in the group's
    memory and that were fetched. `use` is the share of the time that groups were busy.
    """
    return World(plan, policy).run()
