"""Attaching to another caller's request: queries, the answer that is used, cancels to the other leaders."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from shared import subjects
from shared.bus import Message
from shared.client import GenerationStream, InferenceClient
from shared.client.attach import AttachTarget, attach
from shared.codec import decode, encode, pack_tokens
from shared.errors import Cancelled, Conflict, GroupLost, Unavailable
from shared.messages import (
    AnyFrame,
    Attach,
    Attached,
    Cancel,
    FrameBatch,
    GenerateRequest,
    Resend,
    ResendReply,
    ResumePoint,
)
from tests.kits.client import client_settings
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.scripted_leader import answer

REQUEST = GenerateRequest(request_id="r", model="demo", prompt="Hi", note=b"n")


class Leader:
    """A leader with frames `first_seq` to `kept` of one attempt. It leaves `silent` queries unanswered."""

    def __init__(
        self, bus: MemoryBus, group: str, attempt: int, *, silent: int = 0, first_seq: int = 0, kept: int = 6
    ) -> None:
        self.bus, self.group, self.silent, self.first_seq, self.kept = bus, group, silent, first_seq, kept
        resume = ResumePoint(token_ids=[pack_tokens([7])], next_seq=2) if first_seq == 2 else None
        self.request = msgspec.structs.replace(REQUEST, attempt=attempt, resume=resume)
        self.asked: list[Attach] = []
        self.inboxes: set[str] = set()
        self.cancels: list[Cancel] = []
        self.has_forgotten = False

    async def start(self) -> "Leader":
        await self.bus.subscribe(subjects.ATTACH, self._attach)
        await self.bus.subscribe(subjects.resend(self.group), self._resend)
        await self.bus.subscribe(subjects.cancel(self.group), self._cancel)
        return self

    @property
    def frames(self) -> list[AnyFrame]:
        whole = msgspec.structs.replace(self.request, resume=None)
        return answer(whole, group=self.group)[self.first_seq : self.kept]

    async def _attach(self, message: Message) -> None:
        self.asked.append(decode(message.data, Attach))
        self.inboxes.add(message.reply)
        if len(self.asked) > self.silent:
            await self.answer(message.reply)

    async def answer(self, inbox: str) -> None:
        answer = Attached(
            request=encode(self.request), group=self.group, first_seq=self.first_seq, next_seq=self.kept
        )
        await self.bus.publish(inbox, encode(answer))

    async def _resend(self, message: Message) -> None:
        resend = decode(message.data, Resend)
        known = not self.has_forgotten
        frames = [frame for frame in self.frames if frame.seq >= resend.from_seq] if known else []
        reply = ResendReply(known=known, next_seq=self.kept, frames=frames, attempt=resend.attempt)
        await self.bus.publish(message.reply, encode(reply))

    async def _cancel(self, message: Message) -> None:
        self.cancels.append(decode(message.data, Cancel))


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.close()


@pytest.fixture
async def client(bus: MemoryBus) -> AsyncIterator[InferenceClient]:
    client = InferenceClient(bus, client_settings(probe_interval_s=0.05, max_losses=1))
    await client.start()
    yield client
    await client.close()


async def test_all_its_frames_come_from_the_newest_attempt(bus: MemoryBus, client: InferenceClient) -> None:
    old, new = [await Leader(bus, group, attempt).start() for group, attempt in (("g0", 3), ("g1", 5))]
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=2, timeout_s=5)
    assert found is not None
    async with found.stream as stream:
        text = "".join([frame.deltas[0].text async for frame in stream.frames()])
    assert (text, stream.group, stream.state.attempts.number) == ("w0 w1 w2 w3 ", "g1", 5)
    assert (found.first_seq, found.next_seq, found.request) == (0, 6, new.request)
    assert [(cancel.request_id, cancel.attempt) for cancel in old.cancels] == [("r", 3)]
    assert new.cancels == []
    assert old.asked[0] == Attach(request_id="r", tenant="default", reply_to=client.reply_to)


async def test_frames_that_come_before_the_answer_end_nothing(
    bus: MemoryBus, client: InferenceClient
) -> None:
    """A leader that has a request sends its frames at once, and its answer to the query after them."""
    leader = await Leader(bus, "g0", 2, silent=1).start()

    async def eager(message: Message) -> None:
        batch = FrameBatch(frames=leader.frames[:1], group="g0")
        await bus.publish(decode(message.data, Attach).reply_to, encode(batch))

    await bus.subscribe(subjects.ATTACH, eager)
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=1, timeout_s=5)
    assert found is not None
    assert client.stats.ignored >= 2, "one for each time that it asked, more often on a busy machine"
    async with found.stream as stream:
        assert len([frame async for frame in stream.frames()]) == 4
    assert leader.cancels == []


async def test_it_asks_more_than_once_under_one_name(bus: MemoryBus, client: InferenceClient) -> None:
    leader = await Leader(bus, "g0", 1, silent=2).start()
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=3, timeout_s=5)
    assert found is not None
    assert (len(leader.asked), len(leader.inboxes)) == (3, 1)
    await found.stream.cancel()


async def test_no_leader_has_it(bus: MemoryBus, client: InferenceClient) -> None:
    assert await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=0.15, timeout_s=5) is None
    leader = await Leader(bus, "g0", 1, silent=100).start()
    assert await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=0.15, timeout_s=5) is None
    assert len(leader.asked) == 3
    assert client.num_open == 0


async def test_the_later_of_two_callers_in_one_process_keeps_it(
    bus: MemoryBus, client: InferenceClient
) -> None:
    """The answer to the first caller comes when the second one has the request already."""
    leader = await Leader(bus, "g0", 2, kept=3, silent=1).start()
    target = AttachTarget("r", "default")
    first = asyncio.create_task(attach(client, target, needed_seq=0, find_s=30, timeout_s=60))
    await until(lambda: bool(leader.asked))
    (waiting,) = leader.inboxes
    leader.request = msgspec.structs.replace(leader.request, attempt=3)
    later = await attach(client, target, needed_seq=0, find_s=2, timeout_s=5)
    assert later is not None
    leader.request = msgspec.structs.replace(leader.request, attempt=2)
    await leader.answer(waiting)
    with pytest.raises(Cancelled) as caught:
        await first
    assert caught.value.data["reason"] == "attached_elsewhere"
    assert not later.stream.finished
    leader.request = msgspec.structs.replace(leader.request, attempt=5)
    newest = await attach(client, target, needed_seq=0, find_s=2, timeout_s=5)
    assert newest is not None
    assert isinstance(later.stream.error, Cancelled)
    with pytest.raises(Cancelled):  # it is not started a second time
        async with later.stream as stream:
            await stream.next_frame()
    assert not newest.stream.finished
    await newest.stream.cancel()


async def _open_with(
    client: InferenceClient, attempt: int, bus: MemoryBus
) -> tuple[Leader, GenerationStream]:
    leader = await Leader(bus, "g0", attempt, kept=3).start()
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=2, timeout_s=5)
    assert found is not None
    return leader, found.stream


async def test_a_group_that_comes_back_from_being_lost_is_not_taken_for_the_request(
    bus: MemoryBus, client: InferenceClient
) -> None:
    """The request went on elsewhere under a later attempt, whose leader answers after the old one."""
    leader, parked = await _open_with(client, 4, bus)
    old = await Leader(bus, "g1", 2, kept=3).start()
    leader.silent = len(leader.asked) + 1
    leader.request = msgspec.structs.replace(leader.request, attempt=5)
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=0.3, timeout_s=5)
    assert found is not None
    assert (found.stream.group, found.request.attempt) == ("g0", 5)
    assert isinstance(parked.error, Cancelled)
    await until(lambda: [cancel.attempt for cancel in old.cancels] == [2])
    assert leader.cancels == []
    await found.stream.cancel()


@pytest.mark.parametrize("is_stale", [True, False])
async def test_a_request_that_is_between_two_groups(
    bus: MemoryBus, client: InferenceClient, is_stale: bool
) -> None:
    leader, parked = await _open_with(client, 4, bus)
    old = await Leader(bus, "g1", 2, kept=3, silent=0 if is_stale else 100).start()
    leader.silent = 100
    with pytest.raises(Unavailable) as caught:
        await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=0.15, timeout_s=5)
    assert caught.value.data["reason"] == "stream_between_groups"
    assert caught.value.retry_after_s == 1.0
    assert not parked.finished
    if is_stale:
        await until(lambda: [cancel.attempt for cancel in old.cancels] == [2])
    assert len(old.cancels) == is_stale
    await parked.cancel()


@pytest.mark.parametrize("at", ["before it is asked", "while it is asked"])
async def test_a_stream_that_leaves_its_group_is_not_given_that_group_again(
    bus: MemoryBus, client: InferenceClient, at: str
) -> None:
    """The group answers with the attempt that the stream has published to the next one already.

    The client may have seen frames of the next group, which has others under the same numbers.
    """
    leader, parked = await _open_with(client, 4, bus)

    async def lose_group(_: Message) -> None:
        parked.state.on_group_down("g0", "", "silent", 0.0)

    if at == "before it is asked":
        await lose_group(Message("", b""))
    else:
        await bus.subscribe(subjects.ATTACH, lose_group)
    leader.request = msgspec.structs.replace(leader.request, attempt=5)  # one above that of the stream
    with pytest.raises(Unavailable) as caught:
        await attach(client, AttachTarget("r", "default"), needed_seq=4, find_s=0.15, timeout_s=5)
    assert caught.value.data["reason"] == "stream_between_groups"
    assert parked.state.attempts.number >= 5  # each attempt that no router takes is followed by another
    assert not parked.finished
    await until(lambda: [cancel.attempt for cancel in leader.cancels] == [5])
    await parked.cancel()


async def test_the_key_of_another_call_is_a_conflict_while_that_call_runs_here(
    bus: MemoryBus, client: InferenceClient
) -> None:
    """The leader does not hand the request over, and answers with the attempt that runs."""
    leader = await Leader(bus, "g0", 4, kept=3).start()
    leader.request = msgspec.structs.replace(leader.request, call_key="k", call_digest="d")
    first = await attach(client, AttachTarget("r", "default", "k", "d"), needed_seq=0, find_s=2, timeout_s=5)
    assert first is not None
    other = AttachTarget("other", "default", "k", "of another call")
    with pytest.raises(Conflict):
        await attach(client, other, needed_seq=0, find_s=2, timeout_s=5)
    assert not first.stream.finished
    await first.stream.cancel()


async def test_a_stale_answer_to_a_repeated_call_does_not_count(
    bus: MemoryBus, client: InferenceClient
) -> None:
    leader = await Leader(bus, "g0", 4, kept=3).start()
    leader.request = msgspec.structs.replace(leader.request, call_key="k", call_digest="d")
    target = AttachTarget("other", "default", "k", "d")
    parked = await attach(client, target, needed_seq=0, find_s=2, timeout_s=5)
    assert parked is not None
    leader.request = msgspec.structs.replace(leader.request, attempt=3)
    with pytest.raises(Unavailable) as caught:
        await attach(client, target, needed_seq=0, find_s=0.15, timeout_s=5)
    assert caught.value.data["reason"] == "stream_between_groups"
    await until(lambda: [cancel.attempt for cancel in leader.cancels] == [3])
    assert not parked.stream.finished
    await parked.stream.cancel()


async def test_what_has_ended_is_read_and_never_begun_again(bus: MemoryBus, client: InferenceClient) -> None:
    """A leader keeps no prompt of an ended request, so the request cannot be published again."""
    published: list[Message] = []

    async def router(message: Message) -> None:
        published.append(message)

    await bus.subscribe(subjects.GENERATE_ALL, router)
    leader = await Leader(bus, "g0", 1).start()
    leader.request = msgspec.structs.replace(leader.request, prompt=None)
    leader.has_forgotten = True  # the leader dropped the request since
    found = await attach(client, AttachTarget("r", "default"), needed_seq=0, find_s=2, timeout_s=5)
    assert found is not None
    with pytest.raises(GroupLost):
        await asyncio.wait_for(found.stream.next_frame(), PATIENCE_S)
    assert published == []


@pytest.mark.parametrize(("first_seq", "goes_on"), [(0, True), (2, True), (3, False)])
async def test_a_loss_after_attaching(
    bus: MemoryBus, client: InferenceClient, first_seq: int, goes_on: bool
) -> None:
    """The request continues on another group with all tokens, unless some tokens are missing for good."""
    published: list[GenerateRequest] = []

    async def router(message: Message) -> None:
        published.append(decode(message.data, GenerateRequest))

    await bus.subscribe(subjects.GENERATE_ALL, router)
    leader = await Leader(bus, "g0", 1, first_seq=first_seq, kept=4).start()
    found = await attach(client, AttachTarget("r", "default"), needed_seq=first_seq, find_s=2, timeout_s=5)
    assert found is not None
    while found.stream.next_seq < 4:
        await found.stream.next_frame()
    leader.has_forgotten = True
    if not goes_on:
        with pytest.raises(GroupLost):
            await asyncio.wait_for(found.stream.next_frame(), PATIENCE_S)
        assert published == []
        return
    await until(lambda: bool(published))
    tokens = [0, 1, 2] if first_seq == 0 else [7, 1, 2]
    assert published[0].resume == ResumePoint(token_ids=[pack_tokens(tokens)], next_seq=4)
    assert (published[0].attempt, published[0].note) == (2, b"n")
    await found.stream.cancel()
