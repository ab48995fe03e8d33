"""Hostile frames can do nothing to a client but end its requests, each once.

Any bus user who knows a client's inbox can send it frames of any request, attempt, number and group, in any
order. The tests also send group losses and bad answers to the client's own requests. A request must end once,
at its deadline at the latest, and its buffers must stay bounded.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared import messages as m
from shared import subjects
from shared.bus import Message
from shared.client import InferenceClient
from shared.client.generation.commands import AskResend, Command, Publish, SendCancel
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.generation_stream import GenerationStream
from shared.codec import decode, encode
from shared.errors import InvalidRequest, RyzError
from shared.messages import Wire
from shared.messages.base import MAX_ATTEMPT
from tests.kits.chaos.fuzz.fuzz_shapes import GOLDEN, messages
from tests.kits.chaos.rounds import each_of
from tests.kits.chaos.scale import full, scaled
from tests.kits.client import client_context, client_settings
from tests.kits.memory_bus import MemoryBus

pytestmark = pytest.mark.timeout(scaled(600, 14_400))
SETTINGS = client_settings(max_buffered_frames=32)
QUICK = client_settings(
    accept_timeout_s=0.01, probe_interval_s=0.02, resend_timeout_s=0.02, max_buffered_frames=32, tick_s=0.005
)
TIMEOUT_S = 0.05  # of each of the client's two requests
PATIENCE_S = 10.0
MAX_READY = 16
DEADLINE_S = 50.0
IDS = ("r1", "r2", "other")
KINDS = tuple(
    kind
    for kind in vars(m).values()
    if isinstance(kind, type) and issubclass(kind, Wire) and kind is not Wire
)
thorough = settings(
    max_examples=scaled(60, 5_000),
    deadline=None,
    database=None,
    derandomize=not full,
    suppress_health_check=list(HealthCheck),
)

request_ids = st.sampled_from(IDS)
attempts = st.integers(-1, 4) | st.sampled_from((1000, 1001, 2**63, -(2**63)))
seqs = st.integers(0, 8) | st.sampled_from((100, 2**31, 2**63, 2**64 - 1))
groups = st.sampled_from(("", "g0", "g1", "g2"))
reasons = st.sampled_from(("silent", "disconnected", "no_responders"))
datas = st.dictionaries(
    st.sampled_from(("reason", "retry_after_s", "param")),
    st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(),  # the range of MessagePack integers
    max_size=2,
)
codes = st.sampled_from(
    ("overloaded", "unavailable", "group_lost", "model_not_found", "internal", "no such code", "")
)
deltas = st.builds(
    m.Delta,
    choice=st.integers(0, 3) | st.just(2**40),
    text=st.text(max_size=3),
    token_ids=st.binary(max_size=9),
    finish_reason=st.sampled_from((None, "stop", "length")),
)


def common() -> dict[str, Any]:
    return {"request_id": request_ids, "attempt": attempts, "seq": seqs}


frames = (
    st.builds(m.Accepted, **common(), group=groups.filter(bool), instance_id=groups)
    | st.builds(m.Tokens, **common(), deltas=st.lists(deltas, max_size=3))
    | st.builds(m.Done, **common(), usage=st.builds(m.Usage, prompt_tokens=st.integers(-(2**63), 2**63)))
    | st.builds(
        m.Failed, **common(), code=codes, message=st.text(max_size=5), data=datas, resumable=st.booleans()
    )
)  # fmt: skip
replies = st.builds(
    m.ResendReply, known=st.booleans(), next_seq=seqs, frames=st.lists(frames, max_size=6), attempt=attempts
)
happenings = st.one_of(
    st.tuples(st.just("on_frame"), frames, groups),
    st.tuples(st.just("on_frame"), frames, groups),
    st.tuples(st.just("on_frame"), frames, groups),
    st.tuples(st.just("on_resend"), replies),
    st.tuples(st.just("on_resend_failed"), st.just("why")),
    st.tuples(st.just("on_resend_excused")),
    st.tuples(st.just("on_no_responders")),
    st.tuples(st.just("on_group_down"), groups, groups, reasons),
    st.tuples(st.just("pass"), st.floats(0, 3), st.booleans()),
    st.tuples(st.just("read")),
)  # fmt: skip


def test_what_is_not_a_message_is_refused_and_what_is_one_can_be_sent_again() -> None:
    def check(sent: tuple[type[Wire], bytes]) -> None:
        kind, data = sent
        for each in (kind, m.FrameBatch, m.GenerateRequest):
            try:
                message = decode(data, each)
            except InvalidRequest:
                continue
            again = encode(message)
            assert encode(decode(again, each)) == again

    anything = st.sampled_from(sorted(GOLDEN)).flatmap(messages)
    each_of(st.tuples(st.sampled_from(KINDS), anything), scaled(300, 100_000), check)


@thorough
@given(st.lists(happenings, max_size=60), st.integers(1, 3), st.booleans())
def test_an_assembly_ends_once_and_keeps_little_whatever_arrives(
    events: list[tuple[Any, ...]], num_choices: int, is_adopted: bool
) -> None:
    now = 0.0
    request = m.GenerateRequest(request_id="r1", model="m", prompt="p", sampling=m.Sampling(n=num_choices))
    state = GenerationState(
        request, client_context(SETTINGS), now=now, deadline=DEADLINE_S, max_ready=MAX_READY
    )
    if is_adopted:
        state.adopt("g0", "i0", 3, 5)
    commands: list[Command] = []
    end: tuple[RyzError | None, m.Usage] | None = None
    handed_on: list[int] = []
    for name, *given_ in events:
        if name == "pass":
            now += given_[0]
            came = state.tick(now, connected=given_[1])
        elif name == "read":
            handed_on += [frame.seq for frame in state.answer.ready]
            state.answer.ready.clear()
            continue
        else:
            came = getattr(state, name)(*given_, now) or ()
        commands += came
        assert state.num_held <= SETTINGS.constants.max_buffered_frames
        assert len(state.answer.ready) <= MAX_READY + SETTINGS.constants.max_buffered_frames + 1
        if end is not None:
            assert (state.error, state.answer.usage) == end
            assert not any(isinstance(command, Publish | AskResend) for command in came)
        elif state.finished:
            end = (state.error, state.answer.usage)
    now = max(now, DEADLINE_S)
    state.tick(now, connected=True)
    assert state.finished
    handed_on += [frame.seq for frame in state.answer.ready]
    assert handed_on == sorted(set(handed_on))
    assert state.attempts.number <= MAX_ATTEMPT
    for command in commands:  # every command must be encodable
        if isinstance(command, Publish) and command.resume is not None:
            encode(command.resume)
        elif isinstance(command, SendCancel):
            encode(m.Cancel(request_id="r1", attempt=command.attempt))


class Answering(MemoryBus):
    """A bus that answers each request with the next of the given answers."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__()
        self.prepared = answers

    async def request(self, subject: str, data: bytes, **_: Any) -> Message:
        await asyncio.sleep(0)
        return Message(subject, self.prepared.pop() if self.prepared else b"")


async def read(stream: GenerationStream) -> str:
    """Reads a stream to its end; returns how it ended."""
    try:
        async with stream:
            async for _ in stream:
                pass
    except RyzError as error:
        return error.code
    return "done"


async def nothing(_: Message) -> None:
    pass


batches = st.builds(m.FrameBatch, frames=st.lists(frames, max_size=6), group=groups).map(encode)
losses = st.builds(
    m.GroupDown, group=groups.filter(bool), instance_id=groups, reason=reasons, router_id=groups
).map(encode)
arrivals = (
    st.tuples(st.just("on_frames"), batches)
    | st.tuples(st.just("on_frames"), batches)
    | st.tuples(st.just("on_frames"), messages("FrameBatch"))
    | st.tuples(st.just("on_group_down"), losses | messages("GroupDown"))
    | st.tuples(st.just("no_responders"), st.just(b""))
)


async def play(events: list[tuple[str, bytes]], answers: list[bytes]) -> None:
    """Sends all events to a client with two requests; checks that both end and that no client task fails."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    bus = Answering(answers)
    await bus.subscribe(subjects.GENERATE_ALL, nothing)
    client = InferenceClient(bus, QUICK)
    await client.start()
    readers = [
        asyncio.create_task(
            read(
                client.submit(
                    m.GenerateRequest(
                        request_id=request_id, model="demo", prompt="", sampling=m.Sampling(n=n)
                    ),
                    timeout_s=TIMEOUT_S,
                    whole=n > 1,
                )
            )
        )
        for request_id, n in (("r1", 1), ("r2", 3))
    ]
    await asyncio.sleep(0)
    for number, (name, data) in enumerate(events):
        if name == "no_responders":
            client._dispatcher.on_frames(
                Message(f"{client.reply_to}.{IDS[number % 2]}", b"", no_responders=True)
            )
        else:
            waits = getattr(client._dispatcher, name)(Message(client.reply_to, data))
            if waits is not None:
                await waits
        if number % 3 == 0:
            await asyncio.sleep(0)
        assert len(client._streams._tasks) <= 4 * len(events) + 4
    async with asyncio.timeout(PATIENCE_S):
        ends = await asyncio.gather(*readers)
    assert all(ends)
    assert client.num_open == 0
    await client.close()
    await bus.close()
    assert problems == []


def test_a_client_ends_its_requests_whatever_arrives() -> None:
    with asyncio.Runner() as runner:

        def check(sent: tuple[list[tuple[str, bytes]], list[bytes]]) -> None:
            runner.run(play(*sent))

        answers = st.lists(replies.map(encode) | messages("ResendReply"), max_size=6)
        each_of(st.tuples(st.lists(arrivals, max_size=30), answers), scaled(30, 10_000), check)
