"""Requests for a model that a host is to load wait until their own deadline, bounded, and start soon."""

import heapq
from dataclasses import dataclass, field

import pytest

from shared.client.generation.client_context import ClientContext, WaitingRequests
from shared.client.generation.commands import GenerationStats, Publish
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.retry_schedule import MAX_PAUSE_S, MIN_PAUSE_S
from shared.client.settings import ClientSettings
from shared.errors import Unavailable
from shared.messages import Accepted, Done, Failed, GenerateRequest, Usage
from tests.kits.client import client_context

SETTINGS = ClientSettings(wait_s=5.0)
DEADLINE_S = 60.0


def waking(request_id: str = "r1", attempt: int = 0, **data: float) -> Failed:
    return Failed(
        request_id=request_id,
        attempt=attempt,
        code="unavailable",
        message="model 'm' is loading",
        data={"reason": "waking", **data},
    )


def make(
    context: ClientContext | None = None,
    *,
    request_id: str = "r1",
    now: float = 0.0,
    deadline: float = DEADLINE_S,
    model: str = "m",
    tenant: str = "default",
) -> GenerationState:
    request = GenerateRequest(request_id=request_id, model=model, prompt="p", tenant=tenant)
    context = context or client_context(SETTINGS)
    return GenerationState(request, context, now=now, deadline=deadline, max_ready=64)


@dataclass
class LoadingModel:
    """A router in virtual time: it refuses each offer until the model is ready; then a group takes it."""

    ready_at: float
    answers_from: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    offers: list[float] = field(default_factory=list)

    def answer(self, state: GenerationState, now: float) -> None:
        self.offers.append(now)
        name, attempt = state.request_id, state.attempts.number
        if now < self.answers_from:
            return
        if now < self.ready_at:
            state.on_frame(waking(name, attempt, retry_after_s=2.0), "", now)
            return
        self.started[name] = now
        state.on_frame(Accepted(request_id=name, attempt=attempt, group="g0"), "g0", now)
        state.on_frame(Done(request_id=name, attempt=attempt, seq=1, usage=Usage()), "g0", now)

    def run(self, states: list[GenerationState]) -> None:
        """Runs all requests to their ends, each from the time when it was made."""
        for state in states:
            self.answer(state, state.offered_at)
        queue = [(state.due, number) for number, state in enumerate(states) if not state.finished]
        heapq.heapify(queue)
        while queue:
            now, number = heapq.heappop(queue)
            state = states[number]
            for command in state.tick(now, connected=True):
                if isinstance(command, Publish):
                    self.answer(state, now)
            if not state.finished:
                heapq.heappush(queue, (max(state.due, now + 0.001), number))


def test_a_request_waits_for_a_model_that_loads_longer_than_routers_are_waited_for() -> None:
    stats = GenerationStats()
    model, state = LoadingModel(ready_at=45.0), make(client_context(SETTINGS, stats))
    model.run([state])
    assert state.error is None
    assert 45.0 <= model.started["r1"] <= 45.0 + MIN_PAUSE_S
    assert (stats.waited, stats.waiting, stats.waits_failed) == (1, 0, 0)


def test_also_where_clients_do_not_wait_for_routers() -> None:
    model, state = LoadingModel(ready_at=3.0), make(client_context(ClientSettings(wait_s=0.0)))
    model.run([state])
    assert state.error is None


def test_the_deadline_ends_the_wait_as_a_refusal_that_says_when_to_come_back() -> None:
    model, state = LoadingModel(ready_at=1000.0), make(deadline=20.0)
    model.run([state])
    assert isinstance(state.error, Unavailable)
    assert state.error.data == {"reason": "waking", "retry_after_s": 2.0}
    assert 17.9 <= model.offers[-1] <= 20.0  # the last estimate of 2 s is beyond the deadline


def test_an_estimate_beyond_the_deadline_is_refused_at_once() -> None:
    state = make(deadline=20.0)
    state.on_frame(waking(retry_after_s=21.0), "", 0.1)
    assert isinstance(state.error, Unavailable)
    assert state.error.retry_after_s == 21.0
    patient = make(deadline=30.0)
    patient.on_frame(waking(retry_after_s=21.0), "", 0.1)
    assert not patient.finished


@pytest.mark.parametrize("reason", ["model_failed", "model_unloaded", "model_too_large"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_model_that_does_not_become_ready_ends_the_wait_at_once(reason: str, begun: bool) -> None:
    state = make()
    if begun:
        state.on_frame(Accepted(request_id="r1", group="g0", instance_id="i0"), "g0", 0.1, "i0")
        state.on_group_down("g0", "i0", "disconnected", 0.2)
    number = state.attempts.number
    state.on_frame(waking(attempt=number), "", 0.3)
    assert not state.finished
    final = Failed(request_id="r1", attempt=number, code="unavailable", message="x", data={"reason": reason})
    state.on_frame(final, "", 0.4)
    assert isinstance(state.error, Unavailable)
    assert state.error.data["reason"] == reason


def test_routers_that_are_silent_for_a_while_do_not_end_the_wait() -> None:
    """A lost publish is repeated, and more often than a request without a known model is published in all."""
    model, state = LoadingModel(ready_at=20.0), make()
    state.on_frame(waking(), "", 0.0)
    model.answers_from = SETTINGS.wait_s  # from 0 on, until then nothing answers
    model.run([state])
    assert state.error is None
    assert len(model.offers) > SETTINGS.constants.max_publishes


def test_routers_that_stay_away_are_waited_for_as_ever() -> None:
    state, now = make(), 30.0
    state.on_frame(waking(), "", now)
    while not state.finished:
        now = state.due
        if state.tick(now, connected=True):
            state.on_no_responders(now)
    assert isinstance(state.error, Unavailable)
    assert state.error.data["reason"] == "no_router"
    assert 30.0 + SETTINGS.wait_s <= now + 1.0 <= 32.0 + SETTINGS.wait_s


def test_a_stream_that_lost_its_group_does_not_use_up_its_attempts() -> None:
    state = make(deadline=500.0)
    state.on_frame(Accepted(request_id="r1", group="g0", instance_id="i0"), "g0", 0.0, "i0")
    state.on_group_down("g0", "i0", "disconnected", 0.1)
    model = LoadingModel(ready_at=400.0)
    model.run([state])
    assert state.error is None
    assert state.attempts.number < 5


def test_few_requests_start_as_soon_as_the_model_is_ready() -> None:
    context = client_context(SETTINGS)
    model = LoadingModel(ready_at=10.0)
    model.run([make(context, request_id=f"r{number}") for number in range(8)])
    assert len(model.started) == 8
    assert max(model.started.values()) <= 10.0 + MIN_PAUSE_S + 0.01


def test_many_requests_ask_within_the_budget_and_start_in_seconds() -> None:
    context = client_context(ClientSettings(wait_s=5.0, max_waiting=512))
    states = [
        make(context, request_id=f"r{number}", model=f"m{number % 2}", tenant=f"t{number % 4}")
        for number in range(400)
    ]
    model = LoadingModel(ready_at=10.0)
    model.run(states)
    assert all(state.error is None for state in states)
    asked = sum(5.0 <= at < 10.0 for at in model.offers)
    assert asked <= 5 * SETTINGS.constants.retries_per_s * 1.05
    assert min(model.started.values()) <= 10.05
    assert max(model.started.values()) <= 10.0 + MAX_PAUSE_S + 1.5
    silences = [later - at for at, later in zip(model.offers, model.offers[1:], strict=False)]
    assert max(silences) < 1.0  # so that the routers' demand for a model never lapses


def test_one_tenant_leaves_room_for_others() -> None:
    context = client_context(ClientSettings(max_waiting=64))

    def waits(tenant: str) -> bool:
        number = context.stats.waited
        state = make(context, request_id=f"{tenant}-{number}", model=f"m{number}", tenant=tenant)
        state.on_frame(waking(state.request_id), "", 0.0)
        if state.finished:
            assert isinstance(state.error, Unavailable)
            assert state.error.retry_after_s == 1.0
            assert state.error.data["reason"] == "waking"
        return not state.finished

    assert sum(waits("greedy") for _ in range(80)) == 56
    assert waits("modest")
    assert context.stats.waiting == 57


def test_one_model_leaves_room_for_others() -> None:
    waiting = WaitingRequests(64, 2**20)

    def wait_for(model: str, number: int, tenant: str) -> int:
        request = GenerateRequest(request_id=f"r{number}", model=model, prompt="p", tenant=tenant)
        return waiting.try_add(request)

    taken = [size for number in range(80) if (size := wait_for("popular", number, f"t{number}"))]
    assert len(taken) == 56
    assert wait_for("other", 100, "t100")
    assert waiting.num_requests == 57


def test_two_tenants_that_want_everything_have_less_than_half_each() -> None:
    waiting, held = WaitingRequests(512, 2**30), {"a": 0, "b": 0}
    for number in range(2000):
        tenant = "ab"[number % 2]
        request = GenerateRequest(request_id=f"r{number}", model=f"m{number}", prompt="p", tenant=tenant)
        held[tenant] += waiting.try_add(request) > 0
    assert held["a"] == held["b"]
    assert 200 < held["a"] < 256


def test_bytes_are_bounded_too() -> None:
    waiting, text = WaitingRequests(512, 100_000), "x" * 10_000
    requests = [
        GenerateRequest(request_id=f"r{number}", model="m", prompt=text, tenant=f"t{number}")
        for number in range(20)
    ]
    sizes = [waiting.try_add(request) for request in requests]
    assert sum(map(bool, sizes)) == 9
    small = GenerateRequest(request_id="s", model="n", prompt="p", tenant="s")
    assert waiting.try_add(small)
    waiting.remove(requests[0], sizes[0])
    assert waiting.try_add(requests[9])
