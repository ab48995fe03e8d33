"""What leader and engine promise each other about starts, steps, cancels and ends (docs/engine-port.md)."""

import pytest

from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import StoreResult
from services.worker.rank_protocol.plan import BLOCK_SIZE, StepPlan
from tests.contract.engine_port.conftest import Port
from tests.contract.engine_port.engines import having
from tests.kits.engine.plans import Blocks, new_sequence

pytestmark = pytest.mark.asyncio(loop_scope="package")  # in which engines that are kept live


@having()
async def test_the_facts_of_a_start_allow_the_longest_sequence(port: Port) -> None:
    info = port.info
    assert 0 < info.context_length <= info.num_blocks * BLOCK_SIZE
    assert info.vocab_size > max(port.prompt)
    assert info.fingerprint
    assert info.run_ahead in (range(1) if info.streams else range(2))
    for row in port.engine.status():
        assert (row["rank"], row["state"]) == (0, "ready")


@having()
async def test_a_step_brings_the_tokens_that_its_plan_asks_for(port: Port) -> None:
    run = port.run
    short, long = run.add(port.prompt, 3), run.add(port.prompt * 5, 3)  # one needs several chunks
    while (result := await run.step()) is not None:
        asked = [chunk.seq_id for chunk in run.plans[-1].chunks if chunk.sample]
        came = [one.seq_id for one in result.sampled]
        assert result.step_id == run.plans[-1].step_id
        assert came == [seq_id for seq_id in asked if seq_id in came]  # in the plan's order, one of each
        if port.info.streams:
            assert came or not asked  # none ends before there is something
        else:
            assert came == asked
    assert [(len(run.came(one).tokens), run.came(one).reason) for one in (short, long)] == [(3, "length")] * 2


@having()
async def test_a_plan_without_a_sampling_chunk_needs_no_token(port: Port) -> None:
    admit = [new_sequence(1, port.prompt, max_tokens=3)]
    part = Blocks(64).chunk(1, 0, port.prompt[:16], sample=False)
    assert (await port.engine.submit(StepPlan(step_id=1, admit=admit, chunks=[part]))).sampled == []
    assert (await port.engine.submit(StepPlan(step_id=2, release=[1]))).sampled == []


@having()
async def test_a_cancel_takes_one_step_and_disturbs_no_other(port: Port) -> None:
    run = port.run
    left, stays = run.add(port.prompt, 40), run.add(port.prompt, 12)
    await run.until(lambda: len(run.came(left).tokens) >= 2)
    had = len(run.came(left).tokens)
    run.scheduler.end(left)
    await run.step()
    assert run.plans[-1].release == [1]
    await run.finish()
    assert len(run.came(left).tokens) == had
    assert (len(run.came(stays).tokens), run.came(stays).reason) == (12, "length")


@having()
async def test_a_step_that_is_hurried_is_over_soon_and_loses_nothing(port: Port) -> None:
    run = port.run
    one = run.add(port.prompt, 6)
    while await run.step(hurried=True) is not None:
        pass
    assert len(run.came(one).tokens) == 6


@having("deterministic")
async def test_everybody_gets_in_company_what_it_gets_alone(port: Port) -> None:
    prompts = [port.prompt[: 3 + number] for number in range(12)]
    alone = [(await port.run.generate(prompt, 9)).tokens for prompt in prompts]
    company = [port.run.add(prompt, 9) for prompt in prompts]
    await port.run.finish()
    assert [port.run.came(one).tokens for one in company] == alone


@having()
async def test_after_everything_has_ended_there_is_room_for_everything(port: Port) -> None:
    run = port.run
    longest = min(port.info.context_length, 400)
    for _ in range(3):
        run.add([port.prompt[0]] * (longest - 4), 4)
        await run.finish()
        assert run.scheduler.blocks.num_used == 0


@having()
async def test_an_engine_starts_again_and_answers_the_same_number_of_tokens(port: Port) -> None:
    await port.greedy(3)
    await port.again()
    assert len((await port.greedy(3)).tokens) == 3


@having("deterministic")
async def test_another_start_answers_the_same(port: Port) -> None:
    before = (await port.greedy()).tokens
    await port.again()
    assert (await port.greedy()).tokens == before


@having()
async def test_an_engine_that_has_stopped_says_so(port: Port) -> None:
    await port.greedy(2)
    await port.engine.stop()
    await port.engine.stop()
    with pytest.raises(EngineFailed):
        await port.engine.submit(StepPlan(step_id=9, admit=[new_sequence(9, port.prompt)]))


@having()
async def test_without_a_store_nothing_is_said_of_stored_blocks(port: Port) -> None:
    stored: list[StoreResult] = []
    port.engine.watch_store(stored.append)
    assert port.info.kv_parts is None
    await port.greedy(20)
    assert stored == []
