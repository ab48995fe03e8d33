"""`GenerationState` under any loss, order and duplication: each frame once, in order, and exactly one end."""

from hypothesis import given
from hypothesis import strategies as st

from shared.client.generation.commands import AskResend, Command, Publish, SendCancel
from shared.client.generation.generation_state import GenerationState
from shared.errors import Cancelled, DeadlineExceeded, GroupLost
from shared.messages import (
    Accepted,
    AnyFrame,
    Delta,
    Done,
    Failed,
    GenerateRequest,
    ResendReply,
    Tokens,
    Usage,
)
from tests.kits.client import client_context, client_settings

SETTINGS = client_settings(max_buffered_frames=64)


def make(deadline: float = 100.0, attempt: int = 0) -> GenerationState:
    request = GenerateRequest(request_id="r1", model="m", prompt="p", attempt=attempt)
    return GenerationState(request, client_context(SETTINGS), now=0.0, deadline=deadline, max_ready=64)


def frames_of(num_tokens: int, ends_well: bool = True) -> list[AnyFrame]:
    frames: list[AnyFrame] = [Accepted(request_id="r1", group="g0")]
    frames += [Tokens(request_id="r1", seq=n, deltas=[Delta(text=f"{n},")]) for n in range(1, num_tokens + 1)]
    last = num_tokens + 1
    if ends_well:
        frames.append(Done(request_id="r1", seq=last, usage=Usage(completion_tokens=num_tokens)))
    else:
        frames.append(Failed(request_id="r1", seq=last, code="group_lost", message="a rank died"))
    return frames


class Leader:
    """Executes commands as a leader that has already sent all frames."""

    def __init__(self, frames: list[AnyFrame], resend_limit: int, lost_answers: list[bool]) -> None:
        self.frames = frames
        self.resend_limit = resend_limit
        self.lost_answers = lost_answers
        self.cancelled = False

    def carry_out(self, state: GenerationState, commands: tuple[Command, ...], now: float) -> None:
        waiting = list(commands)
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, SendCancel):
                self.cancelled = True
            elif isinstance(command, Publish):
                for frame in self.frames:
                    waiting += state.on_frame(frame, "g0", now)
            elif self.lost_answers and self.lost_answers.pop():
                waiting += state.on_resend_failed("lost", now)
            else:
                some = self.frames[command.from_seq :][: self.resend_limit]
                reply = ResendReply(known=True, next_seq=len(self.frames), frames=some)
                waiting += state.on_resend(reply, now)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[AnyFrame], list[int], list[bool]]:
    frames = frames_of(draw(st.integers(0, 8)), draw(st.booleans()))
    numbers = st.integers(0, len(frames) - 1)
    order = draw(st.lists(numbers, max_size=24))  # frames may be lost, doubled or reordered
    groups_named = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    return frames, order, groups_named


@given(arrivals(), st.integers(1, 4), st.lists(st.just(False) | st.booleans(), max_size=1))
def test_any_loss_order_and_duplication_gives_the_same_stream(
    arrival: tuple[list[AnyFrame], list[int], list[bool]], resend_limit: int, lost_answers: list[bool]
) -> None:
    frames, order, groups_named = arrival
    state, leader = make(), Leader(frames, resend_limit, lost_answers)
    got: list[AnyFrame] = []
    now = 0.0
    for number, named in zip(order, groups_named, strict=True):
        if state.finished:
            break
        leader.carry_out(state, state.on_frame(frames[number], "g0" if named else "", now), now)
    for _ in range(200):
        if state.finished:
            break
        assert state.due >= now or state.num_held > 0
        now = max(now + 0.01, state.due)
        leader.carry_out(state, state.tick(now, connected=True), now)
    got += state.answer.ready
    assert state.finished
    assert got == [frame for frame in frames if isinstance(frame, Tokens)]
    assert state.answer.accepted == frames[0]
    assert isinstance(state.error, GroupLost) == isinstance(frames[-1], Failed)
    assert not leader.cancelled
    for frame in frames:  # frames after the end change nothing
        assert state.on_frame(frame, "g0", now) == ()
    assert state.tick(now + 1000, connected=True) == ()
    assert list(state.answer.ready) == got


@given(st.lists(st.integers(0, 300), max_size=100))
def test_frames_that_are_held_back_are_bounded(numbers: list[int]) -> None:
    state = make()
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    for number in numbers:
        state.on_frame(Tokens(request_id="r1", seq=number + 2, deltas=[]), "g0", 0.0)
    assert state.num_held <= SETTINGS.constants.max_buffered_frames
    assert not state.answer.ready


def test_a_gap_asks_once_until_the_answer_comes() -> None:
    state = make()
    frames = frames_of(5)
    assert state.on_frame(frames[0], "g0", 0.0) == ()
    assert state.on_frame(frames[2], "g0", 0.0) == (AskResend("g0", 1),)
    assert state.on_frame(frames[3], "g0", 0.0) == ()
    assert state.tick(50.0, connected=True) == ()
    assert state.on_resend(ResendReply(known=True, next_seq=4, frames=frames[1:4]), 50.0) == ()
    assert state.next_seq == 4
    assert state.due == 50.0 + SETTINGS.constants.probe_interval_s


def test_the_pauses_between_publishes_grow_and_end() -> None:
    state = make()
    times, to_all = [], []
    while not state.finished:
        now = state.due
        for command in state.tick(now, connected=True):
            if isinstance(command, Publish):
                times.append(round(now, 3))
                to_all.append(command.to_all)
    assert times[:4] == [0.2, 0.6, 1.4, 3.0]
    assert to_all[:5] == [False, True, True, True, False]  # one router may stand still
    assert 5.0 <= times[4] <= 5.1
    assert times[-1] < SETTINGS.wait_s == now
    assert state.error is not None
    assert state.error.data["reason"] == "no_answer"


def test_without_a_broker_publishes_do_not_count() -> None:
    state = make(deadline=1000.0)
    for _ in range(50):
        assert state.tick(state.due, connected=False) == ()
    assert state.tick(state.due, connected=True) == (Publish(),)


def test_without_a_broker_a_silent_stream_is_waited_for_until_the_deadline() -> None:
    state = make(deadline=60.0)
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    before = 0.0
    for _ in range(20):
        now = state.due
        assert now > before
        assert state.tick(now, connected=False) == ()
        before = now
    assert state.tick(state.due, connected=True) == (AskResend("g0", 1),)
    state.on_resend_excused(20.0)
    assert 20.0 < state.due <= 20.0 + SETTINGS.constants.resend_timeout_s
    assert state.tick(60.0, connected=False) == (SendCancel("g0", 0),)
    assert isinstance(state.error, DeadlineExceeded)


def test_a_router_that_refuses_a_second_copy_does_not_end_what_runs() -> None:
    state = make()
    frames = frames_of(2)
    state.on_frame(frames[1], "g0", 0.0)  # frame 0 was lost
    refused = Failed(request_id="r1", code="overloaded", message="full")
    assert state.on_frame(refused, "", 0.0) == ()
    assert not state.finished


def test_a_second_router_without_routers_left_does_not_end_a_request_that_was_published_twice() -> None:
    state = make()
    state.tick(0.2, connected=True)
    state.on_no_responders(0.0)
    assert not state.finished
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.3)
    state.on_no_responders(0.0)
    assert not state.finished


def test_cancel_is_final_and_names_the_group() -> None:
    state = make()
    state.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    assert state.cancel() == (SendCancel("g0", 0),)
    assert state.cancel() == ()
    assert isinstance(state.error, Cancelled)
    assert state.on_frame(Accepted(request_id="r1", group="g1"), "g1", 0.0) == (SendCancel("g1", 0),)
    assert state.on_resend(ResendReply(known=False), 0.0) == ()
    assert state.on_resend_failed("late", 0.0) == ()
    assert state.on_no_responders(0.0) == ()
    assert isinstance(state.error, Cancelled)
