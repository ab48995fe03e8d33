"""Times the router's decisions, in real time: the view of the fleet, and the choice made on it."""

import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.lib.measuring import percentiles
from benchmarks.routing.model import MODEL, GroupRates, ModelledGroup, ModelledTurn
from services.router.domain.decision import RequestFacts
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.policies import make_policy
from services.router.domain.session_memory import Asker, SessionMemory

_SESSIONS = 1000


def decision_times(sizes: Sequence[int], decisions: int = 2000) -> list[dict[str, Any]]:
    """Return microseconds of a decision by `hybrid` for fleets of these sizes, half of their groups busy.

    `choose_*` is the policy with the views of the groups it looks at: two when the session's group is calm,
    all when it is busy. `decide_*` also has the lookup of the session and of the groups that are ready.
    """
    return [_row(size, decisions) for size in sizes]


def _row(size: int, decisions: int) -> dict[str, Any]:
    random_ = random.Random(size)
    fleet = _fleet(size, random_)
    sessions = SessionMemory(ttl_s=3600.0, max_entries=65_536)
    policy = make_policy("hybrid")
    choose_us, decide_us = [], []
    for number in range(decisions):
        session_id = f"session-{random_.randrange(_SESSIONS)}"
        asker, facts = Asker("t", session_id, whole=False), RequestFacts(MODEL, session_id, 100)
        now = 0.02 + number * 1e-6
        began = time.perf_counter()
        facts, _ = sessions.complete_facts(facts, asker, now)
        view = fleet.view(MODEL, now)
        seen = time.perf_counter()
        policy.choose(facts, view, now)
        ended = time.perf_counter()
        choose_us.append((ended - seen) * 1e6)
        decide_us.append((ended - began) * 1e6)
        sessions.note_sent(facts, asker, random_.choice(view.ready).name, now)
    times = {"choose": choose_us, "decide": decide_us}
    found = dict[str, float]()
    for name, times_us in times.items():
        found |= percentiles(times_us, name, "us", scale=1.0, digits=1)
    return {"groups": size, **found}


def _fleet(size: int, random_: random.Random) -> Fleet:
    fleet = Fleet(FleetLimits(max_groups=size))
    for index in range(size):
        group = ModelledGroup(f"g{index}", GroupRates())
        if random_.random() < 0.5:  # busy: all slots are taken, and some turns wait
            for turn in range(random_.randrange(130, 148)):
                group.take_turn(ModelledTurn(turn, turn, 0, random_.randrange(1, 80), 40, 0.0), 0.0)
        fleet.observe(group.heartbeat(), 0.0)
    return fleet
