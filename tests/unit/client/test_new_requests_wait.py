"""New requests wait for what is coming back, within bounds; what cannot come back is refused at once."""

import pytest

from shared.client.generation.client_context import ClientContext
from shared.client.generation.commands import GenerationStats, Publish
from shared.client.generation.generation_state import GenerationState
from shared.client.settings import ClientSettings
from shared.errors import DeadlineExceeded, ModelNotFound, Unavailable
from shared.messages import Accepted, Done, Failed, GenerateRequest, Tokens, Usage
from tests.kits.client import client_context

SETTINGS = ClientSettings(max_waiting=2)
NO_GROUP = Failed(
    request_id="r1",
    code="unavailable",
    message="no group of model 'm' is ready (g0 is recovering)",
    data={"reason": "no_group", "retry_after_s": 1.0},
)


def make(context: ClientContext | None = None, deadline: float = 100.0) -> GenerationState:
    request = GenerateRequest(request_id="r1", model="m", prompt="p")
    context = context or client_context(SETTINGS)
    return GenerationState(request, context, now=0.0, deadline=deadline, max_ready=64)


def refuse_until_the_end(state: GenerationState) -> float:
    """Has a router refuse each offer; returns when the request ended."""
    now = 0.0
    while not state.finished:
        state.on_frame(NO_GROUP, "", now)
        now = max(now, state.due)
        state.tick(now, connected=True)
    return now


def test_a_group_that_comes_back_gets_the_first_attempt() -> None:
    state = make()
    assert state.on_frame(NO_GROUP, "", 0.1) == ()
    assert state.tick(state.due, connected=True) == (Publish(0, repeats=1),)
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.3)
    state.on_frame(Done(request_id="r1", seq=1, usage=Usage()), "g0", 0.4)
    assert state.finished
    assert state.error is None


def test_the_wait_ends_with_the_last_refusal() -> None:
    stats = GenerationStats()
    state = make(client_context(SETTINGS, stats))
    ended = refuse_until_the_end(state)
    assert SETTINGS.wait_s - 1.0 <= ended <= SETTINGS.wait_s
    assert isinstance(state.error, Unavailable)
    assert state.error.data == {"reason": "no_group", "retry_after_s": 1.0}
    assert "(waited 1" in state.error.message
    assert (stats.waiting, stats.waited, stats.waits_failed) == (0, 1, 1)


def test_an_early_deadline_ends_the_wait_as_a_refusal() -> None:
    state = make(deadline=2.0)
    state.on_no_responders(0.0)
    state.tick(2.0, connected=True)
    assert isinstance(state.error, Unavailable)
    assert state.error.data["reason"] == "no_router"


def test_a_request_that_was_begun_ends_by_its_deadline_as_ever() -> None:
    state = make(deadline=2.0)
    state.on_no_responders(0.0)
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.3)
    state.tick(2.0, connected=True)
    assert isinstance(state.error, DeadlineExceeded)


def test_what_cannot_come_back_is_refused_at_once() -> None:
    unknown = Failed(request_id="r1", code="model_not_found", message="no such model")
    later = Failed(request_id="r1", code="unavailable", message="failed", data={"retry_after_s": 30.0})
    for refusal, kind in ((unknown, ModelNotFound), (later, Unavailable)):
        state = make()
        state.on_frame(refusal, "", 0.1)
        assert isinstance(state.error, kind)


def test_the_number_of_waiting_requests_is_bounded() -> None:
    context = client_context(SETTINGS)
    states = [make(context) for _ in range(4)]
    for state in states:
        state.on_no_responders(0.0)
    assert [state.finished for state in states] == [False, False, True, True]
    states[0].cancel()
    late = make(context)
    late.on_no_responders(0.1)
    assert not late.finished
    assert context.stats.waiting == 2


def test_without_a_wait_everything_is_as_before() -> None:
    state = make(client_context(ClientSettings(wait_s=0.0)))
    state.on_no_responders(0.0)
    assert isinstance(state.error, Unavailable)
    slow = make(client_context(ClientSettings(wait_s=0.0)))
    published = 0
    while not slow.finished:
        published += isinstance(slow.tick(slow.due, connected=True)[0], Publish)
    assert published == 4


def test_a_broker_that_is_away_is_waited_for() -> None:
    state = make()
    assert state.wait_for_broker(Unavailable("no broker", reason="broker_unavailable"), 0.0)
    for _ in range(10):
        assert state.tick(state.due, connected=False) == ()
    assert state.tick(state.due, connected=True) == (Publish(0, repeats=1),)


@pytest.mark.parametrize("alive", [True, False])
def test_losses_of_a_leader_that_lives_do_not_count(alive: bool) -> None:
    """Two groups are given up in turn; each is heard again before the next loss, or neither ever is."""
    context = client_context(SETTINGS)
    state, now = make(context, deadline=1000.0), 0.0
    for number in range(20):
        group, instance = f"g{number % 2}", f"i{number % 2}" if alive else f"i{number}"
        if state.finished:
            break
        if alive:
            context.heard.note(instance, now)
        accepted = Accepted(request_id="r1", attempt=number, seq=number, group=group, instance_id=instance)
        state.on_frame(accepted, group, now, instance)
        now += 1.0
        state.on_group_down(group, instance, "silent", now)
        now += 1.0
    if alive:
        assert not state.finished
    else:
        assert state.attempts.losses == SETTINGS.max_losses + 1
        assert state.error is not None
        assert state.error.code == "group_lost"


def test_a_loss_that_the_leader_tells_of_counts_though_it_lives() -> None:
    context = client_context(SETTINGS)
    state, now, number = make(context, deadline=1000.0), 0.0, 0
    while not state.finished:
        context.heard.note("i0", now)
        accepted = Accepted(request_id="r1", attempt=number, seq=number, group="g0", instance_id="i0")
        state.on_frame(accepted, "g0", now, "i0")
        lost = Failed(
            request_id="r1", attempt=number, seq=number + 1, code="group_lost", message="", resumable=True
        )
        state.on_frame(lost, "g0", now, "i0")
        number, now = number + 1, now + 1.0
    assert state.attempts.losses == SETTINGS.max_losses + 1


def test_a_leader_that_is_slow_to_answer_but_heard_is_not_given_up() -> None:
    context = client_context(SETTINGS)
    state = make(context)
    state.on_frame(Accepted(request_id="r1", group="g0", instance_id="i0"), "g0", 0.0, "i0")
    state.on_frame(Tokens(request_id="r1", seq=1, deltas=[]), "g0", 0.1, "i0")
    for _ in range(10):
        now = state.due
        assert state.tick(now, connected=True)
        context.heard.note("i0", now + 0.4)
        assert state.on_resend_failed("no answer", now + 0.5, late=True) == ()
    heard_at, questions = now + 0.4, 0
    while not state.attempts.losses:
        now = state.due
        assert state.tick(now, connected=True)
        state.on_resend_failed("no answer", now + 0.5, late=True)
        questions += 1
    # after five seconds without a word it is given up, however slow the machine is
    patience_s = SETTINGS.constants.patience_s
    assert heard_at + patience_s < now < heard_at + patience_s + 3
    assert questions > SETTINGS.constants.resend_attempts


def test_a_leader_that_nobody_hears_is_given_up_at_once_where_the_broker_says_so() -> None:
    state = make()
    state.on_frame(Accepted(request_id="r1", group="g0", instance_id="i0"), "g0", 0.0, "i0")
    for _ in range(SETTINGS.constants.resend_attempts):
        now = state.due
        assert state.tick(now, connected=True)
        state.on_resend_failed("nobody listens", now)
    assert (state.attempts.losses, now < 3.0) == (1, True)
