"""The frames' way to the bus: one message for each caller, at once, also behind a broker that is slow."""

import asyncio
from collections.abc import Mapping

from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.leader.frame_publisher import FramePublisher
from shared import codec
from shared.errors import Internal, Unavailable
from shared.messages import FrameBatch
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.waiting import until
from tests.kits.worker.leader import chat, leader_context


class SlowBus(MemoryBus):
    """A bus whose broker takes messages only while it is `open`.

    Attributes:
        sent: Subject and request ids of each message, in order.
        away: Whether sending raises.
    """

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.open = asyncio.Event()
        self.open.set()
        self.sent: list[tuple[str, list[str]]] = []
        self.away = False

    def publish_now(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        if self.away:
            raise Unavailable("the broker is away")
        if self.open.is_set():
            frames = codec.decode(data, FrameBatch).frames
            self.sent.append((subject, [frame.request_id for frame in frames]))
        return self.open.is_set()

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        await self.open.wait()
        self.publish_now(subject, data)


class Sending:
    """A publisher on a slow bus."""

    def __init__(self) -> None:
        self.bus = SlowBus()
        self.context = leader_context(self.bus)
        self.publisher = FramePublisher(self.context, RetransmitBuffer(retention_s=1.0, max_bytes=2**20))

    def send(self, reply_to: str, name: str, within_s: float = 0.0) -> None:
        generation = Generation(chat(name), reply_to, deadline=0.0, arrived=0.0)
        self.publisher.buffer.open_attempt(generation.key, 0, 0, generation.request)
        self.publisher.send(generation, generation.failed(Internal("no")), within_s=within_s)


async def test_the_frames_of_a_step_leave_together_and_at_once() -> None:
    sending = Sending()
    for index, name in enumerate("abcd"):
        sending.send("xy"[index % 2], name)
    assert not sending.bus.sent
    sending.publisher.send_due()
    assert sending.bus.sent == [("x", ["a", "c"]), ("y", ["b", "d"])]
    await asyncio.sleep(0)
    assert len(sending.bus.sent) == 2


async def test_frames_that_no_step_made_leave_in_the_next_round_with_those_that_may_wait() -> None:
    sending = Sending()
    sending.send("x", "a", within_s=60.0)
    sending.send("y", "b", within_s=60.0)
    await asyncio.sleep(0)
    assert not sending.bus.sent
    sending.send("x", "c")
    await asyncio.sleep(0)
    assert sending.bus.sent == [("x", ["a", "c"])]
    await sending.publisher.flush_frames()
    assert sending.bus.sent[1:] == [("y", ["b"])]


async def test_frames_that_may_wait_leave_in_their_time() -> None:
    sending = Sending()
    sending.send("x", "a", within_s=0.01)
    await until(lambda: bool(sending.bus.sent))
    assert sending.bus.sent == [("x", ["a"])]


async def test_behind_a_slow_broker_frames_wait_in_order_and_leave_together() -> None:
    sending = Sending()
    task = asyncio.create_task(sending.publisher.send_refused_frames())
    sending.send("x", "a")
    sending.publisher.send_due()
    sending.bus.open.clear()
    for name in "bcd":
        sending.send("x", name)
        sending.publisher.send_due()
        await asyncio.sleep(0.001)
    assert sending.bus.sent == [("x", ["a"])]
    sending.bus.open.set()
    await asyncio.sleep(0.001)
    names = [name for _, names in sending.bus.sent for name in names]
    assert names == ["a", "b", "c", "d"]
    sending.send("x", "e")
    sending.publisher.send_due()
    assert sending.bus.sent[-1] == ("x", ["e"])
    task.cancel()


async def test_frames_that_a_lost_broker_did_not_get_are_counted() -> None:
    sending = Sending()
    sending.bus.away = True
    sending.send("x", "a")
    sending.send("x", "b")
    sending.publisher.send_due()
    (unsent,) = sending.context.metrics.unsent_frames.collect()
    assert unsent.samples[0].value == 2
    sending.bus.away = False
    sending.send("x", "c")
    sending.publisher.send_due()
    assert sending.bus.sent == [("x", ["c"])]
