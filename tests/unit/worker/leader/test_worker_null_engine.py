"""The null engine computes valid plans and refuses those that real ranks could not compute."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan
from tests.kits.worker.leader import null_engine


class _Selector(selectors.DefaultSelector):
    """Advances its clock where a real one would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0.0)
        if not ready and timeout is not None:
            self.now_s += max(0.0, timeout)
        return ready


def _virtual_loop() -> asyncio.AbstractEventLoop:
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    return loop


def run_in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end; where nothing is ready, time goes on to the next timer at once."""
    with asyncio.Runner(loop_factory=_virtual_loop) as runner:
        runner.run(main)


def new(seq_id: int, length: int = 2) -> NewSequence:
    token_ids = [*range(1, 1 + length)]
    return NewSequence(seq_id=seq_id, token_ids=token_ids, prompt_len=length, sampling=EngineSampling())


def part(
    seq_id: int, start: int, count: int, new_blocks: list[int], *, sample: bool = False
) -> ScheduledChunk:
    """A chunk of a prompt."""
    token_ids = [*range(1 + start, 1 + start + count)]
    return ScheduledChunk(
        seq_id=seq_id, start=start, token_ids=token_ids, new_blocks=new_blocks, sample=sample
    )


def follow(seq_id: int, start: int) -> ScheduledChunk:
    return ScheduledChunk(seq_id=seq_id, start=start, token_ids=[], follow=True, sample=True)


NEXT = ord("e")  # the token that it samples after two tokens

GOOD = StepPlan(
    step_id=1,
    admit=[new(1)],
    chunks=[ScheduledChunk(seq_id=1, start=0, token_ids=[1, 2], new_blocks=[3], sample=True)],
)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=2, start=0, token_ids=[1])]), "not admitted"),
        (StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=1, token_ids=[1])]), "computed up to 2"),
        (StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[])]), "0 tokens"),
        (StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[1])]), "other tokens"),
        (
            StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[NEXT], new_blocks=[3])]),
            "block 3",
        ),
        (
            StepPlan(
                step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[NEXT], new_blocks=[999])]
            ),
            "block 999",
        ),
        (StepPlan(step_id=2, chunks=[follow(1, 3)]), "computed up to 2"),
        (
            StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[NEXT], follow=True)]),
            "goes on at 2",
        ),
        (
            StepPlan(step_id=2, chunks=[ScheduledChunk(seq_id=1, start=2, token_ids=[NEXT, 1])]),
            "has 3 tokens",
        ),
        (
            StepPlan(step_id=2, admit=[new(2, 40)], chunks=[part(2, 16, 20, [3, 4, 5])]),
            "does not hold tokens 0",
        ),
        (StepPlan(step_id=2, admit=[new(2, 40)], chunks=[part(2, 8, 20, [3, 4, 5])]), "cannot begin at 8"),
        (StepPlan(step_id=2, admit=[new(2, 16)], chunks=[part(2, 16, 0, [3])]), "cannot begin at 16"),
        (
            StepPlan(step_id=2, admit=[new(2, 40)], chunks=[part(2, 0, 20, [4, 5], sample=True)]),
            "in the middle",
        ),
        (StepPlan(step_id=2, admit=[new(1)]), "second time"),
        (StepPlan(step_id=2, release=[7]), "not there"),
        (
            StepPlan(
                step_id=2,
                admit=[new(2)],
                chunks=[ScheduledChunk(seq_id=2, start=0, token_ids=[1, 2], new_blocks=[3])],
            ),
            "taken",
        ),
    ],
)
async def test_the_null_engine_refuses_plans_that_cannot_be_computed(plan: StepPlan, complaint: str) -> None:
    engine = null_engine()
    await engine.start()
    result = await engine.submit(GOOD)
    assert [(s.seq_id, chr(s.token_id)) for s in result.sampled] == [(1, "e")]
    with pytest.raises(EngineFailed, match=complaint):
        await engine.submit(plan)
    await engine.stop()
    with pytest.raises(EngineFailed, match="stopped"):
        await engine.submit(GOOD)


async def test_a_follow_chunk_takes_the_token_that_came_before() -> None:
    engine = null_engine()
    await engine.start()
    futures = [engine.submit(GOOD), engine.submit(StepPlan(step_id=2, chunks=[follow(1, 2)]))]
    results = [await future for future in futures]
    assert [chr(result.sampled[0].token_id) for result in results] == ["e", " "]
    last = ScheduledChunk(seq_id=1, start=3, token_ids=[ord(" ")])
    engine.compute(StepPlan(step_id=3, chunks=[last]))
    with pytest.raises(EngineFailed, match="sequence 1 has 4 tokens, nothing follows"):
        engine.compute(StepPlan(step_id=4, chunks=[follow(1, 4)]))


async def test_a_block_is_shared_where_it_holds_the_tokens_and_lives_as_long_as_its_last_reader() -> None:
    engine = null_engine()
    await engine.start()
    engine.compute(StepPlan(step_id=1, admit=[new(1, 40)], chunks=[part(1, 0, 40, [7, 8, 9])]))
    engine.compute(StepPlan(step_id=2, admit=[new(2, 50)], chunks=[part(2, 32, 18, [7, 8, 3, 4])]))
    engine.compute(StepPlan(step_id=3, release=[1]))
    assert engine.held_blocks == 4
    engine.compute(StepPlan(step_id=4, release=[2], admit=[new(3, 33)], chunks=[part(3, 32, 1, [7, 8, 1])]))
    engine.compute(StepPlan(step_id=5, release=[3], admit=[new(4)], chunks=[part(4, 0, 2, [8])]))
    assert engine.held_blocks == 1
    with pytest.raises(EngineFailed, match="block 8 does not hold tokens 16 to 32 of sequence 5"):
        engine.compute(StepPlan(step_id=6, admit=[new(5, 40)], chunks=[part(5, 32, 8, [7, 8, 5])]))
    with pytest.raises(EngineFailed, match="broken: block 8"):
        engine.submit(GOOD)


def test_steps_take_their_time_one_after_another_and_two_at_most_are_taken() -> None:
    run_in_virtual_time(two_steps())


async def two_steps() -> None:
    engine = null_engine(delay_s=0.02)
    info = await engine.start()
    assert (info.run_ahead, (await null_engine().start()).run_ahead) == (1, 0)
    loop = asyncio.get_running_loop()
    first, second = engine.submit(GOOD), engine.submit(StepPlan(step_id=2, chunks=[follow(1, 2)]))
    with pytest.raises(RuntimeError, match="step 3 was submitted before 2 others were done"):
        engine.submit(StepPlan(step_id=3))
    assert (await first).step_id == 1
    assert loop.time() == pytest.approx(0.02)
    assert not second.done()
    assert (await second).step_id == 2
    assert loop.time() == pytest.approx(0.04)


async def test_the_end_of_the_engine_is_that_of_its_steps() -> None:
    engine = null_engine(delay_s=5.0)
    await engine.start()
    first, second = engine.submit(GOOD), engine.submit(StepPlan(step_id=2, chunks=[follow(1, 2)]))
    first.cancel()
    await engine.stop()
    with pytest.raises(EngineFailed, match="the null engine is stopped"):
        await second


async def test_steps_end_in_their_order_whichever_timer_fires_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, timers = null_engine(delay_s=0.005), list[Callable[[], None]]()
    await engine.start()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_at", lambda at, call, *rest: timers.append(partial(call, *rest)))
    first, second = engine.submit(GOOD), engine.submit(StepPlan(step_id=2, chunks=[follow(1, 2)]))
    monkeypatch.undo()
    timers[1]()
    assert not first.done()
    assert not second.done()
    timers[0]()
    assert [one.result().step_id for one in (first, second)] == [1, 2]
    again = [engine.submit(StepPlan(step_id=step_id)) for step_id in (3, 4)]  # both places are free
    await asyncio.gather(*again)
