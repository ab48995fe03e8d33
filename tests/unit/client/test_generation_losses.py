"""`GenerationState` when groups are lost: the next attempt continues after the last received frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.client.generation.commands import AskResend, GenerationStats, Publish, SendCancel
from shared.client.generation.generation_state import GenerationState
from shared.client.settings import ClientSettings
from shared.codec import pack_tokens, unpack_tokens
from shared.errors import Cancelled, DeadlineExceeded, GroupLost, Overloaded, Poison, Unavailable
from shared.messages import (
    Accepted,
    AnyFrame,
    Delta,
    Done,
    Failed,
    GenerateRequest,
    ResendReply,
    ResumePoint,
    Sampling,
    SamplingDefaults,
    TokenLogprob,
    Tokens,
    Usage,
)
from tests.kits.client import client_context

SETTINGS = ClientSettings(max_losses=3)


def make(deadline: float = 100.0, choices: int = 1, stats: GenerationStats | None = None) -> GenerationState:
    request = GenerateRequest(request_id="r1", model="m", prompt="p", sampling=Sampling(n=choices))
    context = client_context(SETTINGS, stats)
    return GenerationState(request, context, now=0.0, deadline=deadline, max_ready=1024)


def accepted(attempt: int = 0, seq: int = 0, group: str = "g0", instance: str = "i0") -> Accepted:
    return Accepted(
        request_id="r1", attempt=attempt, seq=seq, group=group, instance_id=instance, fingerprint="f"
    )


def tokens(seq: int, *ids: int, attempt: int = 0, choice: int = 0) -> Tokens:
    delta = Delta(choice=choice, text=f"{ids}", token_ids=pack_tokens(list(ids)))
    return Tokens(request_id="r1", attempt=attempt, seq=seq, deltas=[delta])


def failed(code: str, attempt: int, seq: int = 0, resumable: bool = False, **data: str) -> Failed:
    return Failed(
        request_id="r1", attempt=attempt, seq=seq, code=code, message=code, resumable=resumable, data=data
    )


def running(choices: int = 1, stats: GenerationStats | None = None) -> GenerationState:
    """Returns the state of a request that the first instance of g0 accepted, after two tokens."""
    state = make(choices=choices, stats=stats)
    for frame in (accepted(), tokens(1, 7), tokens(2, 8)):
        assert state.on_frame(frame, "g0", 1.0) == ()
    return state


RESUMED = Publish(1, ResumePoint(token_ids=[pack_tokens([7, 8])], next_seq=3, fingerprint="f"))


def test_a_group_that_is_given_up_is_told_to_stop_and_the_next_attempt_goes_on() -> None:
    state = running()
    assert state.on_group_down("g0", "i0", "silent", 2.0) == (SendCancel("g0", 0, "i0"), RESUMED)
    assert state.group == ""
    assert state.on_frame(accepted(1, 3, "g1", "i1"), "g1", 2.1) == ()
    assert state.on_frame(tokens(4, 9, attempt=1), "g1", 2.2) == ()
    assert state.on_frame(Done(request_id="r1", attempt=1, seq=5, usage=Usage()), "g1", 2.3) == ()
    assert [frame.seq for frame in state.answer.ready] == [1, 2, 4]
    assert state.error is None
    assert state.finished
    (loss,) = state.attempts.interruptions
    assert loss.heard_at == 1.0
    assert (loss.group, loss.reason, loss.lost_at, loss.accepted_at, loss.resumed_at) == (
        "g0", "silent", 2.0, 2.1, 2.2,
    )  # fmt: skip


def test_news_of_another_group_or_instance_changes_nothing() -> None:
    state = running()
    assert state.on_group_down("g1", "i0", "silent", 2.0) == ()
    assert state.on_group_down("g0", "i9", "silent", 2.0) == ()
    assert state.attempts.number == 0


def test_a_request_that_no_group_has_taken_is_offered_anew_when_a_group_is_lost() -> None:
    """The lost group may have received the request. A leader that already has it does not start it twice."""
    stats = GenerationStats()
    state = make(stats=stats)
    assert state.on_group_down("g0", "i0", "silent", 0.1) == (Publish(0, None),)
    assert (stats.republished, stats.lost) == (1, 0)
    assert state.tick(0.25, connected=True) == ()  # the retry pause starts again
    for number in range(20):  # no retry of the schedule is used up
        assert state.on_group_down(f"g{number}", "", "silent", 0.25) == (Publish(0, None),)
    assert state.tick(0.46, connected=True) == (Publish(0, None),)
    refused = make()
    refused.on_frame(accepted(), "", 1.0)
    refused.on_frame(failed("group_lost", 0, 1, resumable=True), "g0", 1.1)
    refused.on_frame(failed("unavailable", 1), "", 1.2)
    assert refused.on_group_down("g1", "i1", "silent", 1.21) == ()  # it waits for its retry time


def test_a_leader_that_says_so_itself_is_not_told_to_stop() -> None:
    state = running()
    last = failed("group_lost", 0, 3, resumable=True, reason="engine_failed")
    assert state.on_frame(last, "g0", 2.0) == (RESUMED,)
    assert state.attempts.interruptions[0].reason == "engine_failed"


def test_a_pause_counts_from_the_last_tokens_whatever_the_group_said_since() -> None:
    stats, pauses = GenerationStats(), list[float]()
    stats.observe_pause = pauses.append
    state = running(stats=stats)
    assert state.on_resend(ResendReply(known=True, next_seq=3), 2.5) == ()
    state.on_frame(failed("group_lost", 0, 3, resumable=True, reason="engine_failed"), "g0", 3.0)
    state.on_frame(accepted(1, 3, "g1"), "g1", 3.1)
    state.on_frame(tokens(4, 9, attempt=1), "g1", 3.2)
    assert pauses == [pytest.approx(2.2)]
    assert state.attempts.interruptions[0].heard_at == 1.0


def test_a_group_that_hangs_before_its_first_tokens_was_silent_since_it_took_the_request() -> None:
    """Its answers to questions are no tokens."""
    state = make()
    assert state.on_frame(accepted(), "g0", 1.0) == ()
    assert state.on_resend(ResendReply(known=True, next_seq=1), 2.5) == ()
    state.on_frame(failed("group_lost", 0, 1, resumable=True, reason="engine_failed"), "g0", 3.0)
    state.on_frame(accepted(1, 1, "g1"), "g1", 4.0)
    state.on_frame(failed("group_lost", 1, 2, resumable=True, reason="engine_failed"), "g1", 6.0)
    assert [loss.silent_since for loss in state.attempts.interruptions] == [1.0, 4.0]


def test_what_was_held_back_belongs_to_the_lost_attempt() -> None:
    state = running()
    assert state.on_frame(tokens(5, 99), "g0", 1.5) == (AskResend("g0", 3, "i0"),)
    assert state.on_group_down("g0", "i0", "silent", 2.0) == (SendCancel("g0", 0, "i0"), RESUMED)
    for frame in (accepted(1, 3, "g1"), tokens(4, 9, attempt=1)):
        state.on_frame(frame, "g1", 2.0)
    assert state.next_seq == 5


def test_every_choice_has_its_own_tokens() -> None:
    state = running(choices=2)
    state.on_frame(tokens(3, 70, 71, choice=1), "g0", 1.0)
    _, publish = state.on_group_down("g0", "i0", "silent", 2.0)
    assert isinstance(publish, Publish)
    assert publish.resume is not None
    assert [unpack_tokens(packed) for packed in publish.resume.token_ids] == [[7, 8], [70, 71]]


def test_a_request_without_frames_begins_anew() -> None:
    state = make()
    state.on_frame(tokens(1, 7), "g0", 1.0, "i0")  # frame 0 has not arrived yet
    assert state.on_group_down("g0", "i0", "silent", 2.0) == (SendCancel("g0", 0, "i0"), Publish(1, None))


def test_a_group_that_comes_back_is_fenced_once() -> None:
    state = running()
    state.on_group_down("g0", "i0", "silent", 2.0)
    assert state.on_frame(tokens(3, 9), "g0", 2.5) == (SendCancel("g0", 0),)
    assert state.on_frame(tokens(4, 10), "g0", 2.5) == ()
    assert len(state.answer.ready) == 2


def test_a_second_group_that_works_on_an_attempt_is_fenced_once() -> None:
    state = running()
    assert state.on_frame(tokens(3, 9), "g1", 2.5, "i1") == (SendCancel("g1", 0, "i1"),)
    assert state.on_frame(tokens(4, 9), "g1", 2.5, "i1") == ()
    assert state.on_frame(tokens(3, 9), "g2", 2.5, "i2") == (SendCancel("g2", 0, "i2"),)
    assert state.on_frame(failed("internal", 0, 5), "g3", 2.5, "i3") == ()  # it has ended
    assert len(state.answer.ready) == 2


def test_too_many_losses_are_the_end() -> None:
    state = running()
    for attempt in range(SETTINGS.max_losses):
        assert not state.finished
        state.on_group_down(state.group, "", "silent", 2.0)
        state.on_frame(accepted(attempt + 1, state.next_seq, "g1"), "g1", 2.0)
    assert state.on_group_down("g1", "", "silent", 3.0) == (SendCancel("g1", 3, "i0"),)
    assert isinstance(state.error, GroupLost)
    assert "4 groups" in state.error.message


def test_a_stream_waits_for_a_group_until_its_deadline() -> None:
    state = running()
    state.on_group_down("g0", "i0", "disconnected", 2.0)
    pauses, now = [], 2.0
    for _ in range(12):
        refusal = failed("unavailable", state.attempts.number)
        assert state.on_frame(refusal, "", now) == ()
        before, now = now, state.due
        pauses.append(now - before)
        (publish,) = state.tick(now, connected=True)
        assert publish == Publish(state.attempts.number, RESUMED.resume)
    assert 0.012 <= pauses[0] <= 0.025
    assert 0.5 <= pauses[-1] <= 1.0
    assert state.on_no_responders(now) == ()  # no router listens either
    assert state.due > now
    state.tick(100.0, connected=True)
    assert isinstance(state.error, DeadlineExceeded)
    assert "after group g0 was lost (disconnected)" in state.error.message


def test_what_no_group_has_had_is_refused_at_once_if_nothing_is_away() -> None:
    for refusal, group in ((failed("overloaded", 0), ""), (failed("overloaded", 0), "g0")):
        state = make()
        assert state.on_frame(refusal, group, 0.1) == ()
        assert isinstance(state.error, Unavailable | Overloaded)


def test_a_group_that_leaves_refuses_for_itself_and_another_one_is_found() -> None:
    state = make()
    for attempt in range(3):
        refusal = failed("unavailable", attempt, resumable=True, reason="draining")
        assert state.on_frame(refusal, "g0", 0.1) == ()
        assert state.tick(state.due, connected=True) == (Publish(attempt + 1, None),)
    state.on_frame(accepted(3, 0, "g1"), "g1", 0.5)
    assert state.group == "g1"


def test_groups_that_all_refuse_for_themselves_are_not_asked_for_ever() -> None:
    state = make()
    now, attempt = 0.1, 0
    while not state.finished:
        state.on_frame(failed("unavailable", attempt, resumable=True), "g0", now)
        attempt, now = attempt + 1, state.due
        state.tick(now, connected=True)
    assert isinstance(state.error, Unavailable)
    assert SETTINGS.wait_s - 1.0 <= now <= SETTINGS.wait_s


def test_an_error_of_the_request_itself_ends_it_on_any_attempt() -> None:
    state = running()
    state.on_group_down("g0", "i0", "silent", 2.0)
    state.on_frame(failed("invalid_request", 1, 3), "g1", 2.1)
    assert state.finished
    assert state.error is not None
    assert state.error.code == "invalid_request"


def test_a_loss_in_the_middle_of_what_is_sent_again() -> None:
    state = running()
    assert state.tick(3.0, connected=True) == (AskResend("g0", 3, "i0"),)
    frames: list[AnyFrame] = [tokens(3, 9), failed("group_lost", 0, 4, resumable=True), tokens(5, 10)]
    commands = state.on_resend(ResendReply(known=True, next_seq=6, frames=frames), 3.0)
    assert commands == (
        Publish(1, ResumePoint(token_ids=[pack_tokens([7, 8, 9])], next_seq=4, fingerprint="f")),
    )
    assert state.attempts.number == 1


def test_who_attached_has_it() -> None:
    state = running()
    assert state.on_resend(ResendReply(known=False, attempt=1), 2.0) == ()
    assert isinstance(state.error, Cancelled)
    assert state.error.data["reason"] == "attached_elsewhere"


def test_an_adopted_stream_asks_for_all_and_survives_a_loss_once_it_has_caught_up() -> None:
    adopted = make()
    assert adopted.adopt("g0", "i0", 0, needed_seq=2) == (AskResend("g0", 0, "i0"),)
    early = make()
    early.adopt("g0", "i0", 0, needed_seq=2)
    assert early.on_group_down("g0", "i0", "silent", 1.0) == (SendCancel("g0", 0, "i0"),)
    assert isinstance(early.error, GroupLost)
    adopted.on_resend(
        ResendReply(known=True, next_seq=3, frames=[accepted(), tokens(1, 7), tokens(2, 8)]), 1.0
    )
    assert adopted.on_group_down("g0", "i0", "silent", 1.0) == (SendCancel("g0", 0, "i0"), RESUMED)


@given(st.data())
def test_any_number_of_losses_anywhere_gives_the_same_tokens(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 12))
    state = make()
    counted = 0  # tokens that the current group counts as sent: those before its resume point and its own
    losses = 0
    state.on_frame(accepted(), "g0", 0.0)
    while not state.finished:
        number, frame = state.attempts.number, None
        if losses < SETTINGS.max_losses and data.draw(st.booleans()):
            losses += 1
            publish = state.on_group_down(state.group, "", "silent", 0.0)[-1]
            assert isinstance(publish, Publish)
            counted = len(unpack_tokens(publish.resume.token_ids[0])) if publish.resume else 0
            seq = publish.resume.next_seq if publish.resume else 0
            frame = Accepted(request_id="r1", attempt=publish.attempt, seq=seq, group=f"g{losses}")
            state.on_frame(frame, frame.group, 0.0)
            continue
        if counted == total:
            last: AnyFrame = Done(request_id="r1", attempt=number, seq=state.next_seq, usage=Usage())
        else:
            last = tokens(state.next_seq, counted, attempt=number)
            counted += 1
        state.on_frame(last, state.group, 0.0)
    got = [
        one
        for frame in state.answer.ready
        for delta in frame.deltas
        for one in unpack_tokens(delta.token_ids)
    ]
    assert got == list(range(total))


def test_a_suspect_says_so_at_the_next_group_and_poison_is_the_end() -> None:
    state = running()
    lost = failed("group_lost", 0, 3, resumable=True, reason="engine_failed")
    lost.data["suspect"] = True
    (again,) = state.on_frame(lost, "g0", 2.0)
    assert isinstance(again, Publish)
    assert (again.attempt, again.crashes) == (1, 1)
    state.on_frame(accepted(1, 3, "g1"), "g1", 2.0)
    assert state.on_group_down("g1", "i0", "silent", 3.0)[1].crashes == 1  # type: ignore[union-attr]
    state.on_frame(accepted(2, 3, "g2"), "g2", 3.0)
    assert state.on_frame(failed("poison", 2, 4, reason="engine_failed"), "g2", 4.0) == ()
    state.on_frame(tokens(3, 9, attempt=2), "g2", 4.0)
    assert state.finished
    assert isinstance(state.error, Poison)


def test_a_request_beside_a_suspect_is_none() -> None:
    state = running()
    lost = failed("group_lost", 0, 3, resumable=True, reason="engine_failed")
    (again,) = state.on_frame(lost, "g0", 2.0)
    assert isinstance(again, Publish)
    assert again.crashes == 0


def test_the_next_attempt_says_what_of_the_prompt_has_come() -> None:
    request = GenerateRequest(request_id="r1", model="m", prompt="p", sampling=Sampling(prompt_logprobs=0))
    state = GenerationState(request, client_context(SETTINGS), now=0.0, deadline=100.0, max_ready=1024)
    scores = [TokenLogprob(token_id=i, token="x", logprob=-1.0) for i in range(3)]
    state.on_frame(accepted(), "g0", 1.0)
    for seq, delta in enumerate((Delta(prompt_text="Hello"), Delta(prompt_logprobs=scores)), 1):
        state.on_frame(Tokens(request_id="r1", seq=seq, deltas=[delta]), "g0", 1.0)
    _, publish = state.on_group_down("g0", "i0", "silent", 2.0)
    assert isinstance(publish, Publish)
    assert publish.resume is not None
    assert (publish.resume.prompt_text, publish.resume.prompt_logprobs, publish.resume.next_seq) == (5, 3, 3)
    state.on_frame(accepted(1, 3, "g1"), "g1", 3.0)
    more = Tokens(request_id="r1", attempt=1, seq=4, deltas=[Delta(prompt_logprobs=scores[:2])])
    state.on_frame(more, "g1", 3.0)
    _, publish = state.on_group_down("g1", "i0", "silent", 4.0)
    assert isinstance(publish, Publish)
    assert publish.resume is not None
    assert publish.resume.prompt_logprobs == 5


def test_a_later_attempt_has_the_defaults_of_the_first_group() -> None:
    """Groups of a model may have other defaults; the answer goes on as it began."""
    first = Accepted(
        request_id="r1", group="g0", instance_id="i0", sampling=SamplingDefaults(temperature=0.2, top_k=7)
    )
    second = Accepted(
        request_id="r1", attempt=1, seq=2, group="g1", instance_id="i1", sampling=SamplingDefaults(top_p=0.5)
    )
    state = make()
    for frame in (first, tokens(1, 7)):
        assert state.on_frame(frame, "g0", 1.0) == ()
    state.on_group_down("g0", "i0", "silent", 2.0)
    assert (state.attempts.sampling.temperature, state.attempts.sampling.top_k) == (0.2, 7)
    state.on_frame(second, "g1", 2.1)
    assert state.attempts.sampling == Sampling(temperature=0.2, top_k=7, top_p=0.5)
