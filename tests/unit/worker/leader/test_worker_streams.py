"""When tokens of streams are sent: the interval by the number of streams, and what does not wait for it."""

import asyncio
import time

from services.worker.domain.generation.stream_pace import StreamPace
from services.worker.null.engine import TEXT, NullEngine
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared.messages import Tokens
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine, tokens_of


class Stalling(NullEngine):
    """A null engine that holds back the result of the twentieth step of two sequences.

    Attributes:
        stalled: Set when it does.
    """

    def __init__(self) -> None:
        super().__init__(
            tokens=list(TEXT.encode()), num_blocks=256, vocab_size=257, context_length=2048, step_delay_s=0.0
        )
        self.stalled = asyncio.Event()
        self._left = 20
        self._held: tuple[asyncio.Future[StepResult], StepResult]

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        future = super().submit(plan)
        self._left -= len(plan.chunks) == 2
        if self._left or self.stalled.is_set():
            return future
        held = asyncio.get_running_loop().create_future()
        self._held = held, future.result()
        self.stalled.set()
        return held

    def go_on(self) -> None:
        future, result = self._held
        future.set_result(result)


def test_the_interval_grows_with_the_number_of_streams_up_to_its_bound() -> None:
    pace = StreamPace(0.008, per_stream_s=0.00025)
    assert pace.due_at(100) < 0, "nothing was sent yet"
    pace.note_sent(10.0)
    waits_ms = [round(1000 * (pace.due_at(streams) - 10.0), 3) for streams in (1, 2, 17, 33, 64, 1000)]
    assert waits_ms == [0, 0.25, 4, 8, 8, 8]
    unpaced = StreamPace(0.0)
    unpaced.note_sent(10.0)
    assert unpaced.due_at(1000) == 10.0


async def test_many_streams_get_their_text_less_often_all_at_the_same_time(memory_bus: MemoryBus) -> None:
    engine = null_engine(delay_s=0.002)
    async with Kit(memory_bus, engine, stream_interval_ms=30.0, interval_per_stream_s=0.03) as kit:
        for name in "ab":
            await kit.ask(chat(name, sampling={"max_tokens": 1000}))
        await kit.until(lambda: all(tokens_of(kit.frames[name]) for name in "ab"))
        began_s = time.monotonic()
        frames = await kit.run(chat("c", sampling={"max_tokens": 60}))
        took_s = time.monotonic() - began_s
        for name in "ab":
            kit.leader.parts.table.cancel_request(name, "", tenant="default")
    assert len(tokens_of(frames)) == 60
    sent = [frame for frame in frames if isinstance(frame, Tokens)]
    assert len(tokens_of(sent[:1])) == 1, "the first text does not wait"
    assert len(sent) <= 3 + took_s / 0.03
    assert max(kit.batches) >= 3


async def test_a_single_stream_gets_every_token_at_once(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, stream_interval_ms=1000.0, interval_per_stream_s=1.0) as kit:
        whole = [chat(name, delivery="whole", sampling={"max_tokens": 500}) for name in "bcd"]
        for request in whole:
            await kit.ask(request)
        frames = await kit.run(chat("a", sampling={"max_tokens": 20}))
        assert [len(tokens_of([frame])) for frame in frames if isinstance(frame, Tokens)] == [1] * 20
        for request in whole:
            assert len(tokens_of(await kit.end_of(request.request_id))) == 500


async def test_an_interval_without_end_still_gives_first_and_last_text(memory_bus: MemoryBus) -> None:
    engine = null_engine(delay_s=0.001)
    async with Kit(memory_bus, engine, stream_interval_ms=1e9, interval_per_stream_s=1e6) as kit:
        await kit.ask(chat("a", sampling={"max_tokens": 1000}))
        await kit.until(lambda: bool(tokens_of(kit.frames["a"])))
        frames = await kit.run(chat("b", sampling={"max_tokens": 20}))
        kit.leader.parts.table.cancel_request("a", "", tenant="default")
    assert [len(tokens_of([frame])) for frame in frames if isinstance(frame, Tokens)] == [1, 19]


async def test_what_waits_is_sent_while_a_step_is_long(memory_bus: MemoryBus) -> None:
    engine = Stalling()
    async with Kit(memory_bus, engine, stream_interval_ms=100.0, interval_per_stream_s=0.1) as kit:
        for name in "ab":
            await kit.ask(chat(name, sampling={"max_tokens": 1000}))
        await engine.stalled.wait()
        choices = [kit.leader.parts.table.by_key[f"default/{name}"].choices[0] for name in "ab"]
        await kit.until(lambda: not any(choice.unsent_tokens for choice in choices))
        engine.go_on()
        assert [len(tokens_of(await kit.end_of(name))) for name in "ab"] == [1000, 1000]


async def test_what_was_held_for_a_stream_that_gave_way_is_sent_meanwhile(memory_bus: MemoryBus) -> None:
    engine = null_engine(blocks=16, delay_s=0.002)
    async with Kit(memory_bus, engine, stream_interval_ms=30.0, interval_per_stream_s=0.03) as kit:
        await kit.ask(chat("a", prompt="x" * 16, sampling={"max_tokens": 200}))
        await kit.ask(chat("b", prompt="y" * 16, sampling={"max_tokens": 200}))
        await kit.until(lambda: kit.metric("num_preemptions_total") == 1)
        generation = kit.leader.parts.table.by_key["default/b"]
        await kit.until(lambda: not generation.choices[0].unsent_tokens)
        assert kit.leader.load().waiting == 1, "it has not gone on yet"
        assert len(tokens_of(await kit.end_of("b"))) == 200
