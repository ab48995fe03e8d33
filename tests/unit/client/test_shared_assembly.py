"""`Assembly` under any loss, order and duplication: each frame once, in order, and exactly one end."""

from hypothesis import given
from hypothesis import strategies as st

from shared.client.generation.commands import AskResend, AssemblyStats, Command, Publish, SendCancel
from shared.client.generation.generation_state import Assembly
from shared.client.settings import ClientSettings
from shared.errors import Cancelled, DeadlineExceeded, GroupLost
from shared.messages import Accepted, AnyFrame, Delta, Done, Failed, ResendReply, Tokens, Usage

SETTINGS = ClientSettings(max_buffered_frames=64)


def make(deadline: float = 100.0, attempt: int = 0) -> Assembly:
    return Assembly("r1", attempt, SETTINGS, now=0.0, deadline=deadline, max_ready=64, stats=AssemblyStats())


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
    """Carries out commands as a leader would, which has sent everything already."""

    def __init__(self, frames: list[AnyFrame], resend_limit: int, lost_answers: list[bool]) -> None:
        self.frames = frames
        self.resend_limit = resend_limit
        self.lost_answers = lost_answers
        self.cancelled = False

    def carry_out(self, assembly: Assembly, commands: tuple[Command, ...], now: float) -> None:
        waiting = list(commands)
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, SendCancel):
                self.cancelled = True
            elif isinstance(command, Publish):
                for frame in self.frames:
                    waiting += assembly.on_frame(frame, "g0", now)
            elif self.lost_answers and self.lost_answers.pop():
                waiting += assembly.on_resend_failed("lost", now)
            else:
                some = self.frames[command.from_seq :][: self.resend_limit]
                reply = ResendReply(known=True, next_seq=len(self.frames), frames=some)
                waiting += assembly.on_resend(reply, now)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[AnyFrame], list[int], list[bool]]:
    frames = frames_of(draw(st.integers(0, 8)), draw(st.booleans()))
    numbers = st.integers(0, len(frames) - 1)
    order = draw(st.lists(numbers, max_size=24))  # anything may be lost, doubled, or overtaken
    groups_told = draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    return frames, order, groups_told


@given(arrivals(), st.integers(1, 4), st.lists(st.just(False) | st.booleans(), max_size=1))
def test_any_loss_order_and_duplication_gives_the_same_stream(
    arrival: tuple[list[AnyFrame], list[int], list[bool]], resend_limit: int, lost_answers: list[bool]
) -> None:
    frames, order, groups_told = arrival
    assembly, leader = make(), Leader(frames, resend_limit, lost_answers)
    got: list[AnyFrame] = []
    now = 0.0
    for number, told in zip(order, groups_told, strict=True):
        if assembly.finished:
            break
        leader.carry_out(assembly, assembly.on_frame(frames[number], "g0" if told else "", now), now)
    for _ in range(200):
        if assembly.finished:
            break
        assert assembly.due >= now or assembly.has_gap
        now = max(now + 0.01, assembly.due)
        leader.carry_out(assembly, assembly.tick(now, connected=True), now)
    got += assembly.ready
    assert assembly.finished
    assert got == [frame for frame in frames if isinstance(frame, Tokens)]
    assert assembly.accepted == frames[0]
    assert isinstance(assembly.error, GroupLost) == isinstance(frames[-1], Failed)
    assert not leader.cancelled
    for frame in frames:  # the end is the end
        assert assembly.on_frame(frame, "g0", now) == ()
    assert assembly.tick(now + 1000, connected=True) == ()
    assert list(assembly.ready) == got


@given(st.lists(st.integers(0, 300), max_size=100))
def test_frames_that_are_held_back_are_bounded(numbers: list[int]) -> None:
    assembly = make()
    assembly.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    for number in numbers:
        assembly.on_frame(Tokens(request_id="r1", seq=number + 2, deltas=[]), "g0", 0.0)
    assert assembly._order.num_held <= SETTINGS.max_buffered_frames
    assert not assembly.ready


def test_a_gap_asks_once_until_the_answer_comes() -> None:
    assembly = make()
    frames = frames_of(5)
    assert assembly.on_frame(frames[0], "g0", 0.0) == ()
    assert assembly.on_frame(frames[2], "g0", 0.0) == (AskResend("g0", 1),)
    assert assembly.on_frame(frames[3], "g0", 0.0) == ()
    assert assembly.tick(50.0, connected=True) == ()
    assert assembly.on_resend(ResendReply(known=True, next_seq=4, frames=frames[1:4]), 50.0) == ()
    assert assembly.next_seq == 4
    assert assembly.due == 50.0 + SETTINGS.probe_interval_s


def test_the_pauses_between_publishes_grow_and_end() -> None:
    assembly = make()
    times = []
    while not assembly.finished:
        now = assembly.due
        if assembly.tick(now, connected=True) == (Publish(),):
            times.append(round(now, 3))
    assert times == [0.2, 0.6, 1.4, 3.0]
    assert assembly.error is not None
    assert assembly.error.data["reason"] == "no_answer"


def test_without_a_broker_publishes_do_not_count() -> None:
    assembly = make(deadline=1000.0)
    for _ in range(50):
        assert assembly.tick(assembly.due, connected=False) == ()
    assert assembly.tick(assembly.due, connected=True) == (Publish(),)


def test_without_a_broker_a_silent_stream_is_waited_for_until_the_deadline() -> None:
    assembly = make(deadline=60.0)
    assembly.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    before = 0.0
    for _ in range(20):
        now = assembly.due
        assert now > before
        assert assembly.tick(now, connected=False) == ()
        before = now
    assert assembly.tick(assembly.due, connected=True) == (AskResend("g0", 1),)
    assembly.on_resend_excused(20.0)
    assert 20.0 < assembly.due <= 20.0 + SETTINGS.resend_timeout_s
    assert assembly.tick(60.0, connected=False) == (SendCancel("g0", 0),)
    assert isinstance(assembly.error, DeadlineExceeded)


def test_a_router_that_refuses_a_second_copy_does_not_end_what_runs() -> None:
    assembly = make()
    frames = frames_of(2)
    assembly.on_frame(frames[1], "g0", 0.0)  # frame 0 was lost
    refused = Failed(request_id="r1", code="overloaded", message="full")
    assert assembly.on_frame(refused, "", 0.0) == ()
    assert not assembly.finished


def test_a_second_router_without_routers_left_does_not_end_a_request_that_was_published_twice() -> None:
    assembly = make()
    assembly.tick(0.2, connected=True)
    assembly.on_no_responders(0.0)
    assert not assembly.finished
    assembly.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.3)
    assembly.on_no_responders(0.0)
    assert not assembly.finished


def test_cancel_is_final_and_names_the_group() -> None:
    assembly = make()
    assembly.on_frame(Accepted(request_id="r1", group="g0"), "g0", 0.0)
    assert assembly.cancel() == (SendCancel("g0", 0),)
    assert assembly.cancel() == ()
    assert isinstance(assembly.error, Cancelled)
    assert assembly.on_frame(Accepted(request_id="r1", group="g1"), "g1", 0.0) == (SendCancel("g1", 0),)
    assert assembly.on_resend(ResendReply(known=False), 0.0) == ()
    assert assembly.on_resend_failed("late", 0.0) == ()
    assert assembly.on_no_responders(0.0) == ()
    assert isinstance(assembly.error, Cancelled)
