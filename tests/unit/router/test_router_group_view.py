"""A group's view, and the choice among views, are those of the plain formulas."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.decision import GroupView
from services.router.domain.groups.group import (
    CAPACITY_MARGIN,
    LONGEST_SERVICE_S,
    Group,
    LoadLimits,
    is_short_of_blocks,
)
from services.router.domain.policies.base import least_loaded
from services.router.domain.rendezvous import preferred, score
from shared.flow.circuit import Circuit, CircuitLimits
from shared.messages import Heartbeat, KVRates, Load, ModelCard

NAMES = ("a", "b", "c")
COUNT, RATE = st.integers(0, 12), st.sampled_from([0.0, 0.5, 40.0, 9000.0])
LOADS = st.builds(
    Load,
    running=COUNT,
    waiting=COUNT,
    max_running=COUNT,
    max_waiting=COUNT,
    free_blocks=st.integers(0, 20),
    total_blocks=st.just(16),
    queued_tokens=st.integers(0, 500),
    tokens_per_s=RATE,
)
VIEWS = st.builds(
    GroupView,
    name=st.sampled_from(NAMES),
    weight=st.sampled_from([0.5, 1.0]),
    running=st.integers(0, 2),
    waiting=st.integers(0, 1),
    capacity=st.integers(1, 3),
    wait_s=st.sampled_from([0.0, 0.1, 0.2]),
)


LIMITS = LoadLimits(max_inflight=40)
PROMPT_TOKENS = 30


def plain_view(group: Group, sent: int, now: float, lead_tokens: float) -> GroupView:
    """The formulas as the module's text has them; `sent`: requests since the heartbeat."""
    load, kv, limits = group.heartbeat.load, group.heartbeat.kv, LIMITS
    elapsed = now - group.heard_at
    finished = group.requests_per_s * elapsed
    held = max(0, ceil(load.running + load.waiting + sent - finished))
    waiting = min(held, max(0, held - load.max_running, ceil(load.waiting - finished)))
    max_running = max(1, load.max_running)
    capacity = load.max_running + load.max_waiting or limits.max_inflight
    at_its_limit = load.running >= load.max_running > 0 or (load.waiting > 0 and is_short_of_blocks(load))
    if not at_its_limit:
        capacity *= CAPACITY_MARGIN
    queued_tokens = max(0.0, load.queued_tokens + PROMPT_TOKENS * sent - load.tokens_per_s * elapsed)
    rate = group.requests_per_s
    if not rate or not at_its_limit:
        rate = max(rate, max_running / limits.assumed_service_s)
    rate = max(rate, max_running / LONGEST_SERVICE_S)
    measured = load.tokens_per_s or kv.recompute_tokens_per_s
    speed = max(load.tokens_per_s, kv.recompute_tokens_per_s or limits.assumed_tokens_per_s)
    prefill_s = queued_tokens / speed if measured else 0.0
    return GroupView(
        name=group.name,
        weight=group.weight,
        running=held - waiting,
        waiting=waiting,
        max_running=max_running,
        capacity=min(capacity, limits.max_inflight),
        wait_s=max(waiting / rate, prefill_s),
        tokens_per_s=load.tokens_per_s,
        recompute_tokens_per_s=kv.recompute_tokens_per_s,
        fetch_tokens_per_s=kv.fetch_tokens_per_s,
        fetch_s=kv.fetch_s,
        store=kv.store,
        lead_s=lead_tokens / kv.recompute_tokens_per_s if kv.recompute_tokens_per_s else 0.0,
    )


@given(
    LOADS,
    st.tuples(RATE, RATE),
    st.integers(0, 20),
    st.sampled_from([-1e-6, 0.0, 0.01, 0.3]),
    st.floats(-50, 50),
)
def test_the_view_of_a_group_is_that_of_the_formulas(
    load: Load, rates: tuple[float, float], sent: int, elapsed: float, lead: float
) -> None:
    ends_per_s, recompute = rates
    heartbeat = Heartbeat(
        group="a",
        instance_id="a-1",
        seq=1,
        interval_ms=25,
        state="ready",
        model=ModelCard(name="m", context_length=64),
        load=load,
        kv=KVRates(recompute_tokens_per_s=recompute),
    )
    group = Group(heartbeat, 5.0, Circuit(CircuitLimits()), LIMITS)
    group.requests_per_s = ends_per_s
    for _ in range(sent):
        group.count_sent(PROMPT_TOKENS, 5.0)
    assert group.view(5.0 + elapsed, lead) == plain_view(group, sent, 5.0 + elapsed, lead)


def plain_least_loaded(key: str, groups: list[GroupView]) -> GroupView:
    loads = [(group.wait_s, group) for group in groups if not group.full]
    least = min(load for load, _ in loads)
    tied = [group for load, group in loads if load == least]
    use = min(group.utilization for group in tied)
    return preferred(key, [group for group in tied if group.utilization == use])


@given(st.lists(VIEWS, max_size=3, unique_by=lambda view: view.name), st.sampled_from(["k", "s-1", ""]))
def test_the_least_loaded_group_is_that_of_the_plain_search(views: list[GroupView], key: str) -> None:
    if all(view.full for view in views):
        with pytest.raises(ValueError, match="empty"):
            least_loaded(key, views)
        return
    assert least_loaded(key, views) is plain_least_loaded(key, views)


@given(st.lists(VIEWS, min_size=1, max_size=3, unique_by=lambda view: view.name), st.text(max_size=6))
def test_the_preferred_group_has_the_highest_score(views: list[GroupView], key: str) -> None:
    best = max(views, key=lambda view: (score(key, view.name, view.weight), view.name))
    assert preferred(key, views) is best
